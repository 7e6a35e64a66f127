"""`EnvCopy`: one copy of an env, whose episodes are played into one row of the arrays of a vector env."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import EnvError
from marl_tools.core.logging import log
from marl_tools.core.types import AgentID
from marl_tools.core.wrappers.base import env_layers
from marl_tools.core.wrappers.recorder import EpisodeRecorder
from marl_tools.core.wrappers.trajectories import TrajectoryRecorder
from marl_tools.vector.buffers import GroupBuffer

_WINDOW = 2**16
"""Of larger observations, as images are, so many bytes a step go into a checksum, the next ones at each step."""

Infos = dict[AgentID, dict[str, Any]]
Joint = dict[AgentID, Any]


class EnvCopy:
    """One env, an `EpisodeRecorder` outermost, and its row in the arrays of each group.

    Args:
        env: the env.
        index: its number among all copies of the run.
        row: its row in the arrays.
        buffers: the arrays of each group.

    Attributes:
        live, ended: the agents that are there, and those that were and are no more.
        infos: those that came with the observations to act on.
        key: of the state to act on; None where the env has no ``state_key()``.
        checksum: of what was observed in the running episode.
    """

    def __init__(self, env: EpisodeRecorder, index: int, row: int, buffers: Sequence[GroupBuffer]) -> None:
        self.env, self.index, self._row, self._buffers = env, index, row, tuple(buffers)
        # Where an agent's row is, walked at every step.
        self.agents = [
            (agent, buffer, place) for buffer in buffers for place, agent in enumerate(buffer.group.agents)
        ]
        self._known = {agent for agent, _, _ in self.agents}
        self._state_key = getattr(env, "state_key", None)
        self._saving = [layer for layer in env_layers(env) if isinstance(layer, TrajectoryRecorder)]
        self.live: set[AgentID] = set()
        self.ended: set[AgentID] = set()
        self.infos: Infos = {}
        self.key: bytes | None = None
        self.checksum = 0
        rows = [buffer.obs[row] for buffer in self._buffers]
        self._seen = [memoryview(array).cast("B") for array in rows if array.nbytes]

    @property
    def keyed(self) -> bool:
        """Whether the env has a ``state_key()``."""
        return self._state_key is not None

    def start(self, seed: int) -> None:
        """Begin an episode."""
        env, row = self.env, self._row
        try:
            obs, infos = env.reset(seed=seed)
            live = set(env.agents)
            self._refuse_unknown(live)
            if not live:
                raise EnvError(f"{env.env_name} has no agents after its reset")
            for agent, buffer, place in self.agents:
                if agent in live:
                    self._observe(agent, buffer, place, obs, infos.get(agent))
                else:
                    buffer.retire(row, place)
                    # Else whoever is born later would stand there as in the episode before.
                    buffer.obs[row, place] = 0
        except Exception as error:
            error.add_note(f"in copy {self.index} of {env.env_name}, at reset(seed={seed})")
            raise
        self.infos, self.live, self.ended, self.checksum = infos, live, set(), 0
        self._look()

    def step(self, joint: Joint) -> None:
        """Play one step, with an action for each live agent."""
        number = self.env.builder.length + 1
        try:
            self._play(joint)
        except Exception as error:
            error.add_note(
                f"in copy {self.index} of {self.env.env_name}, episode seed {self.env.builder.seed}, step {number}"
            )
            raise
        self._look()

    def _look(self) -> None:
        for seen in self._seen:
            if len(seen) > _WINDOW:
                start = self.env.builder.length * _WINDOW % len(seen)
                seen = seen[start : start + _WINDOW]
            self.checksum = zlib.crc32(seen, self.checksum)
        if self._state_key is not None:
            self.key = self._state_key()

    def _play(self, joint: Joint) -> None:
        env, row, live, ended = self.env, self._row, self.live, self.ended
        obs, rewards, terminations, truncations, infos = env.step(joint)
        remaining = set(env.agents)
        # At most steps nobody comes, leaves or ends, and then there is less to ask.
        changed = remaining != live or any(terminations.values()) or any(truncations.values())
        if changed:
            self._refuse_unknown(remaining)
        for agent, buffer, place in self.agents:
            if agent in live:
                if agent not in rewards:
                    raise EnvError(f"{env.env_name} gave no reward for live agent {agent!r}")
                info = infos.get(agent)
                buffer.rewards[row, place] = rewards[agent]
                if info:
                    buffer.costs[row, place] = info.get("cost", np.nan)
                terminated = changed and bool(terminations.get(agent))
                if terminated or (changed and (truncations.get(agent) or agent not in remaining)):
                    # An agent that left without a flag is cut off, not dead: it bootstraps.
                    buffer.terminated[row, place], buffer.truncated[row, place] = terminated, not terminated
                    buffer.end(row, place, obs.get(agent))
                    live.discard(agent)
                    ended.add(agent)
                    continue
            elif changed and agent in remaining and agent not in ended:
                live.add(agent)
                info = infos.get(agent)
            else:
                continue
            self._observe(agent, buffer, place, obs, info)
        self.infos = infos

    def _observe(
        self,
        agent: AgentID,
        buffer: GroupBuffer,
        place: int,
        obs: Mapping[AgentID, Any],
        info: Mapping[str, Any] | None,
    ) -> None:
        """Take in the observation, and the mask if there is one, that an agent acts on next."""
        if agent not in obs:
            raise EnvError(f"{self.env.env_name} gave no observation for live agent {agent!r}")
        if buffer.spaces.masked:
            mask = obs[agent]["action_mask"]
        else:
            mask = info.get("action_mask") if info else None
        buffer.observe(self._row, place, obs[agent], mask)

    def _refuse_unknown(self, agents: set[AgentID]) -> None:
        if unknown := agents - self._known:
            raise EnvError(
                f"agent {sorted(unknown)[0]!r} is not among the possible_agents: {', '.join(sorted(self._known))}"
            )

    def state(self, played: Mapping[str, NDArray[Any]] | None) -> dict[str, Any]:
        """All that `rebuild` needs; ``played`` are the actions (L, A, ...) per group of the running episode.

        Raises:
            OSError: what was recorded before cannot be written; see `sync`.
        """
        self.sync()
        return {
            "builder": self.env.builder.state(),
            "frames_by_env": dict(self.env.clock.frames_by_env),
            "actions": played,
            "checksum": self._whole_checksum(),
        }

    def _whole_checksum(self) -> int:
        """With all of the observations to act on in it."""
        checksum = self.checksum
        for seen in self._seen:
            checksum = zlib.crc32(seen, checksum)
        return checksum

    def sync(self) -> None:
        """Wait until the trajectories of all that was played are on disk, but for the open segment.

        Whoever goes on from a `state` relies on it: the episodes before are not played again.

        Raises:
            OSError: with the folder and the remedy.
        """
        for recorder in self._saving:
            recorder.sync()

    def rebuild(self, state: Mapping[str, Any]) -> bool:
        """Play the running episode of `state` again; whether everything was as it was then."""
        told, builder = state["builder"], self.env.builder
        if state["actions"] is None:
            return False
        builder.resume(told["episode"])
        self.env.clock.frames = told["t_start"]
        try:
            self.start(told["seed"])
            for joint in self._joint_actions(state["actions"]):
                self.step({agent: joint[agent] for agent, _, _ in self.agents if agent in self.live})
        # An env that does not play alike may as well break.
        except Exception as error:
            log(f"copy {self.index}: {error!r}", type="resume", priority="WARNING")
            return False
        if self._whole_checksum() != state["checksum"] or not builder.agrees(told):
            return False
        builder.load(told)
        return True

    def _joint_actions(self, played: Mapping[str, NDArray[Any]]) -> list[Joint]:
        """Per step the actions of all agents, as the env takes them."""
        columns: dict[AgentID, list[Any]] = {}
        for buffer in self._buffers:
            if buffer.name in played:
                for place, agent in enumerate(buffer.group.agents):
                    columns[agent] = buffer.spaces.to_env(played[buffer.name][:, place])
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
