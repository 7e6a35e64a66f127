"""What the processes under torchrun run in test_ranks: ``python -m tests.experiment.spread_runs FOLDER``; and an env that fails there."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from marl_tools.core.errors import EnvError, MarlToolsError
from marl_tools.experiment.run import resume, train
from tests.envs_for_tests import Team
from tests.experiment.test_resume import settings

RUNS = {
    "lagrange-native": {"constraint": "lagrange", "native": True},
    "spread-alone": {
        "env": "simple_spread",
        "share": "none",
        "eval_every": 3,
        "eval_episodes": 1,
        "num_envs": 3,
    },
    "tag-native": {"env": "simple_tag", "native": True, "learning_rate_schedule": "linear"},
    "births-and-deaths": {
        "env": "tests.envs_for_tests:Team",
        "env_kwargs": {"max_cycles": 9, "deaths": {"agent_1": 4}, "births": {"agent_2": 3}},
        "target_kl": 0.01,
    },
}
"""Changes to `settings`, by the names of the run folders."""
HALF = 192
"""Env steps of three updates, half a run."""


class Failing(Team):
    """Fails or kills its process at its 40th step, in the second process of several."""

    def __init__(self, way: str) -> None:
        super().__init__(max_cycles=9)
        self.way, self.steps = way, 0

    def step(self, actions):
        self.steps += 1
        if self.steps == 40 and os.environ.get("RANK") == "1":
            if self.way == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise EnvError("the floor is gone")
        return super().step(actions)


def failing(way: str) -> Failing:
    return Failing(way)


FAILING = {"env": "tests.experiment.spread_runs:failing", "num_envs": 2, "rollouts": 16, "timesteps": 192}


def main(folder: Path) -> None:
    for name, changes in RUNS.items():
        train(settings(folder / name, **changes))
    resume(folder / "half", timesteps=2 * HALF)
    for name, changes in {
        "shield": {"shield": "ledger"},
        "copies": {"num_envs": 1},
        "workers": {"workers": 2},
        "raise": {**FAILING, "env_kwargs": {"way": "raise"}},
    }.items():
        try:
            train(settings(folder / name, **changes))
        except MarlToolsError as error:
            text = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
            (folder / f"{name}-{os.environ['RANK']}.txt").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
