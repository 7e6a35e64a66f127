"""Asynchronous collection: while the policies learn from one rollout, the next one is played in a thread.

What is played follows from the schedule, never from timing: rollout n + 1 is that of the policies that update n began with.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marl_tools.core.types import EnvCopies, EpisodeLog
from marl_tools.training.actor import LaneActor
from marl_tools.training.rollout import Collector, Rollout


class _Stopped(Exception):
    """Raised where actions are asked for, once nobody wants the rollout any more."""


class _Follower(LaneActor):
    """Acts as another actor did when `follow` was called last, whatever that one has learnt since."""

    def __init__(self, leader: LaneActor, stopping: threading.Event) -> None:
        # Passes keep what lies between their layers: two threads cannot share any.
        super().__init__(leader.group, copy.deepcopy(leader.network), leader.generator)
        self._leader, self._stopping = leader, stopping

    def follow(self) -> None:
        self.network.load_state_dict(self._leader.network.state_dict())

    def act(
        self,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None,
        noise: NDArray[np.float32] | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        if self._stopping.is_set():
            raise _Stopped("the update that this rollout was played beside has failed or was interrupted")
        return super().act(obs, mask, noise)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a rollout begins: what to collect it again from."""

    frames: int
    envs: dict[str, Any] | None
    generator: Tensor

    @classmethod
    def of(cls, envs: EnvCopies, generator: torch.Generator, *, begun: bool = True) -> Start:
        """That of a rollout that would begin now; ``begun``: envs have been reset before."""
        return cls(envs.frames, envs.state() if begun else None, generator.get_state())


class OverlappedCollector:
    """Plays rollouts with a `Collector`, the next one while an update runs: see `beside`.

    Outside of `beside` nothing is played, so whatever else needs envs, cores or log files has them for itself. There are two
    rollouts, which take turns: one is valid until the next but one is begun.

    Args:
        collector: of the envs; without a guard, whose tables belong to the newest policies.
        leaders: whose policies act, by group.
        generator: what their actions are drawn from, and nothing else.
        acted: updates that the policies which act have learnt from so far.
    """

    def __init__(
        self,
        collector: Collector,
        leaders: Mapping[str, LaneActor],
        generator: torch.Generator,
        *,
        acted: int = 0,
    ) -> None:
        self._collector, self._generator, self.acted = collector, generator, acted
        self._stopping = threading.Event()
        self._actors = {name: _Follower(leader, self._stopping) for name, leader in leaders.items()}
        self._spare = Rollout.empty(collector.envs, collector.steps)
        self._on_episode: Callable[[EpisodeLog], None] | None = None
        self._begun: tuple[Start, Future[Rollout]] | None = None

    @property
    def start(self) -> Start:
        """Where the rollout begins that `collect` gives next, also if it has been played already."""
        return self._begun[0] if self._begun else Start.of(self._collector.envs, self._generator)

    @property
    def frames(self) -> int:
        """Env steps of the rollouts that were given so far."""
        return self._begun[0].frames if self._begun else self._collector.envs.frames

    def collect(self, update: int, on_episode: Callable[[EpisodeLog], None] | None = None) -> Rollout:
        """The rollout that this update learns from; what went wrong while it was played is raised here.

        ``on_episode`` also gets each episode of what is played ahead, when it ends, in the thread that plays.
        """
        self._on_episode = on_episode
        if self._begun is None:
            return self._play(update)
        played, self._begun = self._begun[1], None
        return played.result()

    @contextmanager
    def beside(self, update: int, *, ahead: bool = True) -> Iterator[None]:
        """Play the rollout of the update after this one while the block runs; both have ended when it is left.

        From now on the policies act as they are when the block is entered. Where the block raises, a Ctrl-C among it, playing
        stops at the next step.

        Args:
            update: that the block is.
            ahead: whether there will be another one; otherwise nothing is played.
        """
        for actor in self._actors.values():
            actor.follow()
        self.acted = update
        if not ahead:
            yield
            return
        played: Future[Rollout] = Future()
        self._begun = Start.of(self._collector.envs, self._generator), played
        # A daemon: an env that hangs must not keep a process from ending.
        thread = threading.Thread(
            target=self._play_for, args=(played, update + 1), name="collector", daemon=True
        )
        try:
            thread.start()
            yield
            wait([played])
        except BaseException:
            self._stopping.set()
            # A Ctrl-C may have come before the thread did.
            if thread.ident is not None:
                wait([played])
            raise

    def _play_for(self, played: Future[Rollout], update: int) -> None:
        try:
            played.set_result(self._play(update))
        except BaseException as error:
            played.set_exception(error)

    def _play(self, update: int) -> Rollout:
        collector = self._collector
        collector.rollout, self._spare = self._spare, collector.rollout
        rollout = collector.collect(self._actors, self._on_episode, update=update)
        rollout.lag = update - self.acted
        return rollout

    def acting(self) -> dict[str, Tensor]:
        """The weights that act, "<group>/acting/<name>"."""
        return {
            f"{name}/acting/{key}": value
            for name, actor in self._actors.items()
            for key, value in actor.network.state_dict().items()
        }

    def load(self, acting: Mapping[str, Mapping[str, Tensor]], acted: int) -> None:
        """Let each group act by these weights, which have learnt from so many updates."""
        for name, tensors in acting.items():
            self._actors[name].network.load_state_dict(tensors)
        self.acted = acted
