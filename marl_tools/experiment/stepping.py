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
        rollout_actors: Ray actors that play the rollouts, each a slice of the copies; 0: none.
        ray_address: of the cluster they live on, host:port of its head; None: what RAY_ADDRESS says, else this machine.
        on_worker_death: "raise", or "restart" the copies of a worker or rollout actor that died; what a worker's copies
            played is logged as interrupted, a new actor plays the rollout again.
        worker_timeout: seconds that a step or a reset of a worker's copies may take.
        rollout_timeout: seconds that a rollout actor, or another process of a run under torchrun, may take for its part of
            a rollout or an update.
    """

    workers: int = 0
    pipeline: bool = False
    asynchronous: bool = False
    rollout_actors: int = 0
    ray_address: str | None = None
    on_worker_death: Literal["raise", "restart"] = "raise"
    worker_timeout: float = 120.0
    rollout_timeout: float = 600.0

    def __post_init__(self) -> None:
        for name in ("workers", "rollout_actors"):
            at_least(0)(name, getattr(self, name))
        if self.pipeline and self.workers < 2:
            raise ConfigError(
                f"pipeline with workers={self.workers}: it takes turns between two workers or more"
            )
        for name in ("worker_timeout", "rollout_timeout"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)}: must be a positive number of seconds")

    def check(self, *, num_envs: int, native: bool, shielded: bool, saving: bool = False) -> None:
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

        if self.rollout_actors:
            self._check_spread(self.rollout_actors, "rollout actors", num_envs, shielded, saving)

    def check_ranks(self, ranks: int, *, num_envs: int, shielded: bool, saving: bool) -> None:
        """Refuse what does not go together with so many processes under torchrun.

        Raises:
            ConfigError: it says which, and what to leave out.
        """
        if self.rollout_actors:
            raise ConfigError(
                f"rollout_actors={self.rollout_actors} under torchrun: each process plays its own copies; leave one of them out"
            )
        self._check_spread(ranks, "processes under torchrun", num_envs, shielded, saving)

    def _check_spread(self, parts: int, kind: str, num_envs: int, shielded: bool, saving: bool) -> None:
        what = f"{parts} {kind}"
        if parts > num_envs:
            raise ConfigError(f"{what}, but num_envs={num_envs}: each needs a copy of its own")
        if shielded:
            raise ConfigError(f"{what} with a shield: it decides on all copies at once; use one process")
        if self.asynchronous:
            raise ConfigError(f"{what} with asynchronous: they play what is learned from next; leave it out")
        if self.workers:
            raise ConfigError(f"{what} with workers={self.workers}: take more {kind}, and no workers")
        if saving:
            raise ConfigError(
                f"{what} with trajectories: each would save them on its own machine; use one process or workers"
            )
