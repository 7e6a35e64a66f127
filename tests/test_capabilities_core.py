"""Files, logging, hidden caps, video and experiment configs: one short test a capability, through public names."""

import json
import sys

import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled
from mpe2 import simple_spread_v3

import marl_tools as mt
from marl_tools.core.io import create_dir, load_from_file, load_from_file_if_exists, save_to_file
from marl_tools.core.logging import LOG_FILE, configure_logging, log
from marl_tools.core.wandb import create_base_config, log_history, start_run
from marl_tools.core.wrappers import apply_hidden_episode_cap, infer_episode_cap
from marl_tools.core.wrappers.record_video_parallel import RecordVideo
from tests.core.film import Film
from tests.envs_for_tests import Team, play


def base_config(**changes):
    named = {
        "env_name": "simple_spread",
        "num_envs": 2,
        "n_agents": 3,
        "timesteps": 100,
        "num_runs": 1,
        "rollouts": 8,
        "learning_epochs": 1,
        "mini_batches": 1,
        "learning_rate": 1e-3,
        "max_risk": 0.1,
        "use_wandb": False,
    }
    return create_base_config(**{**named, **changes})


def test_create_dir_makes_parents_and_returns_the_path(tmp_path):
    assert create_dir(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert create_dir(tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a.json", {"x": 1}),
        ("a.jsonl", [{"x": 1}, {"x": 2}]),
        ("a.csv", [{"x": "1"}]),
        ("a.txt", "hello"),
        ("a.npz", {"x": np.arange(3)}),
    ],
)
def test_what_is_saved_is_loaded_by_the_files_suffix(tmp_path, name, value):
    save_to_file(value, tmp_path, name)
    loaded = load_from_file(tmp_path, name)
    assert np.array_equal(loaded["x"], value["x"]) if name == "a.npz" else loaded == value


def test_an_unknown_suffix_lists_the_known_ones_and_a_pickle_has_to_be_asked_for(tmp_path):
    with pytest.raises(mt.FileFormatError, match=r"\.json.*\.npz"):
        save_to_file({}, tmp_path, "a.xyz")
    with pytest.raises(mt.FileFormatError, match="allow_pickle"):
        save_to_file({}, tmp_path, "a.pkl")
    save_to_file({1, 2}, tmp_path, "a.pkl", allow_pickle=True)
    assert load_from_file(tmp_path, "a.pkl", allow_pickle=True) == {1, 2}


def test_a_default_stands_in_for_a_missing_file_only(tmp_path):
    assert load_from_file_if_exists(tmp_path, "a.json", default=5) == 5
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(mt.CorruptFileError, match=r"a\.json"):
        load_from_file_if_exists(tmp_path, "a.json", default=5)
    assert (tmp_path / "a.json").read_text() == "{"


def test_logging_goes_where_it_was_last_told_to(tmp_path, capsys):
    configure_logging(min_level="WARNING", logs_dir=tmp_path, console_enabled=False, file_enabled=True)
    try:
        log("quiet", type="run", priority="INFO", console=None, file=None, exception=None)
        log("loud", type="run", priority="WARNING")
        assert (text := (tmp_path / LOG_FILE).read_text()).count("\n") == 1
        assert "loud" in text
    finally:
        configure_logging()
    assert "loud" not in capsys.readouterr().err


def test_a_hidden_cap_is_found_and_truncates_those_who_are_left():
    assert infer_episode_cap(simple_spread_v3.parallel_env(max_cycles=7)) == 7
    truncations, fired = apply_hidden_episode_cap(
        active_agents=["a", "b"],
        terminations={"a": True, "b": False},
        truncations={"a": False, "b": False},
        episode_steps=7,
        episode_cap=7,
    )
    assert (truncations, fired) == ({"a": False, "b": True}, True)
    env = mt.EpisodeCap(Team(max_cycles=None), steps=4)
    assert len(play(env)) == 5


def test_record_video_takes_its_arguments_in_this_order_and_films(tmp_path):
    env = RecordVideo(Film(), str(tmp_path), lambda episode: True, None, 0, "clip", 20, True, None)
    play(env)
    env.close()
    assert [path.name for path in tmp_path.glob("*.mp4")] == ["clip-episode-0.mp4"]
    for name in ("reset", "step", "render", "close", "start_recording", "stop_recording", "__del__"):
        assert callable(getattr(env, name))


def test_record_video_refuses_before_it_makes_a_folder(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="render_mode"):
        RecordVideo(Film(render_mode=None), str(tmp_path / "a"))
    monkeypatch.setitem(sys.modules, "moviepy.video.io.ffmpeg_writer", None)
    with pytest.raises(DependencyNotInstalled, match="moviepy"):
        RecordVideo(Film(), str(tmp_path / "a"))
    assert not (tmp_path / "a").exists()


def test_a_base_config_has_27_arguments_and_hints_at_near_misses():
    config = base_config()
    assert len(config) == 27
    assert config["shield_patience"] == 64
    with pytest.raises(mt.ConfigError, match="shield_patience"):
        base_config(shield_patienc=3)
    assert mt.RunConfig.from_base(config).env == "simple_spread"


def test_no_run_and_no_history_without_wandb():
    run = start_run("ippo", 0, base_config(), {})
    assert run is None
    log_history(run, [{"t": 1}], "train")


def test_the_settings_of_a_base_config_are_json():
    assert json.loads(json.dumps(base_config()))["env_name"] == "simple_spread"
