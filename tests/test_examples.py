"""The examples run as their first lines say."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from marl_tools.cli import main
from tests.envs_for_tests import check_api

ROOT = Path(__file__).parent.parent


def test_an_environment_is_wrapped_filmed_and_logged(tmp_path):
    command = [sys.executable, ROOT / "examples" / "wrap_and_film.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "hidden episode cap: 900" in done.stdout
    note = json.loads((tmp_path / "rl-video-episode-0.json").read_text())
    assert note["frames"] == 61 or "terminated" in note["ends"].values()
    assert (tmp_path / "rl-video-episode-0.mp4").stat().st_size > 1000


def test_an_environment_of_ones_own_keeps_the_api_and_learns_by_name(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT)
    from examples.own_env import make_env

    check_api(make_env(), 30)
    out = tmp_path / "run"
    flags = "--env-kwargs size=4 --timesteps 6000 --seed 1 --learning-rate 3e-3 --rollouts 64"
    evaluation = ["--final-policy-eval-episodes", "40", "--out", str(out)]
    code = main(["train", "examples.own_env:make_env", *flags.split(), *evaluation])
    assert code == 0
    returns = {
        name: json.loads((out / f"evaluation-{name}.json").read_text())["returns"]["mean_over_agents"]["mean"]
        for name in ("random", "trained")
    }
    assert returns["trained"] > returns["random"]
    assert list((out / "videos").glob("*.mp4"))


def test_an_environment_of_ones_own_plays_by_the_law_that_it_declares(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from examples.own_env import make_env

    env = make_env(size=4)
    # Every wall, slide and meeting comes up many times.
    for seed in range(100):
        env.reset(seed=seed)
        rng = np.random.default_rng(seed)
        while env.agents:
            key, choices = env.state_key(), rng.integers(0, 3, 2)
            law = env.joint_law(key, choices.tolist())
            assert sum(outcome.probability for outcome in law) == pytest.approx(1)
            possible = [(outcome.key, outcome.violated, outcome.ended) for outcome in law]
            assert len(set(possible)) == len(possible)
            _, _, terminations, _, infos = env.step(dict(zip(env.agents, choices.tolist(), strict=True)))
            violated = tuple(info["cost"] > 0 for info in infos.values())
            assert (env.state_key(), violated, tuple(terminations.values())) in possible
            assert env.ended_agents(env.state_key()) == tuple(terminations.values())


def test_an_environment_of_ones_own_gets_a_bound_from_the_outcomes_that_it_declares(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    out = tmp_path / "run"
    flags = "--env-kwargs size=4 --timesteps 2000 --shield ledger --constraint lagrange --video-episodes 0"
    assert main(["train", "examples.own_env:make_env", *flags.split(), "--out", str(out)]) == 0
    certificate = json.loads((out / "certificate.json").read_text())
    whole = certificate["horizons"][-1]["subjects"]
    assert [whole[agent]["bound"] for agent in ("left", "right")] == pytest.approx([0.05, 0.05])


def test_a_policy_is_cloned_from_what_it_played(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from examples.learn_from_trajectories import agreement, clone, save

    save(tmp_path, episodes=8)
    # One in five by chance.
    assert agreement(clone(tmp_path, updates=80)) > 0.6
