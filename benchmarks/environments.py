"""Every named task: how fast it steps, what random play costs, and that it trains and is filmed: ``python benchmarks/environments.py``.

Each run is what ``marl-tools train`` does. Its budget is two small updates: the page shows that every kind of environment goes
through without an error (different spaces, images, deaths, ends of both kinds), not how well it is learned.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from results_page import write_page

from marl_tools.core.logging import configure_logging
from marl_tools.envs import find_task, task_names
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.run import train
from marl_tools.vector import SerialVectorEnv

ROUNDS = 9
LONGEST = 50
"""Steps after which an episode of a run is cut here, so that films of long ones do not take most of the time."""
RUN = {"timesteps": 256, "rollouts": 16, "num_envs": 8, "seed": 1, "final_policy_eval_episodes": 2}
PACKAGES = (
    "marl-tools",
    "pettingzoo",
    "mpe2",
    "supersuit",
    "torch",
    "numpy",
    "gymnasium",
    "mujoco",
    "magent2",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=task_names(), help="tasks to run")
    parser.add_argument("--out", type=Path, help="folder for the runs; by default one that is deleted")
    parser.add_argument("--cpu-seconds", type=float, default=1.0, help="how long to step each task")
    options = parser.parse_args()
    configure_logging(min_level="WARNING")
    with tempfile.TemporaryDirectory() as scratch:
        lines = [
            "# Every named task steps, trains and is filmed",
            "",
            f"`python benchmarks/environments.py`. Stepping: one copy with its cost and its recorder, random actions, whole episodes "
            f"for at least {options.cpu_seconds:g} CPU-seconds. Violations: agent-steps with a cost, of all those. Run: two updates of "
            f"{RUN['num_envs']} copies x {RUN['rollouts']} steps, evaluated before and after, filmed once, episodes cut after {LONGEST} steps; "
            "CPU-seconds of all that. So few steps solve nothing: the page shows that each kind runs.",
            "",
            "| task | agents | env-steps per CPU-second | steps an episode | violations per agent-step | CPU-seconds of a run | clips |",
            "|---|---|---|---|---|---|---|",
            *(
                line
                for task in options.only
                for line in row(task, options.out or Path(scratch), options.cpu_seconds)
            ),
            "",
            f"Counting the cost of simple_spread, {ROUNDS} rounds in turn: {counting()}",
        ]
    write_page("environments", lines, PACKAGES)


def row(name: str, out: Path, cpu_seconds: float) -> Iterator[str]:
    """The task's line of the table, none if its packages are missing."""
    task = find_task(name)
    if missing := task.missing():
        print(f"{name}: {', '.join(missing)} not installed")
        return
    speed, length, violations = stepped(name, cpu_seconds)
    started = time.process_time()
    cap = LONGEST if task.cap and task.cap > LONGEST else None
    (result,) = train(RunConfig.from_flat({**RUN, "env": name, "cap": cap, "out": str(out / name)}))
    seconds = time.process_time() - started
    clips = len(list((result.folder / "videos").glob("*.mp4")))
    rate = f"{violations:.4f}" if task.violation else "no cost"
    line = f"| {name} | {task.agents} | {speed:,.0f} | {length:.0f} | {rate} | {seconds:.1f} | {clips} |"
    print(line, flush=True)
    yield line


def counting() -> str:
    """What the cost of simple_spread adds to a step of a serial vector env, direct steps."""
    seconds = np.array([[_seconds(judged) for judged in (False, True)] for _ in range(ROUNDS)])
    without, more = np.median(seconds[:, 0]), np.median(seconds[:, 1] - seconds[:, 0])
    return f"{more * 1e6:.1f} microseconds more than the {without * 1e6:.0f} of an env-step without (CPU time, medians)."


def _seconds(judged: bool) -> float:
    """CPU-seconds of an env-step."""
    envs = SerialVectorEnv(RunConfig(env="simple_spread").factory(judged=judged), 8)
    envs.reset(0)
    rng = np.random.default_rng(0)
    actions = [{"agent": rng.integers(5, size=(8, 3))} for _ in range(300)]
    started = time.process_time()
    for action in actions:
        envs.step(action)
    seconds = time.process_time() - started
    envs.close()
    return seconds / (300 * 8)


def stepped(name: str, cpu_seconds: float) -> tuple[float, float, float]:
    """Env-steps per CPU-second, mean length of an episode, and violations per agent-step, all of random play."""
    env = RunConfig(env=name, preprocess=()).factory(judged=True)()
    for index, agent in enumerate(env.possible_agents):
        env.action_space(agent).seed(index)
    # The first episode warms up what is compiled or loaded late.
    spent, steps, lengths, costs = 0.0, 0, [], []
    for episode in range(10_000):
        started = time.process_time()
        env.reset(seed=episode)
        while env.agents:
            *_, infos = env.step({agent: env.action_space(agent).sample() for agent in env.agents})
            costs += [info["cost"] > 0 for info in infos.values() if "cost" in info]
        if episode:
            assert env.last_episode is not None
            spent += time.process_time() - started
            steps += env.last_episode.length
            lengths.append(env.last_episode.length)
        if spent >= cpu_seconds:
            break
    env.close()
    return steps / spent, float(np.mean(lengths)), float(np.mean(costs)) if costs else 0.0


if __name__ == "__main__":
    main()
