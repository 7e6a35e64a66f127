"""Native twins of mpe2 with random actions: ``python benchmarks/native.py``.

Each twin at several batch sizes beside mpe2's own env, in CPU time of one process. All is what training pays: observations, rewards,
episode logs, and the resets with their seeds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from results_page import write_page

from marl_tools.core.factory import EnvFactory
from marl_tools.core.types import VectorEnv
from marl_tools.envs.tasks import find_task
from marl_tools.experiment.native import make_envs

TASKS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("simple_spread", {}),
    ("simple_spread", {"continuous_actions": True}),
    ("simple_spread", {"N": 12}),
    ("simple_tag", {}),
    ("simple_adversary", {}),
    ("simple_push", {}),
    ("simple_reference", {}),
    ("simple_speaker_listener", {}),
)
BATCHES = (1, 8, 64, 1024)
COPIES = 8
"""Of the single envs, which are as fast with any number."""
EPISODE = 25


class Stepper:
    """A vector env and actions drawn beforehand."""

    def __init__(self, envs: VectorEnv, seconds: float) -> None:
        rng = np.random.default_rng(0)
        self.envs, self.rates = envs, []
        self._actions = [{group.name: _sample(rng, envs, group) for group in envs.groups} for _ in range(8)]
        envs.reset(0)
        spent = self._play(EPISODE)
        # Whole episodes, since the last step of one costs the most.
        self._steps = EPISODE * max(1, round(seconds / spent))

    def measure(self) -> None:
        self.rates.append(self._steps * self.envs.num_envs / self._play(self._steps))

    def _play(self, steps: int) -> float:
        """CPU seconds of so many steps."""
        started = time.process_time()
        for step in range(steps):
            self.envs.step(self._actions[step % len(self._actions)])
        return time.process_time() - started


def _sample(rng: np.random.Generator, envs: VectorEnv, group: Any) -> np.ndarray:
    shape = (envs.num_envs, len(group.agents))
    if group.spaces.is_discrete:
        return rng.integers(group.spaces.action_dim, size=shape)
    return rng.uniform(-1, 1, size=(*shape, group.spaces.action_dim)).astype(np.float32)


def steppers(task: str, kwargs: Mapping[str, Any], seconds: float) -> list[Stepper]:
    """mpe2 through PettingZoo's turns, mpe2 stepped directly, and the twin at each batch size."""
    turns, direct = (
        EnvFactory(make_env=find_task(task).make_env, kwargs=kwargs, direct=direct)
        for direct in (False, True)
    )
    single = [Stepper(make_envs(factory, COPIES), seconds) for factory in (turns, direct)]
    return [*single, *(Stepper(make_envs(direct, batch, native=True), seconds) for batch in BATCHES)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7, help="rounds over which the medians are taken")
    parser.add_argument(
        "--seconds", type=float, default=0.4, help="CPU time of a single measurement, roughly"
    )
    options = parser.parse_args()
    lines = [
        "# Native twins",
        "",
        f"`python benchmarks/native.py --repeats {options.repeats}`: env-steps per second of CPU time in one process, random actions,",
        f"episodes of {EPISODE} steps, with logs, resets and seeds; medians over alternating rounds (lowest to highest). mpe2: {COPIES} copies in",
        "`SerialVectorEnv`, by PettingZoo's turns and stepped directly. The twin plays the same episodes to the bit.",
        "",
        "| task | mpe2, turns | mpe2, direct | " + " | ".join(f"twin, {batch}" for batch in BATCHES) + " |",
        "|---|---|---|" + "---|" * len(BATCHES),
    ]
    for task, kwargs in TASKS:
        measured = steppers(task, kwargs, options.seconds)
        for _ in range(options.repeats):
            for stepper in measured:
                stepper.measure()
        settings = ", ".join(f"{key}={value}" for key, value in kwargs.items())
        cells = [
            f"{statistics.median(stepper.rates):,.0f} ({min(stepper.rates):,.0f} to {max(stepper.rates):,.0f})"
            for stepper in measured
        ]
        lines.append(f"| {task} {settings} | " + " | ".join(cells) + " |")
    write_page("native", lines, ("marl-tools", "pettingzoo", "mpe2", "numpy"))


if __name__ == "__main__":
    main()
