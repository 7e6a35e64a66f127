"""MaMuJoCo: nothing shared between agents, no file left behind, and a remedy where there is no renderer."""

import os
import subprocess
import sys

import numpy as np
import pytest

from marl_tools.core.errors import EnvError
from marl_tools.core.wrappers import AddCost
from marl_tools.envs import costs
from tests.envs_for_tests import play

pytest.importorskip("gymnasium_robotics")

from marl_tools.envs.adapters.mamujoco import parallel_env


def idle(env):
    return {agent: np.zeros(env.action_space(agent).shape, np.float32) for agent in env.agents}


def test_agents_share_neither_infos_nor_the_list_of_names():
    env = parallel_env("HalfCheetah", "2x3")
    _, infos = env.reset(seed=0)
    env.agents.remove("agent_0")
    assert env.possible_agents == ["agent_0", "agent_1"]
    env.reset(seed=0)
    assert env.agents == ["agent_0", "agent_1"]
    *_, infos = env.step(idle(env))
    infos["agent_0"]["mine"] = 1
    assert "mine" not in infos["agent_1"]
    env.close()


def test_the_cap_truncates_and_a_fall_terminates():
    env = parallel_env("Swimmer", "2x1", max_episode_steps=3)
    env.reset(seed=0)
    for _ in range(3):
        _, rewards, terminations, truncations, _ = env.step(idle(env))
    assert (set(terminations.values()), set(truncations.values()), env.agents) == ({False}, {True}, [])
    assert {type(reward) for reward in rewards.values()} == {float}
    (_, *steps) = play(parallel_env("Ant", "4x2"), seed=1, actions=1)
    *_, terminations, truncations, _ = steps[-1]
    assert (set(terminations.values()), set(truncations.values())) == ({True}, {False})
    assert len(steps) < 1000


@pytest.mark.parametrize(
    ("name", "body", "parts"),
    [
        ("half_cheetah_2x3", "HalfCheetah", "2x3"),
        ("half_cheetah_6x1", "HalfCheetah", "6x1"),
        ("swimmer_2x1", "Swimmer", "2x1"),
        ("ant_4x2", "Ant", "4x2"),
    ],
)
def test_everyone_is_charged_for_the_speed_of_the_body(name, body, parts):
    limit = getattr(costs, name)
    env = AddCost(parallel_env(body, parts), limit)
    rng, charged = np.random.default_rng(0), set()
    # Thrown forward, it is too fast; left alone, it is not.
    for throw in (0.0, 8.0):
        env.reset(seed=0)
        body = env.unwrapped.single_agent_env.unwrapped
        speed = 0 * body.data.qvel
        speed[0] = throw
        body.set_state(body.data.qpos, speed)
        for _ in range(3):
            joint = {a: rng.uniform(-0.1, 0.1, env.action_space(a).shape) for a in env.agents}
            *_, infos = env.step(joint)
            for info in infos.values():
                across = 0.0 if name == "swimmer_2x1" else info.get("y_velocity", 0.0)
                assert info["cost"] == float(np.hypot(info["x_velocity"], across) > limit.limit)
            charged |= {(throw, info["cost"]) for info in infos.values()}
    assert (8.0, 1.0) in charged
    assert (0.0, 0.0) in charged
    env.close()


def test_no_log_is_left_in_the_working_directory(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    parallel_env("HalfCheetah", "2x3").close()
    assert list(tmp_path.iterdir()) == []
    assert "settotalmass" not in "".join(capfd.readouterr())


# Gymnasium's half-made viewer complains when it is collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_without_a_renderer_the_remedy_is_named(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "papyrus")
    env = parallel_env("HalfCheetah", "2x3", render_mode="rgb_array")
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"MUJOCO_GL=papyrus.*MUJOCO_GL=egl .*libegl1.*osmesa"):
        env.render()
    env.step(idle(env))


def test_a_renderer_that_mujoco_does_not_even_start_with_is_refused_with_the_remedy():
    code = "from marl_tools.envs.adapters.mamujoco import parallel_env; parallel_env()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "MUJOCO_GL": "papyrus"},
        capture_output=True,
        text=True,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert "ConfigError: MuJoCo does not start with MUJOCO_GL=papyrus" in last
    assert "unset MUJOCO_GL" in last


def test_its_films_have_the_bodys_own_speed():
    assert parallel_env("Swimmer", "2x1").metadata["render_fps"] == 25
    assert parallel_env("HalfCheetah", "2x3").metadata["render_fps"] == 20
