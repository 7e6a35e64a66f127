"""Rollouts of slices, joined, against those of one vector env."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import MultiDiscrete
from hypothesis import given, strategies as st

from marl_tools.core.errors import ConfigError, NonFiniteError
from marl_tools.core.factory import EnvFactory
from marl_tools.core.wrappers.recorder import EpisodeRecorder
from marl_tools.experiment.native import slice_envs
from marl_tools.training.batches import Minibatch
from marl_tools.training.ippo import IPPO
from marl_tools.training.ippo_config import IPPOConfig
from marl_tools.training.slices import SlicePlayer, SpreadEnvs
from tests.envs_for_tests import Team, real_env
from tests.experiment.test_resume import settings
from tests.training.test_pipeline import FIELDS
from tests.vector.worker_envs import lives


class SlicesHere(SpreadEnvs):
    """All slices in this process, one after the other."""

    def __init__(self, make_slice: Callable[..., Any], num_envs: int, parts: int) -> None:
        probe = make_slice(range(1), num_envs)
        super().__init__(probe.groups, probe.env_name, num_envs, parts)
        self.vectors = [make_slice(copies, num_envs) for copies in self.slices]

    def _begin(self, seed, steps, state):
        self.players = [
            SlicePlayer(envs, copies, self.num_envs, steps=steps, seed=seed, state=state)
            for envs, copies in zip(self.vectors, self.slices, strict=True)
        ]
        return [envs.state() for envs in self.vectors]

    def _play(self, actors, noise, update):
        return [player.play(actors, own, update) for player, own in zip(self.players, noise, strict=True)]

    def close(self):
        return [log for envs in self.vectors for log in envs.close()]


def masked(env_index: int) -> EpisodeRecorder:
    """Forbids an action in every second copy: the arrays of some slices have masks, those of others none."""

    class Masked(Team):
        def _info(self, agents):
            mask = {"action_mask": np.array([True, False, True])} if env_index % 2 else {}
            return {agent: dict(mask) for agent in agents}

    return EpisodeRecorder(Masked(max_cycles=5), env_index=env_index)


def of(factory: Any, native: bool = False) -> Callable[..., Any]:
    return partial(slice_envs, factory, native=native)


CASES = {
    "births-and-deaths": (of(lives), 7),
    "masks": (of(masked), 4),
    "simple_tag": (of(EnvFactory(make_env=real_env, kwargs={"name": "simple_tag", "max_cycles": 9})), 4),
    "native-game": (of(settings("out").factory(), native=True), 5),
    "native-particles": (of(settings("out", env="simple_tag").factory(), native=True), 5),
}


def played(trainer: IPPO, updates: int) -> tuple[list[dict[str, np.ndarray]], list[Any]]:
    """Every array of some updates' rollouts with the critic's view of them, and the episodes."""
    arrays, episodes = [], []
    for _ in range(updates):
        rollout = trainer.collect()
        for name, group in rollout.groups.items():
            rows = {field: getattr(group, field).copy() for field in FIELDS}
            mask = {} if group.action_mask is None else {"mask": group.action_mask.copy()}
            values, after = group.evaluate(trainer.learners[name].critics["reward"])
            arrays.append({**rows, **mask, "values": values, "after": after[~group.terminated & group.valid]})
        episodes += [dataclasses.replace(log, wall_time=0.0) for log in rollout.episodes]
        trainer.update(rollout)
    return arrays, episodes


def trainer(envs: Any) -> IPPO:
    # No minibatches: the order of a sum would be the only difference, and it is none.
    config = IPPOConfig(rollouts=12, learning_epochs=1, mini_batches=1)
    return IPPO(envs, config, seed=1, total_frames=10_000)


def going_on(from_there: IPPO, envs: Any) -> IPPO:
    """A trainer in other envs that stands where this one does."""
    tensors, state = from_there.state()
    other = trainer(envs)
    other.load({name: tensor.clone() for name, tensor in tensors.items()}, state)
    return other


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_slices_play_together_what_one_vector_env_plays(case, parts):
    make_slice, num_envs = CASES[case]
    whole = trainer(make_slice(range(num_envs), num_envs))
    spread = trainer(SlicesHere(make_slice, num_envs, parts))
    expected, episodes = played(whole, 3)
    got, logs = played(spread, 3)
    assert logs == episodes
    assert len(logs) > 3
    for own, other in zip(expected, got, strict=True):
        assert own.keys() == other.keys()
        for name in own:
            # Networks see a part of the rows at a time, which may move the last bit of a value.
            np.testing.assert_allclose(other[name], own[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert spread.frames == whole.frames
    spread.envs.close()
    whole.envs.close()


@pytest.mark.parametrize("case", CASES)
def test_what_some_slices_began_others_go_on_with(case):
    make_slice, num_envs = CASES[case]
    whole = trainer(make_slice(range(num_envs), num_envs))
    first = trainer(SlicesHere(make_slice, num_envs, 3))
    episodes = played(whole, 4)[1]
    assert played(first, 2)[1] == [log for log in episodes if log.update in (0, 1)]
    second = going_on(first, SlicesHere(make_slice, num_envs, 2))
    assert played(second, 1)[1] == [log for log in episodes if log.update == 2]
    alone = going_on(second, make_slice(range(num_envs), num_envs))
    assert played(alone, 1)[1] == [log for log in episodes if log.update == 3]
    for one in (whole, first, second, alone):
        one.envs.close()


@given(st.integers(0, 50), st.integers(1, 9))
def test_the_parts_of_a_minibatch_are_all_of_it_once(columns, ranks):
    rows = torch.arange(2 * columns).view(2, columns)
    whole = Minibatch(rows, rows.float(), -rows.float())
    parts = [whole.of_rank(rank, ranks) for rank in range(ranks)]
    for name in Minibatch._fields:
        assert torch.equal(torch.cat([getattr(part, name) for part in parts], 1), getattr(whole, name))


def test_a_bad_number_is_told_with_the_copy_of_the_whole_run():
    class Bad(Team):
        def step(self, actions):
            obs, *rest = super().step(actions)
            return {agent: row * np.nan for agent, row in obs.items()}, *rest

    def make_env(env_index):
        return EpisodeRecorder((Bad if env_index == 3 else Team)(max_cycles=5), env_index=env_index)

    spread = trainer(SlicesHere(of(make_env), 5, 2))
    with pytest.raises(NonFiniteError, match="observation of agent 'agent_0' in copy 3 is NaN"):
        spread.collect()
    spread.envs.close()


def test_actions_that_draw_their_own_chance_cannot_be_spread():
    class Choices(Team):
        def action_space(self, agent):
            return MultiDiscrete([2, 3])

    envs = SlicesHere(of(lambda env_index: EpisodeRecorder(Choices(), env_index=env_index)), 2, 2)
    with pytest.raises(ConfigError, match="draw their own chance as they are played: collect them in one"):
        trainer(envs)


def test_neither_a_shield_nor_asynchronous_goes_with_slices():
    envs = SlicesHere(of(lives), 4, 2)
    shield: Any = object()
    for more in ({"shield": shield}, {"asynchronous": True}):
        with pytest.raises(ConfigError, match=r"goes without a shield.*and without asynchronous"):
            IPPO(envs, IPPOConfig(), seed=0, total_frames=100, **more)
