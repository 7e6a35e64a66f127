"""Rollouts in a pipeline against the same ones played whole, and what is learned from steps that were lost."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest

from marl_tools.core.errors import ConfigError
from marl_tools.core.factory import EnvFactory
from marl_tools.training.ippo import IPPO, IPPOConfig
from marl_tools.training.rollout import Collector
from marl_tools.vector import SerialVectorEnv, WorkerVectorEnv
from tests.envs_for_tests import real_env
from tests.vector.worker_envs import LIVES, lives, troubled

FIELDS = ("obs", "actions", "rewards", "costs", "terminated", "ended", "valid", "last_obs")


def learn(envs: Any, updates: int = 2) -> tuple[list[dict[str, np.ndarray]], list[Any], list[Any]]:
    """Every array of some updates' rollouts, the figures of the updates, and the episodes."""
    config = IPPOConfig(rollouts=12, learning_epochs=2, mini_batches=2)
    trainer = IPPO(envs, config, seed=1, total_frames=10_000)
    arrays, figures, episodes = [], [], []
    try:
        for _ in range(updates):
            rollout = trainer.collect()
            arrays += [
                {name: getattr(group, name).copy() for name in FIELDS} for group in rollout.groups.values()
            ]
            episodes += [dataclasses.replace(log, wall_time=0.0) for log in rollout.episodes]
            figures.append(trainer.update(rollout))
    finally:
        envs.close()
    return arrays, figures, sorted(episodes, key=lambda log: (log.t_end, log.env_index))


@pytest.mark.parametrize(
    ("factory", "num_envs"),
    [(lives, len(LIVES)), (EnvFactory(make_env=real_env, kwargs={"name": "simple_tag", "max_cycles": 9}), 4)],
)
def test_a_pipeline_collects_and_learns_what_whole_steps_do(factory, num_envs):
    whole = learn(SerialVectorEnv(factory, num_envs))
    halves = learn(WorkerVectorEnv(factory, num_envs, 2, start_method="forkserver", pipeline=True))
    np.testing.assert_equal(halves[0], whole[0])
    assert halves[2] == whole[2]
    for own, other in zip(whole[1], halves[1], strict=True):
        for name in own:
            # Networks see half the rows at a time, which may move the last bit of a log-probability.
            assert other[name] == pytest.approx(own[name], rel=1e-4, abs=1e-6)


def test_steps_that_were_lost_with_a_worker_are_not_learned_from():
    envs = WorkerVectorEnv(
        partial(troubled, trouble="kill", at=6),
        4,
        2,
        start_method="forkserver",
        on_worker_death="restart",
        pipeline=True,
    )
    trainer = IPPO(envs, IPPOConfig(rollouts=10), seed=1, total_frames=1000)
    rollout = trainer.collect()
    group = rollout.groups["agent"]
    assert np.argwhere(~group.valid[..., 0]).tolist() == [[5, 2], [5, 3]]
    # The step before leads to the state in which the worker died; the next row is an episode's first.
    assert (group.ended[:, 2:] == ~group.valid[:, 2:] | (group.obs[:, 2:, :, 0] == 3.0)).all()
    assert trainer.update(rollout)["agent"]["rows"] == 10 * 4 * 2 - 4
    assert [(log.env_index, log.length) for log in rollout.episodes if log.interrupted] == [(2, 1), (3, 1)]
    envs.close()


def test_a_shield_and_a_pipeline_do_not_go_together():
    envs = WorkerVectorEnv(lives, 2, 2, start_method="forkserver", pipeline=True)
    guard: Any = object()
    with pytest.raises(ConfigError, match="decides on all copies at once"):
        Collector(envs, 5, seed=0, guard=guard)
    envs.close()
