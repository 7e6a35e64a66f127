"""Worker processes against the serial vector env: the same episodes, arrays, clocks and logs, whatever process a copy is in."""

from __future__ import annotations

import copy
import dataclasses
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marl_tools.core.errors import ConfigError, EnvError
from marl_tools.core.factory import EnvFactory
from marl_tools.core.logging import configure_logging
from marl_tools.core.types import VectorEnv
from marl_tools.vector import SerialVectorEnv, WorkerVectorEnv
from tests.envs_for_tests import Team, real_env
from tests.probe_envs import Kinds
from tests.vector.test_serial import random_actions
from tests.vector.worker_envs import LIVES, lives, troubled

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


def same(log: Any) -> Any:
    return dataclasses.replace(log, wall_time=0.0)


def workers(factory: Any, num_envs: int, count: int = 2, **kwargs: Any) -> WorkerVectorEnv:
    return WorkerVectorEnv(factory, num_envs, count, **{"start_method": "forkserver", **kwargs})


def play(
    envs: VectorEnv, steps: int, *, seed: int = 3, resume: dict[str, int] | None = None
) -> tuple[list, list]:
    """Random play over two resets: every array of every step, and all logs."""
    rng, logs, trace = np.random.default_rng(seed), [], []
    try:
        if resume:
            envs.resume(**resume)
        for part in (steps - steps // 3, steps // 3):
            step = envs.reset(seed)
            for t in range(part + 1):
                arrays = {
                    name: copy.deepcopy(dataclasses.asdict(group)) for name, group in step.groups.items()
                }
                trace.append((arrays, step.keys, step.final_keys, envs.frames, envs.episodes_started))
                logs += map(same, step.episodes)
                if t < part:
                    notes = [{"overrides": {"nobody": 1 + i}} if t % 3 else {} for i in range(envs.num_envs)]
                    step = envs.step(random_actions(envs, rng), notes if t % 2 else None)
    finally:
        logs += map(same, envs.close())
    return trace, logs


def compare(factory: Any, num_envs: int, steps: int, *, count: int = 2, **kwargs: Any) -> list[Any]:
    """Play with and without workers; returns the logs, which are the same."""
    expected, logs = play(SerialVectorEnv(factory, num_envs), steps, **kwargs)
    trace, theirs = play(workers(factory, num_envs, count), steps, **kwargs)
    np.testing.assert_equal(trace, expected)
    assert theirs == logs
    assert sum(not log.interrupted for log in logs) >= 2, "no episode ended: autoreset was not seen"
    return logs


@pytest.mark.parametrize(
    ("name", "kwargs", "steps"),
    [
        ("simple_spread", {"max_cycles": 10}, 30),
        ("simple_spread", {"continuous_actions": True, "max_cycles": 10}, 30),
        ("simple_tag", {"max_cycles": 10}, 30),
        ("simple_speaker_listener", {"max_cycles": 10}, 30),
        ("multiwalker", {"max_cycles": 20}, 40),
        ("pistonball", {"max_cycles": 4}, 9),
        ("pursuit", {"max_cycles": 4}, 9),
        ("cooperative_pong", {"max_cycles": 4}, 9),
        ("rps", {}, 25),
    ],
)
def test_a_real_env_plays_the_same_episodes_in_workers(name, kwargs, steps):
    compare(EnvFactory(make_env=real_env, kwargs={"name": name, **kwargs}), 2, steps)


def test_a_real_env_whose_agents_die_plays_the_same_episodes_in_workers():
    factory = EnvFactory(make_env=real_env, kwargs={"name": "knights_archers_zombies", "max_cycles": 160})
    logs = compare(factory, 2, 330)
    assert any(len(set(log.lengths.values())) > 1 for log in logs), "nobody died before the others"


def test_an_env_with_state_keys_hands_them_over_from_workers():
    factory = EnvFactory(make_env="marl_tools.envs.crossing:parallel_env")
    assert compare(factory, 3, 60)
    trace, _ = play(workers(factory, 2), 3)
    assert all(isinstance(key, bytes) for _, keys, *_ in trace for key in keys)


def test_agents_that_come_and_go_do_so_in_whatever_worker_they_are():
    compare(lives, len(LIVES), 40, count=3)


def test_an_earlier_runs_figures_are_counted_on_in_workers():
    logs = compare(lives, 5, 12, resume={"frames": 700, "episodes_started": 50})
    assert min(log.t_start for log in logs) == 700
    assert min(log.episode for log in logs) == 50


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete"])
@pytest.mark.parametrize("mask", ["observation", "info"])
def test_action_masks_come_from_workers(kind, mask):
    factory = EnvFactory(make_env=Kinds, kwargs={"kind": kind, "mask": mask, "max_cycles": 3})
    serial, envs = SerialVectorEnv(factory, 2), workers(factory, 2)
    steps = [each.reset(0) for each in (serial, envs)]
    for _ in range(5):
        masks = [step.groups["agent"].action_mask for step in steps]
        np.testing.assert_array_equal(*masks)
        choices = [masks[0][..., :2].argmax(-1), masks[0][..., 2:].argmax(-1)]
        actions = np.stack(choices, -1) if kind == "multi_discrete" else masks[0].argmax(-1)
        # Kinds refuses a forbidden action.
        steps = [each.step({"agent": actions}) for each in (serial, envs)]
    envs.close()


@pytest.fixture(scope="module")
def envs():
    """One pair of workers for what can be shown one after the other."""
    envs = workers(partial(troubled, trouble="none"), 5, pipeline=True)
    yield envs
    envs.close()


def test_parts_played_each_on_its_own_give_what_whole_steps_give(envs):
    assert envs.parts == (slice(0, 2), slice(2, 5))
    whole = SerialVectorEnv(partial(troubled, trouble="none"), 5)
    expected, start = whole.reset(4), envs.reset(4)
    np.testing.assert_array_equal(start.groups["agent"].obs, expected.groups["agent"].obs)
    rng, before = np.random.default_rng(0), envs.frames
    for t in range(9):
        actions = random_actions(whole, rng)
        expected = whole.step(actions)
        # The second part begins before the first has been received, as in a pipeline.
        for index, rows in enumerate(envs.parts):
            envs.send(index, {name: array[rows] for name, array in actions.items()})
        for index, rows in enumerate(envs.parts):
            step = envs.receive(index)
            own, all_of = step.groups["agent"], expected.groups["agent"]
            for name in ("obs", "active", "rewards", "costs", "terminated", "truncated"):
                np.testing.assert_array_equal(getattr(own, name), getattr(all_of, name)[rows], err_msg=name)
            logs = [log for log in expected.episodes if rows.start <= log.env_index < rows.stop]
            assert [(a.seed, a.returns, a.env_index) for a in step.episodes] == [
                (b.seed, b.returns, b.env_index) for b in logs
            ]
        assert envs.frames - before == 5 * (t + 1)


def test_infos_stay_in_the_workers_unless_they_are_asked_for(envs):
    step = envs.reset(0)
    assert (step.infos, step.final_infos) == ([{}] * 5, [None] * 5)
    asked = workers(partial(troubled, trouble="none"), 3, infos=True)
    serial = SerialVectorEnv(partial(troubled, trouble="none"), 3)
    asked.reset(0), serial.reset(0)
    rng = np.random.default_rng(0)
    for _ in range(5):
        actions = random_actions(serial, rng)
        one, other = serial.step(actions), asked.step(actions)
        assert (one.infos, one.final_infos) == (other.infos, other.final_infos)
    asked.close()


def test_actions_for_a_part_that_has_not_been_received_are_refused(envs):
    envs.reset(0)
    actions = {"agent": np.zeros((2, 2), np.int64)}
    envs.send(0, actions)
    with pytest.raises(EnvError, match=r"was not done with the step before: call reset\(seed\)"):
        envs.send(0, actions)
    # A reset takes in what is still on its way.
    assert [log.length for log in envs.reset(0).episodes] == [1, 1]


def test_spawned_workers_need_no_guard_around_the_main_script(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from marl_tools.vector import WorkerVectorEnv\n"
        "from tests.vector.worker_envs import lives\n"
        "envs = WorkerVectorEnv(lives, 4, 2)\n"
        "print('main', envs.reset(0).groups['agent'].obs.shape)\n"
    )
    # It does not close its envs either.
    done = subprocess.run(
        [sys.executable, script], cwd=ROOT, env=ENV, capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr, done.returncode) == ("main (4, 3, 2)\n", "", 0)


@pytest.mark.parametrize(
    ("factory", "named"),
    [
        (EnvFactory(make_env=Team, cost=lambda step: {}), r"EnvFactory\.cost = <function <lambda>"),
        (
            EnvFactory(make_env=Team, kwargs={"n": 2, "faults": (lambda: 0,)}),
            r"EnvFactory\.kwargs\['faults'\]\[0\]",
        ),
        (partial(lives, env_index=lambda: 0), r"partial\(arguments\)\['env_index'\]"),
        (lambda env_index: lives(env_index), r"function = <function <lambda>"),
    ],
)
def test_what_cannot_be_pickled_is_refused_up_front_and_named(factory, named):
    with pytest.raises(
        ConfigError, match=named + r".* cannot be sent to a worker process .*package\.module:function"
    ):
        WorkerVectorEnv(factory, 2, 2)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"workers": 3}, "workers=3, but num_envs=2: a worker needs a copy of its own"),
        ({"workers": 0}, "workers=0: must be a whole number of at least 1"),
        ({"workers": 1, "timeout": 0}, "timeout=0: must be a positive number of seconds"),
        ({"workers": 1, "start_method": "fork"}, "start_method='fork': must be one of 'spawn', 'forkserver'"),
        ({"workers": 1, "on_worker_death": "weep"}, "on_worker_death='weep': must be one of"),
    ],
)
def test_settings_that_cannot_work_are_refused(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        WorkerVectorEnv(lives, 2, **kwargs)


def test_log_lines_of_workers_reach_the_one_log_file(tmp_path):
    configure_logging(logs_dir=tmp_path, console_enabled=False, log_format="{message}")
    try:
        envs = workers(partial(troubled, trouble="log", copies=(0, 3), at=2), 4)
        envs.reset(0)
        for _ in range(3):
            envs.step({"agent": np.zeros((4, 2), np.int64)})
        envs.close()
    finally:
        configure_logging()
    lines = (tmp_path / "marl_tools.log").read_text().splitlines()
    assert len(lines) == len(set(lines)) == 2
    assert all(line.startswith("step 2 in process ") for line in lines)
