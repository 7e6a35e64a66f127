"""How the copies of a run's env are stepped: in which processes, and when their actions are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from marl_tools.core.checks import at_least
from marl_tools.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class SteppingSettings:
    """Where the copies of the env live, and when they are stepped.

    Args:
        workers: processes that step the copies of the env; 0: this one does. The episodes are the same.
        pipeline: with two workers or more, compute the actions of one half of them while the other half steps. Still on
            policy; networks see half the rows at a time, which may move the last bit of a number.
        asynchronous: collect the next rollout while an update runs, by the policies as they were before it. The lag of one
            update is logged; PPO's ratio and clip are around the policy that acted. As deterministic as without.
        on_worker_death: "raise", or "restart" the copies of a worker that died; what they played is logged as interrupted.
        worker_timeout: seconds that a step or a reset of a worker's copies may take.
        rollout_timeout: seconds that another process of a run under torchrun may take for its part of a rollout or an update.
    """

    workers: int = 0
    pipeline: bool = False
    asynchronous: bool = False
    on_worker_death: Literal["raise", "restart"] = "raise"
    worker_timeout: float = 120.0
    rollout_timeout: float = 600.0

    def __post_init__(self) -> None:
        at_least(0)("workers", self.workers)
        if self.pipeline and self.workers < 2:
            raise ConfigError(
                f"pipeline with workers={self.workers}: it takes turns between two workers or more"
            )
        for name in ("worker_timeout", "rollout_timeout"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)}: must be a positive number of seconds")

    def check(self, *, num_envs: int, native: bool, shielded: bool) -> None:
        """Refuse what does not go together with a run's other settings.

        Raises:
            ConfigError: it says which, and what to leave out.
        """
        if self.workers > num_envs:
            raise ConfigError(
                f"workers={self.workers}, but num_envs={num_envs}: a worker needs a copy of its own"
            )
        if self.workers and native:
            raise ConfigError(
                f"workers={self.workers} with native: a native env is one batch; leave one of them out"
            )
        if shielded and self.pipeline:
            raise ConfigError("pipeline with a shield: it decides on all copies at once; leave pipeline out")
        if shielded and self.asynchronous:
            raise ConfigError(
                "asynchronous with a shield: it learns with every update what the policies do; leave asynchronous out"
            )
        if shielded and self.on_worker_death == "restart":
            raise ConfigError(
                "on_worker_death='restart' with a shield: it counts what every step led to, and that of a step which is "
                "lost with its worker is not known; leave on_worker_death at 'raise'"
            )

    def check_ranks(self, ranks: int, *, num_envs: int, shielded: bool, saving: bool) -> None:
        """Refuse what does not go together with so many processes under torchrun.

        Raises:
            ConfigError: it says which, and what to leave out.
        """
        started = f"{ranks} processes under torchrun"
        if ranks > num_envs:
            raise ConfigError(f"{started}, but num_envs={num_envs}: each needs a copy of its own")
        if shielded:
            raise ConfigError(f"{started} with a shield: it decides on all copies at once; start one process")
        if self.asynchronous:
            raise ConfigError(f"{started} with asynchronous: they learn from rollouts in step; leave it out")
        if self.workers:
            raise ConfigError(
                f"{started} with workers={self.workers}: start as many processes as should step copies"
            )
        if saving:
            raise ConfigError(
                f"{started} with trajectories: each would save on its own machine; record them in one process"
            )
