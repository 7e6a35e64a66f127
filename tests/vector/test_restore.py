"""Vector envs that stand where they stood: what comes after `restore` is what would have come anyway."""

import json

import numpy as np
import pytest
from gymnasium.spaces import Box
from hypothesis import given, strategies as st

from marl_tools.core.errors import ConfigError
from marl_tools.core.factory import EnvFactory
from marl_tools.envs.tasks import find_task
from marl_tools.experiment.native import native_envs
from marl_tools.training.checkpoint import load_checkpoint, save_checkpoint
from marl_tools.vector import SerialVectorEnv
from marl_tools.vector.tape import ActionTape
from marl_tools.vector.workers import WorkerVectorEnv
from tests.envs_for_tests import Team

SEED = 11


def factory(name):
    task = find_task(name)
    return EnvFactory(make_env=task.make_env, kwargs=task.kwargs_for(None), env_name=task.name)


TEAM = EnvFactory(
    make_env=Team,
    kwargs={"max_cycles": 9, "deaths": {"agent_1": 4}, "births": {"agent_2": 3}},
    env_name="team",
)
MAKERS = {
    "team": lambda: SerialVectorEnv(TEAM, 3),
    "capped tag": lambda: SerialVectorEnv(EnvFactory(make_env="mpe2.simple_tag_v3:parallel_env", cap=7), 2),
    "game": lambda: native_envs(factory("crossing"), 3),
    "particles": lambda: native_envs(factory("simple_tag"), 3),
    "speakers": lambda: native_envs(factory("simple_speaker_listener"), 3),
    "workers": lambda: WorkerVectorEnv(TEAM, 3, 2),
}


def actions(envs, chance):
    """Random actions for everyone, as a policy would give them."""
    played = {}
    for group in envs.groups:
        spaces, rows = group.spaces, (envs.num_envs, len(group.agents))
        high = spaces.action_dim if spaces.action_type == "discrete" else 2
        played[group.name] = chance.integers(0, high, (*rows, *spaces.action_shape)).astype(
            spaces.action_dtype
        )
    return played


def notes(envs):
    first = envs.groups[0].agents[0]
    return [{"overrides": {first: 1}, "bound": {first: 0.25}} for _ in range(envs.num_envs)]


def trace(envs, chance, steps):
    """Everything that a learner and a log get to see, as text."""
    seen = []
    for _ in range(steps):
        step = envs.step(actions(envs, chance), notes(envs))
        for name, group in step.groups.items():
            arrays = (
                group.obs,
                group.active,
                group.rewards,
                group.terminated,
                group.truncated,
                group.final_obs,
            )
            seen.append(
                (name, *(array.tolist() for array in arrays), np.nan_to_num(group.costs, nan=-1).tolist())
            )
        seen.append([key.hex() for key in step.keys or ()])
        seen += [{**log.to_json(), "wall_time": 0} for log in step.episodes]
    return json.dumps(seen)


@pytest.mark.parametrize("kind", MAKERS)
def test_what_comes_after_is_what_would_have_come(tmp_path, kind):
    old, chance = MAKERS[kind](), np.random.default_rng(0)
    try:
        old.reset(SEED)
        trace(old, chance, 20)
        save_checkpoint(tmp_path / "a.safetensors", {}, {"envs": old.state()})
        new = MAKERS[kind]()
        try:
            step = new.restore(SEED, load_checkpoint(tmp_path / "a.safetensors")[1]["envs"])
            assert (step.lost, step.episodes, new.frames) == (None, [], old.frames)
            assert new.episodes_started == old.episodes_started
            later = chance.bit_generator.state
            after = trace(old, chance, 30)
            chance.bit_generator.state = later
            assert trace(new, chance, 30) == after
        finally:
            new.close()
    finally:
        old.close()


def test_workers_and_a_single_process_can_take_over_from_each_other():
    serial, chance = MAKERS["team"](), np.random.default_rng(0)
    serial.reset(SEED)
    trace(serial, chance, 15)
    workers = MAKERS["workers"]()
    try:
        workers.restore(SEED, serial.state())
        again = MAKERS["team"]()
        again.restore(SEED, workers.state())
        later = chance.bit_generator.state
        traces = []
        for envs in (serial, workers, again):
            chance.bit_generator.state = later
            traces.append(trace(envs, chance, 20))
        assert traces[0] == traces[1] == traces[2]
    finally:
        workers.close()


