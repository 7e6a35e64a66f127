"""`TeamTracks`: who of a team is there, and the `Track` of each, from one cut to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from marl_tools.core.errors import EnvError
from marl_tools.core.segments import AgentSegment
from marl_tools.core.spaces import AgentSpaces
from marl_tools.core.tracks import Track
from marl_tools.core.types import AgentID

if TYPE_CHECKING:
    from marl_tools.core.wrappers.recorder import EpisodeRecorder

Observations = Mapping[AgentID, Any]
Infos = Mapping[AgentID, Mapping[str, Any]]


class TeamTracks:
    """The open segment of one env: agents join, are recorded step by step, and leave at their own end.

    Who is there, and how the others ended, is asked of the `EpisodeBuilder`, so that files and log agree.

    Args:
        recorder: whose steps are recorded.
        capacity: the most steps of a segment.
    """

    def __init__(self, recorder: EpisodeRecorder, capacity: int) -> None:
        self.env, self.builder, self.capacity = recorder, recorder.builder, capacity
        self.live: dict[AgentID, Track] = {}
        self._ended: dict[AgentID, Track] = {}
        """Who ended in the open segment."""
        # In this order agents stand in the files, whatever that of the env's dicts.
        agents = getattr(recorder, "possible_agents", None) or ()
        self._tracks = {agent: self._make(agent) for agent in agents}

    def __getstate__(self) -> dict[str, Any]:
        # What is recorded is saved by the process that did; a copy goes on from here.
        return {**self.__dict__, "_ended": {}}

    @property
    def step_bytes(self) -> int:
        """Memory that one step of the whole team takes."""
        return sum(track.row_bytes for track in self._tracks.values())

    def begin(self, t: int, observations: Observations, infos: Infos) -> None:
        """Start anew, ``t`` steps into the episode, with those that are there and no step before."""
        self.live.clear()
        self._ended.clear()
        for agent in self.builder.live:
            self._join(agent, t, observations, infos)

    def act(self, actions: Mapping[AgentID, Any]) -> None:
        """Note what the agents play next, before the env can change it."""
        for agent, track in self.live.items():
            if agent in actions:
                track.act(actions[agent])

    def record(self, actions: Mapping[AgentID, Any], result: Any) -> tuple[AgentID, ...]:
        """Add the step that the builder has just taken in. Returns whom it concerned.

        Raises:
            EnvError: a live agent lacks its action, its reward or its observation.
        """
        observations, rewards, _, _, infos = result
        live, there = self.live, self.builder.live
        if not live.keys() <= actions.keys():
            (agent, *_) = live.keys() - actions.keys()
            raise EnvError(
                f"{self.env.env_name} took a step in which live agent {agent!r} played nothing: pass an action for each"
            )
        for agent, track in live.items():
            if agent in rewards:
                info, observation = infos.get(agent), observations.get(agent)
                # The usual case without a detour, since it is that of every agent at nearly every step.
                if not info and track.plain and getattr(observation, "shape", None) == track.obs_shape:
                    n = track.n
                    track.rew[n] = rewards[agent]
                    track.obs[n + 1] = observation
                    track.n = n + 1
                    continue
                if observation is None and agent in there:
                    raise self._broken(agent, "no observation")
                track.add(rewards[agent], observation, info)
            elif agent in there:
                raise self._broken(agent, "no reward")
        concerned = tuple(live)
        if live.keys() != there.keys():
            for agent in concerned:
                if agent not in there:
                    track = self._ended[agent] = live.pop(agent)
                    track.end = self.builder.ends[agent]
            for agent in [agent for agent in there if agent not in live]:
                self._join(agent, self.builder.length, observations, infos, rewards.get(agent))
                concerned = (*concerned, agent)
        return concerned

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
        self,
        agent: AgentID,
        t: int,
        observations: Observations,
        infos: Infos,
        arrival: float | None = None,
    ) -> None:
        if agent not in observations:
            raise self._broken(agent, "no observation")
        if agent not in self._tracks:
            self._tracks[agent] = self._make(agent)
        track = self.live[agent] = self._tracks[agent]
        track.begin(t, observations[agent], infos.get(agent), arrival)

    def _make(self, agent: AgentID) -> Track:
        spaces = AgentSpaces(self.env.observation_space(agent), self.env.action_space(agent))
        return Track(agent, spaces, self.capacity)

    def _broken(self, agent: AgentID, what: str) -> EnvError:
        return EnvError(f"{self.env.env_name} gave live agent {agent!r} {what}")
