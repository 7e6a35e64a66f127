"""Seven kinds of environment, trained for a short while and filmed: ``python benchmarks/environments.py``.

Each run is what ``marl-tools train`` does. The budget is far too small to solve most of them: the page shows that
every kind trains without error (different spaces, images, deaths, ends by termination), not how well.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from results_page import write_page

from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.run import train

KINDS = {
    "simple_spread": (20_000, "3 equal agents"),
    "simple_tag": (20_000, "different observation sizes"),
    "simple_speaker_listener": (20_000, "different action sizes"),
    "knights_archers_zombies": (20_000, "agents die on the way"),
    "multiwalker": (20_000, "continuous, ends by termination"),
    "pursuit": (2_000, "8 agents, small images"),
    "pistonball": (2_000, "20 agents, images, continuous"),
}
EPISODES = {"pursuit": 4, "pistonball": 4}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=list(KINDS), help="tasks to run")
    parser.add_argument("--out", type=Path, help="folder for the runs; by default one that is deleted")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        lines = [
            "# Every kind of environment trains and is filmed",
            "",
            "`python benchmarks/environments.py`: 8 copies, the default settings, seed 1. Return: episode sum, mean over",
            "agents, mean over the evaluation episodes with its 95 % interval. So few steps solve little: the page",
            "shows that each kind runs. Seconds include evaluation and film.",
            "",
            "| task | what is special | env steps | episodes | random | trained | clips | seconds |",
            "|---|---|---|---|---|---|---|---|",
            *(row(task, options.out or Path(scratch)) for task in options.only),
        ]
    packages = ("marl-tools", "pettingzoo", "mpe2", "supersuit", "torch", "numpy")
    write_page("environments", lines, packages)


def row(task: str, out: Path) -> str:
    timesteps, what = KINDS[task]
    episodes = EPISODES.get(task, 20)
    started = time.perf_counter()
    config = RunConfig(
        env=task, timesteps=timesteps, seed=1, out=out / task, final_policy_eval_episodes=episodes
    )
    result = train(config)[0]
    seconds = time.perf_counter() - started
    columns = []
    for evaluation in (result.before, result.after):
        assert evaluation is not None
        figures = evaluation.summary()["returns"]["mean_over_agents"]
        columns.append("{:.2f} ({:.2f} to {:.2f})".format(figures["mean"], *figures["interval"]))
    clips = len(list((result.folder / "videos").glob("*.mp4")))
    return f"| {task} | {what} | {timesteps} | {episodes} | {columns[0]} | {columns[1]} | {clips} | {seconds:.0f} |"


if __name__ == "__main__":
    main()
