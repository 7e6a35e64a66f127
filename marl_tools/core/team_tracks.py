"""`TeamTracks`: who of a team is there, and the `Track` of each, from one cut to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from marl_tools.core.errors import EnvError
from marl_tools.core.segments import AgentSegment
from marl_tools.core.spaces import AgentSpaces
from marl_tools.core.tracks import Track
from marl_tools.core.types import AgentID

Observations = Mapping[AgentID, Any]
Infos = Mapping[AgentID, Mapping[str, Any]]


class TeamTracks:
    """The open segment of one env: agents join, are recorded step by step, and leave at their own end.

    The same agents count as there, step for step, as in the `EpisodeBuilder`'s log.

    Args:
        env: tells the agents' spaces and, in errors, its name.
        capacity: the most steps of a segment.
    """

    def __init__(self, env: Any, capacity: int) -> None:
        self.env, self.capacity = env, capacity
        self.live: dict[AgentID, Track] = {}
        self._ended: dict[AgentID, Track] = {}
        """Who ended in the open segment."""
        self._gone: set[AgentID] = set()
        # In this order agents stand in the files, whatever that of the env's dicts.
        self._tracks = {agent: self._make(agent) for agent in getattr(env, "possible_agents", None) or ()}

    def __getstate__(self) -> dict[str, Any]:
        # What is recorded is saved by the process that did; a copy goes on from here.
        return {**self.__dict__, "_ended": {}}

    @property
    def step_bytes(self) -> int:
        """Memory that one step of the whole team takes."""
        return sum(track.row_bytes for track in self._tracks.values())

    def begin(self, agents: Iterable[AgentID], observations: Observations, infos: Infos) -> None:
        """A reset: these agents are there."""
        self.live.clear()
        self._ended.clear()
        self._gone.clear()
        for agent in agents:
            self._join(agent, observations, infos)

    def begin_again(self, agents: Iterable[AgentID], observations: Observations, infos: Infos) -> None:
        """Go on in the middle of an episode without the step before, with those of the agents whose end is not known."""
        self.live.clear()
        for agent in agents:
            if agent not in self._gone:
                self._join(agent, observations, infos)

    def act(self, actions: Mapping[AgentID, Any]) -> None:
        """Note what the agents play next, before the env can change it."""
        for agent, track in self.live.items():
            if agent in actions:
                track.act(actions[agent])

    def record(
        self, t: int, actions: Mapping[AgentID, Any], result: Any, agents: Iterable[AgentID]
    ) -> tuple[AgentID, ...]:
        """Add the step made ``t`` steps into the episode; ``agents`` are those left after it. Returns whom it concerned.

        Raises:
            EnvError: a live agent lacks its action, its reward or its observation.
        """
        observations, rewards, terminations, truncations, infos = result
        remaining, concerned, leaving = set(agents), list(self.live), []
        for agent, track in self.live.items():
            stays = agent in remaining
            if agent not in rewards:
                if stays:
                    raise self._broken(agent, "no reward")
                track.end = "truncated"
                leaving.append(agent)
                continue
            if agent not in actions:
                raise self._broken(
                    agent, "a reward, but it played nothing: pass an action for each live agent"
                )
            observation, info = observations.get(agent), infos.get(agent)
            terminated = terminations.get(agent, False)
            if terminated or truncations.get(agent, False) or not stays:
                # An agent that left without a flag is cut off, not dead: the log says the same.
                capped = info is not None and info.get("capped", False)
                track.end = "terminated" if terminated else "capped" if capped else "truncated"
                leaving.append(agent)
            elif observation is None:
                raise self._broken(agent, "no observation")
            track.add(t, rewards[agent], observation, info)
        for agent in leaving:
            self._ended[agent] = self.live.pop(agent)
            self._gone.add(agent)
        if len(remaining) > len(self.live):
            for agent in agents:
                if agent not in self.live and agent not in self._gone:
                    self._join(agent, observations, infos, rewards.get(agent))
                    concerned.append(agent)
        return tuple(concerned)

    def interrupt(self) -> None:
        """Everybody's episode is abandoned here."""
        for agent, track in self.live.items():
            track.end = "interrupted"
            self._ended[agent] = track
        self.live.clear()

    def take(self) -> dict[AgentID, AgentSegment]:
        """What was recorded since the last cut, of those to whom anything happened. The next segment begins here."""
        tracks = {**self.live, **self._ended}
        segments = {
            agent: track.take()
            for agent in self._tracks
            if (track := tracks.get(agent)) and (track.n or track.arrival)
        }
        self._ended.clear()
        for track in self.live.values():
            track.restart()
        return segments

    def _join(
        self, agent: AgentID, observations: Observations, infos: Infos, arrival: float | None = None
    ) -> None:
        if agent not in observations:
            raise self._broken(agent, "no observation")
        if agent not in self._tracks:
            self._tracks[agent] = self._make(agent)
        track = self.live[agent] = self._tracks[agent]
        track.begin(observations[agent], infos.get(agent), arrival)

    def _make(self, agent: AgentID) -> Track:
        spaces = AgentSpaces(self.env.observation_space(agent), self.env.action_space(agent))
        return Track(agent, spaces, self.capacity)

    def _broken(self, agent: AgentID, what: str) -> EnvError:
        return EnvError(f"{self.env.env_name} gave live agent {agent!r} {what}")
