"""Rollouts on a Ray cluster: each actor holds a slice of the copies and of the policies a copy, and plays whole rollouts."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from marl_tools.core.cluster import Cluster, WorkerLostError
from marl_tools.core.errors import WorkerError
from marl_tools.core.logging import log
from marl_tools.core.placement import Resources
from marl_tools.core.spaces import AgentGroup
from marl_tools.core.types import EpisodeLog, VectorEnv
from marl_tools.models.networks import ActorCritic
from marl_tools.training.actor import LaneActor
from marl_tools.training.contracts import Actor
from marl_tools.training.rollout import Noise
from marl_tools.training.slices import Part, SlicePlayer, SpreadEnvs

MakeSlice = Callable[[range, int], VectorEnv]
"""Builds the envs of some copies of so many, where it is called."""
Weights = dict[str, dict[str, NDArray[Any]]]
"""Of each group, what the network's ``state_dict`` holds."""

_BIRTH_SECONDS, _CLOSING_SECONDS = 600.0, 5.0
"""For an actor to find a place, start and build its envs; and for it to close them."""


class SliceProcess:
    """What lives in an actor's process. Its calls build the envs, not its birth, so that what they raise is told as it is."""

    def begin(self, make_slice: MakeSlice, copies: range, total: int, **how: Any) -> dict[str, Any]:
        """Build the copies and a `SlicePlayer` of theirs; returns their state."""
        torch.set_num_threads(1)
        self._actors: dict[str, LaneActor] = {}
        self._player = SlicePlayer(make_slice(copies, total), copies, total, **how)
        return self._player.envs.state()

    def meet(self, networks: Mapping[str, tuple[AgentGroup, ActorCritic]]) -> None:
        """Take in the policies of all groups; their weights come with each rollout."""
        self._actors = {
            name: LaneActor(group, network, torch.Generator()) for name, (group, network) in networks.items()
        }

    def play(self, weights: Weights, noise: Noise, update: int | None) -> Part:
        for name, actor in self._actors.items():
            state = {key: torch.from_numpy(np.array(value)) for key, value in weights[name].items()}
            actor.network.load_state_dict(state)
        return self._player.play(self._actors, noise, update)

    def close(self) -> None:
        self._player.envs.close()


class ActorEnvs(SpreadEnvs):
    """The copies of a run in slices, one an actor.

    Args:
        make_slice: builds the envs of a slice, in the actor's process; of a single copy also here, for its spaces.
        num_envs: copies in all slices together.
        actors: how many.
        cluster: they live on.
        timeout: seconds that an actor may take for a rollout.
        on_death: "raise", or "restart": a new actor takes the place of one that was lost or hangs and plays the rollout again.

    Raises:
        WorkerError: from `begin` and `play`, an actor was lost or hangs; it and its copies are named.

    What an env raises over there is raised here, with the traceback as a note.
    """

    def __init__(
        self,
        make_slice: MakeSlice,
        num_envs: int,
        actors: int,
        *,
        cluster: Cluster,
        timeout: float,
        on_death: Literal["raise", "restart"] = "raise",
    ) -> None:
        probe = make_slice(range(1), num_envs)
        try:
            super().__init__(probe.groups, probe.env_name, num_envs, actors)
            self.envs = getattr(probe, "envs", [])[:1]
        finally:
            probe.close()
        self._make_slice, self._cluster, self._stack = make_slice, cluster, ExitStack()
        self._timeout, self._on_death = timeout, on_death
        self._handles: list[Any] = [self._new() for _ in self.slices]
        self._met = False

    def owns(self, stack: ExitStack) -> None:
        """Leave a cluster, or whatever else ``stack`` holds, after `close`."""
        self._stack = stack

    def _new(self) -> Any:
        return self._cluster.actor(SliceProcess, resources=Resources(cpus=1), spread=True)

    def _begin(self, seed: int, steps: int, state: Mapping[str, Any] | None) -> Sequence[dict[str, Any]]:
        self._how = {"seed": seed, "steps": steps}
        calls = [self._start(index, state) for index in range(len(self.slices))]
        return self._results(calls, timeout=_BIRTH_SECONDS)

    def _start(self, index: int, state: Mapping[str, Any] | None) -> Any:
        begin = self._handles[index].begin.remote
        return begin(self._make_slice, self.slices[index], self.num_envs, state=state, **self._how)

    def _play(self, actors: Mapping[str, Actor], noise: Sequence[Noise], update: int | None) -> list[Part]:
        leaders = {name: actor for name, actor in actors.items() if isinstance(actor, LaneActor)}
        weights = {
            name: {key: value.numpy() for key, value in leader.network.state_dict().items()}
            for name, leader in leaders.items()
        }

        def play(index: int) -> Any:
            return self._handles[index].play.remote(weights, noise[index], update)

        if not self._met:
            self._networks = {
                name: (leader.group, copy.deepcopy(leader.network)) for name, leader in leaders.items()
            }
            calls = [handle.meet.remote(self._networks) for handle in self._handles]
            self._results(calls, timeout=self._timeout)
            self._met = True
        calls = [play(index) for index in range(len(self.slices))]
        return self._results(calls, timeout=self._timeout, again=play)

    def _results(
        self, calls: list[Any], *, timeout: float, again: Callable[[int], Any] | None = None
    ) -> list[Any]:
        """What a call of each actor returned; with ``again`` one that was lost may be replaced, and called again by it."""
        deadline = time.monotonic() + timeout
        results = []
        for index, call in enumerate(calls):
            try:
                results.append(self._cluster.result(call, timeout=max(0.0, deadline - time.monotonic())))
            except (WorkerLostError, TimeoutError) as error:
                if again is None or self._on_death == "raise":
                    raise self._lost(index, error, timeout) from error
                results.append(self._replaced(index, error, again))
        return results

    def _replaced(self, index: int, error: Exception, again: Callable[[int], Any]) -> Any:
        lost = self._lost(index, error, self._timeout)
        log(f"{lost}; another one plays its rollout again", type="ray", priority="WARNING")
        self._cluster.kill(self._handles[index])
        self._handles[index] = self._new()
        try:
            # What all copies stood at after the rollout before is known here: no step of them is lost.
            self._cluster.result(self._start(index, self._state), timeout=_BIRTH_SECONDS)
            self._cluster.result(self._handles[index].meet.remote(self._networks), timeout=self._timeout)
            return self._cluster.result(again(index), timeout=self._timeout)
        except (WorkerLostError, TimeoutError) as second:
            raise self._lost(index, second, self._timeout) from second

    def _lost(self, index: int, error: Exception, timeout: float) -> WorkerError:
        copies = self.slices[index]
        what = (
            f"did not answer for {timeout:g} s (is there a CPU for it? --rollout-timeout says how long a rollout may take)"
            if isinstance(error, TimeoutError)
            else f"was lost: {error}"
        )
        return WorkerError(
            f"rollout actor {index} with copies {copies.start} to {copies.stop - 1} of {self.env_name} {what}"
        )

    def close(self) -> list[EpisodeLog]:
        """Close the copies where they are, end the actors, leave the cluster; nobody is waited for for long."""
        handles, self._handles = self._handles, []
        try:
            if handles:
                calls = [handle.close.remote() for handle in handles]
                with suppress(Exception):
                    self._cluster.ready(calls, timeout=_CLOSING_SECONDS, count=len(calls))
            for handle in handles:
                self._cluster.kill(handle)
        finally:
            self._stack.close()
        return []
