"""The examples run as their first lines say."""

import json
import subprocess
import sys
from pathlib import Path

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


def test_a_policy_is_cloned_from_what_it_played(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from examples.learn_from_trajectories import agreement, clone, save

    save(tmp_path, episodes=8)
    # One in five by chance.
    assert agreement(clone(tmp_path, updates=80)) > 0.6
