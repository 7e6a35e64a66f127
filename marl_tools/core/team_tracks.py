"""`TeamTracks`: who of a team is there, and what is recorded of each, from one cut to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from marl_tools.core.errors import EnvError
from marl_tools.core.spaces import AgentSpaces
from marl_tools.core.team_rows import Taken, TeamRows
from marl_tools.core.tracks import Track
from marl_tools.core.types import AgentID, End

if TYPE_CHECKING:
    from marl_tools.core.wrappers.recorder import EpisodeRecorder

Observations = Mapping[AgentID, Any]
Infos = Mapping[AgentID, Mapping[str, Any]]


class TeamTracks:
    """The open segment of one env: agents join, are recorded step by step, and leave at their own end.

    Steps are kept in `TeamRows` as long as those take them, else in the `Track` of each agent. Who is there, and how the
    others ended, is asked of the `EpisodeBuilder`, so that files and log agree.

    Args:
        recorder: whose steps are recorded.
        capacity: the most steps of a segment.
    """

    def __init__(self, recorder: EpisodeRecorder, capacity: int) -> None:
        self.env, self.builder, self.capacity = recorder, recorder.builder, capacity
        self.live: dict[AgentID, Track] = {}
        self._ended: dict[AgentID, End] = {}
        """Who ended in the open segment, and how."""
        # In this order agents stand in the files, whatever that of the env's dicts.
        agents = getattr(recorder, "possible_agents", None) or ()
        self._tracks = {agent: self._make(agent) for agent in agents}
        self._rows: TeamRows | None = None
        """Where the steps are kept; None: in the track of each."""
        self._latest_rows: TeamRows | None = None
        self._everybody: tuple[AgentID, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        # What is recorded is saved by the process that did; a copy goes on from here.
        self._hand_over()
        return {**self.__dict__, "_ended": {}, "_latest_rows": None}

    @property
    def step_bytes(self) -> int:
        """Memory that one step of the whole team takes."""
        return sum(track.row_bytes for track in self._tracks.values())

    def begin(self, t: int, observations: Observations, infos: Infos) -> None:
        """Start anew, ``t`` steps into the episode, with those that are there and no step before."""
        self._ended.clear()
        self.live = {agent: self._track(agent) for agent in self.builder.live}
        if not self._begin_rows(t, observations, infos):
            for agent in self.live:
                self._join(agent, t, observations, infos)

    def act(self, actions: Mapping[AgentID, Any]) -> None:
        """Note what the agents play next, before the env can change it."""
        if self._rows:
            if self._rows.act(actions):
                return
            self._hand_over()
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
        if self._rows:
            # Nearly every step: all are there as before, or all have come to their end.
            if (not there or live.keys() == there.keys()) and self._rows.add(rewards, observations, infos):
                if not there:
                    self._end_all(self.builder.ends)
                return self._everybody
            self._hand_over()
        if not live.keys() <= actions.keys():
            (agent, *_) = live.keys() - actions.keys()
            raise EnvError(
                f"{self.env.env_name} took a step in which live agent {agent!r} played nothing: pass an action for each"
            )
        for agent, track in live.items():
            if agent in rewards:
                observation = observations.get(agent)
                if observation is None and agent in there:
                    raise self._broken(agent, "no observation")
                track.add(rewards[agent], observation, infos.get(agent))
            elif agent in there:
                raise self._broken(agent, "no reward")
        concerned = tuple(live)
        if live.keys() != there.keys():
            for agent in concerned:
                if agent not in there:
                    self._ended[agent] = self.builder.ends[agent]
                    del live[agent]
            for agent in [agent for agent in there if agent not in live]:
                live[agent] = self._track(agent)
                self._join(agent, self.builder.length, observations, infos, rewards.get(agent))
                concerned = (*concerned, agent)
        return concerned

    def interrupt(self) -> None:
        """Everybody's episode is abandoned here."""
        self._end_all(dict.fromkeys(self.live, "interrupted"))

    def take(self) -> Taken | None:
        """What was recorded since the last cut, if anything was. The next segment begins here."""
        if self._rows:
            taken = self._rows.take(self._ended)
        else:
            concerned = self.live.keys() | self._ended.keys()
            segments = {
                agent: track.take(self._ended.get(agent))
                for agent, track in self._tracks.items()
                if agent in concerned and (track.n or track.arrival)
            }
            taken = (lambda: segments, sum(part.nbytes for part in segments.values())) if segments else None
            for track in self.live.values():
                track.restart()
            if self.live and not any(track.masked for track in self.live.values()):
                seen = {agent: track.obs[0] for agent, track in self.live.items()}
                self._begin_rows(next(iter(self.live.values())).t, seen, {})
        self._ended = {}
        return taken

    def _begin_rows(self, t: int, observations: Observations, infos: Infos) -> bool:
        """Keep what comes in rows, if that can be done."""
        rows = self._latest_rows
        if rows is None or rows.tracks.keys() != self.live.keys():
            tracks = {agent: track for agent, track in self._tracks.items() if agent in self.live}
            rows = self._latest_rows = TeamRows(tracks)
        self._everybody = tuple(self.live)
        self._rows = rows if rows.begin(t, observations, infos) else None
        return self._rows is not None

    def _hand_over(self) -> None:
        """Keep what comes in the tracks."""
        if self._rows:
            self._rows.hand_over()
            self._rows = None

    def _end_all(self, ends: Mapping[AgentID, End]) -> None:
        self._ended.update((agent, ends[agent]) for agent in self.live)
        self.live.clear()

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
        self.live[agent].begin(t, observations[agent], infos.get(agent), arrival)

    def _track(self, agent: AgentID) -> Track:
        if agent not in self._tracks:
            self._tracks[agent] = self._make(agent)
        return self._tracks[agent]

    def _make(self, agent: AgentID) -> Track:
        spaces = AgentSpaces(self.env.observation_space(agent), self.env.action_space(agent))
        return Track(agent, spaces, self.capacity)

    def _broken(self, agent: AgentID, what: str) -> EnvError:
        return EnvError(f"{self.env.env_name} gave live agent {agent!r} {what}")
