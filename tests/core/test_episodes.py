"""A batch of episodes closes into the logs that one builder a world gives."""

import dataclasses

import numpy as np
from hypothesis import given, settings, strategies as st

from marl_tools.core.episodes import EpisodeBatch
from marl_tools.core.history import EpisodeBuilder

AGENTS = ("a", "b", "c")
WORLDS = 4


def plain(logs):
    return [dataclasses.replace(log, wall_time=0.0) for log in logs if log]


class ByBuilders:
    """The same calls, answered by an `EpisodeBuilder` for each world."""

    def __init__(self):
        self.builders = [EpisodeBuilder(env_index=world, split="eval") for world in range(WORLDS)]
        self.live = [[] for _ in range(WORLDS)]

    def start(self, worlds, seeds, t):
        logs = []
        for world, seed in zip(worlds, seeds, strict=True):
            logs.append(self.builders[world].start("env", AGENTS, seed=seed, t=t))
            self.live[world] = list(AGENTS)
        return plain(logs)

    def step(self, rewards, terminated, truncated, costs, notes, t):
        logs = []
        for world, builder in enumerate(self.builders):
            acting = {agent: AGENTS.index(agent) for agent in self.live[world]}
            for key, values in notes[world].items():
                for agent, value in values.items():
                    builder.note(key, agent, value)
            self.live[world] = [
                agent for agent, i in acting.items() if not (terminated[world, i] or truncated[world, i])
            ]
            logs.append(
                builder.step(
                    {agent: rewards[world, i] for agent, i in acting.items()},
                    {agent: terminated[world, i] for agent, i in acting.items()},
                    {agent: truncated[world, i] for agent, i in acting.items()},
                    {agent: {"cost": costs[world, i]} for agent, i in acting.items()},
                    self.live[world],
                    t=t,
                )
            )
        return plain(logs)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.sampled_from([0.02, 0.3]))
def test_it_logs_what_one_builder_a_world_logs(seed, steps, ends):
    rng = np.random.default_rng(seed)
    batch, builders = EpisodeBatch("env", AGENTS, WORLDS, split="eval"), ByBuilders()
    shape, t = (WORLDS, len(AGENTS)), 0

    def start(worlds):
        seeds = rng.integers(1000, size=len(worlds)).tolist()
        return plain(batch.start(worlds, seeds, t=t)), builders.start(worlds.tolist(), seeds, t)

    start(np.arange(WORLDS))
    for _ in range(steps):
        t += WORLDS
        live = batch.live.copy()
        terminated, truncated = ((rng.random(shape) < ends) & live for _ in range(2))
        rewards, costs = (
            np.where(live, rng.normal(size=shape), 0.0),
            np.where(live, rng.random(shape) < 0.2, 0.0),
        )
        notes = [
            {"overrides": {"a": int(rng.integers(2))}, "slack": {"b": float(rng.random())}}
            for _ in range(WORLDS)
        ]
        batch.note(notes)
        logs = plain(batch.step(rewards, terminated, truncated, t=t, costs=costs))
        assert logs == builders.step(rewards, terminated, truncated, costs, notes, t)
        over = {log.env_index for log in logs}
        # At times a world is reset that still runs, also one that has just begun.
        start(np.array(sorted(over), np.int64))
        ours, theirs = start(np.flatnonzero(rng.random(WORLDS) < 0.05))
        assert ours == theirs
    theirs = plain(builder.interrupt(t) for builder in builders.builders)
    assert plain(batch.interrupt(t=t)) == theirs
    assert batch.interrupt(t=t) == []
    assert batch.numbers.tolist() == [builder.episode for builder in builders.builders]


def test_without_costs_none_are_logged_and_none_is_a_violation():
    batch = EpisodeBatch("env", AGENTS, 1)
    batch.start(np.array([0]), [5], t=0)
    everyone = np.ones((1, len(AGENTS)), bool)
    (log,) = batch.step(np.ones((1, 3)), ~everyone, everyone, t=1)
    assert log.costs == dict.fromkeys(AGENTS, 0.0)
    assert not log.violated
    assert log.ends == dict.fromkeys(AGENTS, "truncated")