def test_a_state_may_be_taken_before_any_step_and_taking_it_changes_nothing():
    old, new = MAKERS["team"](), MAKERS["team"]()
    old.reset(SEED)
    new.restore(SEED, old.state())
    chance, same = np.random.default_rng(1), np.random.default_rng(1)
    for _ in range(3):
        old.state()
        assert trace(old, chance, 4) == trace(new, same, 4)


@pytest.mark.parametrize("kind", ["team", "game"])
def test_a_state_of_another_number_of_copies_is_refused(kind):
    envs = MAKERS[kind]()
    envs.reset(SEED)
    other = SerialVectorEnv(TEAM, 2) if kind == "team" else native_envs(factory("crossing"), 2)
    with pytest.raises(ConfigError, match="use the num_envs"):
        other.restore(SEED, envs.state())


@pytest.mark.parametrize("what", ["observation", "return", "seed", "too long"])
def test_an_episode_that_plays_differently_is_given_up_and_logged_as_interrupted(what, capsys):
    old, new, chance = MAKERS["team"](), MAKERS["team"](), np.random.default_rng(0)
    old.reset(SEED)
    trace(old, chance, 11)
    state = old.state()
    copy = state["copies"][1]
    if what == "observation":
        copy["checksum"] += 1
    elif what == "return":
        copy["builder"]["returns"]["agent_0"] += 1
    elif what == "seed":
        copy["builder"]["seed"] += 1
    else:
        copy["actions"] = None
    step = new.restore(SEED, state)
    assert step.lost.tolist() == [False, True, False]
    (log,) = step.episodes
    assert (log.env_index, log.episode, log.length, log.t_end, log.interrupted) == (1, 1, 2, 33, True)
    assert log.overrides == {"agent_0": 2}
    assert [env.builder.episode for env in new.envs] == [1, 2, 1]
    assert [env.builder.length for env in new.envs] == [2, 0, 2]
    assert "1 running episodes of team did not play again" in capsys.readouterr().err
    assert new.frames == 33
    assert {env.clock.frames for env in new.envs} == {33}


class Pictures(Team):
    """Observes large pictures, a corner of which is not what it was the last time, in every episode or in the first only."""

    changing, resets = True, 0

    def __init__(self):
        super().__init__(1, max_cycles=99)
        self._spaces = {"agent_0": Box(0, 255, (200, 200, 3), np.uint8)}

    def reset(self, seed=None, options=None):
        Pictures.resets += 1
        return super().reset(seed, options)

    def _observe(self, agents):
        picture = np.full((200, 200, 3), self.t, np.uint8)
        picture[-1, -1] = Pictures.resets if self.changing else 0
        return dict.fromkeys(agents, picture)


@pytest.mark.parametrize("changing", [True, False])
def test_large_observations_are_compared_whole_though_only_a_part_of_each_is_looked_at(monkeypatch, changing):
    monkeypatch.setattr(Pictures, "changing", changing)
    old, new = (SerialVectorEnv(EnvFactory(make_env=Pictures, env_name="pictures"), 1) for _ in range(2))
    old.reset(SEED)
    trace(old, np.random.default_rng(0), 2)
    step = new.restore(SEED, old.state())
    assert (step.lost is not None) == changing


@given(st.lists(st.sets(st.integers(0, 2)), min_size=1, max_size=12), st.integers(0, 12))
def test_a_tape_holds_the_actions_of_running_episodes_and_no_others(begins, refill_at):
    """``begins[t]``: the copies whose episode starts before step t."""
    tape, expected = ActionTape(3), [[], [], []]
    for t, starting in enumerate(begins):
        for copy in starting:
            tape.start(copy)
            expected[copy] = []
        tape.add({"group": np.array([10 * t, 10 * t + 1, 10 * t + 2])})
        for copy in range(3):
            expected[copy].append(10 * t + copy)
        if t == refill_at:
            kept, tape = tape.episodes(), ActionTape(3)
            tape.refill(kept)
        held = [played["group"].tolist() for played in tape.episodes()]
        assert held == expected


def test_a_tape_keeps_a_bounded_past(monkeypatch):
    monkeypatch.setattr("marl_tools.vector.tape.LONGEST", 3)
    tape = ActionTape(2)
    for t in range(5):
        if t == 3:
            tape.start(1)
        tape.add({"group": np.array([t, t])})
    endless, short = tape.episodes()
    assert endless is None
    assert short["group"].tolist() == [3, 4]
