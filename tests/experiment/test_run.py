"""Whole runs, tiny ones: what they leave behind, how they stop, and how they go on."""

import json
import math
import os
import re
import shutil
import signal
import threading

import pytest

from marl_tools.core.errors import ConfigError, CorruptFileError, NonFiniteError
from marl_tools.core.io import JsonLines, read_jsonl
from marl_tools.core.types import EpisodeLog
from marl_tools.experiment import evaluations as evaluations_module, run as run_module, tracking
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.folder import load_config
from marl_tools.experiment.run import Interrupted, resume, train
from marl_tools.experiment.team import evaluate_run
from marl_tools.training import evaluate as evaluate_module
from marl_tools.training.checkpoint import load_checkpoint
from marl_tools.training.checkpoint_folder import CheckpointFolder
from marl_tools.training.ippo import IPPO
from marl_tools.training.policy import load_policy
from tests.core.film import decode, run_script
from tests.envs_for_tests import Team

FILM = "tests.core.film:Film"
"""Two agents, episodes of 5 steps, reward = number of the step: every whole episode earns 15 a head."""


def settings(folder, **changes):
    """48 env steps in 3 updates, no film and no evaluation unless asked for."""
    return RunConfig.from_flat(
        {
            "env": FILM,
            "timesteps": 48,
            "num_envs": 2,
            "rollouts": 8,
            "learning_epochs": 1,
            "mini_batches": 1,
            "hidden": (8,),
            "video_episodes": 0,
            "final_policy_eval_episodes": 0,
            "out": str(folder),
            **changes,
        }
    )


def rows(folder, name):
    return list(read_jsonl(folder / f"{name}.jsonl"))


def episodes(folder):
    return [EpisodeLog.from_json(row) for row in rows(folder, "episodes")]


def frames_saved(folder):
    return load_checkpoint(folder / "checkpoints" / "latest.safetensors")[1]["frames"]


def interrupt_at(monkeypatch, update, act=None):
    """Let the given update (counted from 0) be interrupted, by Ctrl-C or by ``act``."""
    original = IPPO.update

    def update_or_stop(self, rollout):
        if self.updates == update:
            monkeypatch.undo()
            if act is None:
                raise KeyboardInterrupt
            act()
        return original(self, rollout)

    monkeypatch.setattr(IPPO, "update", update_or_stop)


# --- the run folder -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spread(tmp_path_factory):
    """A finished run on a real env, and its result."""
    folder = tmp_path_factory.mktemp("runs") / "spread"
    config = settings(
        folder,
        env="simple_spread",
        timesteps=256,
        rollouts=32,
        video_episodes=1,
        final_policy_eval_episodes=3,
        final_policy_eval_horizons=(1, 25),
    )
    (result,) = train(config)
    return config, result


def test_a_finished_run_leaves_exactly_what_the_design_says(spread):
    _, result = spread
    files = {str(path.relative_to(result.folder)) for path in result.folder.rglob("*") if path.is_file()}
    assert files == {
        "certificate.json",
        "config.json",
        "versions.json",
        "episodes.jsonl",
        "updates.jsonl",
        "checkpoints/latest.safetensors",
        "checkpoints/best.safetensors",
        "checkpoints/manifest.json",
        "evaluation-random.json",
        "evaluation-trained.json",
        "videos/final-episode-0.mp4",
        "videos/final-episode-0.json",
        "done.json",
    }
    times = {name: (result.folder / name).stat().st_mtime_ns for name in files}
    assert max(times, key=times.get) == "done.json"
    assert json.loads((result.folder / "done.json").read_text())["timesteps"] == 256


def test_the_settings_and_versions_of_a_run_are_kept_with_it(spread):
    config, result = spread
    assert load_config(result.folder) == config
    versions = json.loads((result.folder / "versions.json").read_text())
    assert versions.keys() >= {"python", "platform", "marl-tools", "pettingzoo", "torch", "numpy"}
    assert versions["torch"].startswith("2.")


def test_every_episode_is_a_line_that_can_be_read_back(spread):
    _, result = spread
    logs = episodes(result.folder)
    # 2 copies x 128 steps of 25-step episodes: 5 whole ones each.
    assert [(log.env_index, log.episode) for log in sorted(logs, key=lambda log: log.env_index)] == [
        (copy, number) for copy in range(2) for number in range(5)
    ]
    assert len({log.seed for log in logs}) == 10
    for log in logs:
        assert (log.env_name, log.split, log.length) == ("simple_spread", "train", 25)
        assert log.t_end - log.t_start == 50
        assert set(log.ends.values()) == {"truncated"}
        assert log.update == (log.t_end - 1) // 64


def test_every_update_is_a_line_whose_figures_add_up(spread):
    _, result = spread
    updates, logs = rows(result.folder, "updates"), episodes(result.folder)
    assert [row["update"] for row in updates] == [0, 1, 2, 3]
    assert [row["frames"] for row in updates] == [64, 128, 192, 256]
    assert [row["agent_steps"] for row in updates] == [192] * 4
    assert sum(row["episodes"] for row in updates) == len(logs)
    mean = sum(log.mean_return for log in logs) / len(logs)
    assert updates[-1]["mean_return"] == pytest.approx(mean)
    assert all(row["groups"]["agent"]["rows"] == 192 for row in updates)


def test_the_evaluations_say_who_played_and_return_what_the_run_returns(spread):
    config, result = spread
    for name, evaluation in (("random", result.before), ("trained", result.after)):
        saved = json.loads((result.folder / f"evaluation-{name}.json").read_text())
        assert (saved["policy"], saved["seed"], saved["episodes"]) == (name, 1_000_000, 3)
        assert saved["horizons"].keys() == {"1", "25"}
        assert saved["horizons"]["25"] == saved["returns"]
        mean = evaluation.mean_returns()["mean over agents"]
        assert saved["returns"]["mean_over_agents"]["mean"] == mean
    again = evaluate_run(config, load_policy(result.folder), episodes=3)
    assert again.mean_returns() == result.after.mean_returns()


def test_the_film_shows_every_step_of_an_episode(spread):
    _, result = spread
    assert len(decode(result.folder / "videos" / "final-episode-0.mp4")) == 26
    note = json.loads((result.folder / "videos" / "final-episode-0.json").read_text())
    assert note["seed"] == 1_000_000


def test_the_checkpoint_is_that_of_the_last_update(spread):
    _, result = spread
    _, state = load_checkpoint(result.folder / "checkpoints" / "latest.safetensors")
    assert (state["frames"], state["updates"]) == (256, 4)


def test_the_same_settings_give_the_same_run(tmp_path):
    def trace(folder, seed):
        train(settings(folder, seed=seed))
        return [(log.seed, dict(log.returns)) for log in episodes(folder)], [
            row["groups"] for row in rows(folder, "updates")
        ]

    first, again, other = (trace(tmp_path / str(i), seed) for i, seed in enumerate((0, 0, 1)))
    assert first == again
    assert first[1] != other[1]


def test_checkpoints_and_films_come_as_often_as_they_are_asked_for(tmp_path, monkeypatch):
    saves = []
    original = CheckpointFolder.save

    def save(self, which, tensors, state, **facts):
        saves.append((which, state["updates"]))
        original(self, which, tensors, state, **facts)

    monkeypatch.setattr(CheckpointFolder, "save", save)
    train(settings(tmp_path / "a", timesteps=16 * 5, checkpoint_every=2, video_every=4))
    assert [updates for which, updates in saves if which == "latest"] == [2, 4, 5]
    assert [path.name for path in (tmp_path / "a" / "videos").glob("*.mp4")] == ["update-4-episode-0.mp4"]


@pytest.mark.parametrize("fault", ["renders nothing", "raises"])
def test_a_film_that_fails_does_not_fail_the_run(tmp_path, capsys, monkeypatch, fault):
    if fault == "raises":
        monkeypatch.setattr(Team, "render", lambda self: 1 / 0, raising=False)
    else:
        monkeypatch.setattr(Team, "render", lambda self: None, raising=False)
    config = settings(tmp_path / "a", env="tests.envs_for_tests:Team", env_kwargs={"max_cycles": 5})
    train(RunConfig.from_flat({**config.to_flat(), "video_episodes": 1}))
    assert (tmp_path / "a" / "done.json").exists()
    said = "ZeroDivisionError: division by zero" if fault == "raises" else "[a-z]"
    assert re.search(f"no film: {said}", capsys.readouterr().err)
    assert not list((tmp_path / "a").rglob("*.mp4"))


def test_several_runs_have_a_folder_and_a_seed_each(tmp_path):
    results = train(settings(tmp_path / "all", num_runs=2, seed=5))
    assert [result.folder for result in results] == [tmp_path / "all" / "run-0", tmp_path / "all" / "run-1"]
    assert [load_config(result.folder).seed for result in results] == [5, 6]
    assert len({log.seed for result in results for log in episodes(result.folder)}) == 2 * 8


@pytest.mark.parametrize(
    ("env", "env_kwargs"), [("kaz", {"spawn_delay": 3}), ("multiwalker", {}), ("simple_speaker_listener", {})]
)
def test_envs_whose_agents_die_or_move_freely_or_differ_are_trained_on(tmp_path, env, env_kwargs):
    # The first zombies arrive after a hundred steps or so.
    rollouts = 180 if env == "kaz" else 30
    train(settings(tmp_path / "a", env=env, env_kwargs=env_kwargs, timesteps=rollouts * 4, rollouts=rollouts))
    updates = rows(tmp_path / "a", "updates")
    assert [row["frames"] for row in updates] == [rollouts * 2, rollouts * 4]
    for row in updates:
        for figures in row["groups"].values():
            assert all(math.isfinite(figures[name]) for name in ("loss", "entropy", "grad_norm"))
    if env == "kaz":
        logs = episodes(tmp_path / "a")
        assert any(end == "terminated" for log in logs for end in log.ends.values())
        assert sum(row["agent_steps"] for row in updates) < 720 * 4


# --- the folder itself --------------------------------------------------------------------------------------------


def test_a_folder_that_holds_something_is_refused_and_left_alone(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match=r"a is not empty: give another --out$"):
        train(settings(tmp_path / "a"))
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["thesis.txt"]


def test_a_folder_that_holds_a_run_is_refused_with_how_to_go_on_with_it(tmp_path):
    train(settings(tmp_path / "a"))
    with pytest.raises(
        ConfigError, match=r"give another --out, or go on with it by: marl-tools train --resume .*a$"
    ):
        train(settings(tmp_path / "a"))


def test_an_empty_folder_will_do_and_a_file_or_an_impossible_place_will_not(tmp_path):
    (tmp_path / "empty").mkdir()
    train(settings(tmp_path / "empty"))
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=rf"{out} cannot be a folder: {tmp_path / 'file'} is a file"):
            train(settings(out))
    with pytest.raises(ConfigError, match="cannot be a folder: File name too long"):
        train(settings(tmp_path / ("x" * 300)))


def test_a_default_folder_that_is_taken_gets_a_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = RunConfig.from_flat({**settings("x").to_flat(), "out": None, "experiment_tag": "t"})
    folders = [train(config)[0].folder for _ in range(3)]
    assert [folder.name for folder in folders] == [
        "t-tests.core.film.Film-s0",
        "t-tests.core.film.Film-s0-2",
        "t-tests.core.film.Film-s0-3",
    ]
    assert (tmp_path / "runs").is_dir()


def test_two_runs_at_once_never_share_a_folder(tmp_path, monkeypatch):
    """Both have looked for a free folder before either makes it."""
    monkeypatch.chdir(tmp_path)
    config = RunConfig.from_flat({**settings("x").to_flat(), "out": None, "experiment_tag": "t"})
    checked = run_module.fresh_folder(config)
    rival = run_module.claim_folder(config, checked)
    assert rival.name == "t-tests.core.film.Film-s0"
    assert run_module.claim_folder(config, checked).name == "t-tests.core.film.Film-s0-2"

    given = settings(tmp_path / "a")
    checked = run_module.fresh_folder(given)
    run_module.claim_folder(given, checked)
    with pytest.raises(ConfigError, match="a is not empty: give another --out"):
        run_module.claim_folder(given, checked)


def test_several_runs_in_a_default_folder_that_is_taken_get_a_number_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = RunConfig.from_flat(
        {**settings("x", num_runs=2).to_flat(), "out": None, "experiment_tag": "t", "timesteps": 16}
    )
    folders = [[result.folder for result in train(config)] for _ in range(2)]
    assert [[str(folder.relative_to("runs")) for folder in pair] for pair in folders] == [
        ["t-tests.core.film.Film-s0/run-0", "t-tests.core.film.Film-s0/run-1"],
        ["t-tests.core.film.Film-s0-2/run-0", "t-tests.core.film.Film-s0-2/run-1"],
    ]


def test_a_team_of_the_wrong_size_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match="n_agents=3, but"):
        train(settings(tmp_path / "a", n_agents=3))
    assert not (tmp_path / "a").exists()


# --- stopping and going on ----------------------------------------------------------------------------------------


def test_ctrl_c_saves_and_says_how_to_go_on_and_a_resumed_run_ends_as_a_whole_one(tmp_path, monkeypatch):
    interrupt_at(monkeypatch, 2)
    folder = tmp_path / "a"
    with pytest.raises(
        Interrupted,
        match=rf"stopped at 32 of 48 env steps; the state at env step 32 .*--resume {re.escape(str(folder))} --trust$",
    ):
        train(settings(folder))
    assert (frames_saved(folder), (folder / "done.json").exists()) == (32, False)
    before = [log for log in rows(folder, "episodes") if log["t_end"] <= 32]
    assert len(rows(folder, "updates")) == 2

    resume(folder, timesteps=96, trusted=True)
    assert rows(folder, "episodes")[: len(before)] == before
    updates = rows(folder, "updates")
    assert [row["update"] for row in updates] == [0, 1, 2, 3, 4, 5]
    assert [row["frames"] for row in updates] == [16, 32, 48, 64, 80, 96]
    assert load_config(folder).timesteps == 96
    assert json.loads((folder / "done.json").read_text())["timesteps"] == 96
    logs = episodes(folder)
    assert len({log.seed for log in logs}) == len(logs), "no episode was played twice"
    assert [log.t_end for log in logs] == sorted(log.t_end for log in logs)


def test_the_moving_average_of_a_resumed_run_remembers_the_episodes_before(tmp_path, monkeypatch):
    folder = tmp_path / "a"
    interrupt_at(monkeypatch, 2)
    with pytest.raises(Interrupted):
        train(settings(folder))
    with JsonLines(folder / "episodes.jsonl") as lines:
        lines.append({**rows(folder, "episodes")[0], "returns": {"agent_0": 1015.0, "agent_1": 1015.0}})
    resume(folder, timesteps=96, trusted=True)
    means = [row["mean_return"] for row in rows(folder, "updates")]
    assert means[:2] == [15.0, 15.0]
    assert all(mean > 50 for mean in means[2:]), "the episode that earned 1015 is among the last hundred"


def test_episodes_that_ended_before_a_stop_in_the_middle_of_a_rollout_are_kept(tmp_path, monkeypatch):
    original, steps = Team.step, []

    def step(self, actions):
        steps.append(1)
        if len(steps) == 2 * 6 + 1:
            raise KeyboardInterrupt
        return original(self, actions)

    monkeypatch.setattr(Team, "step", step)
    with pytest.raises(Interrupted, match="stopped at"):
        train(settings(tmp_path / "a"))
    # Stopped at step 7 of the first rollout of 8; both copies had ended an episode at step 5.
    assert [log.returns for log in episodes(tmp_path / "a")] == [{"agent_0": 15.0, "agent_1": 15.0}] * 2
    assert rows(tmp_path / "a", "updates") == []


def test_sigterm_is_taken_like_ctrl_c_and_the_handler_is_given_back(tmp_path, monkeypatch):
    previous = signal.getsignal(signal.SIGTERM)
    interrupt_at(monkeypatch, 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted, match="the state at env step 16 is saved"):
        train(settings(tmp_path / "a"))
    assert frames_saved(tmp_path / "a") == 16
    assert signal.getsignal(signal.SIGTERM) is previous


def test_the_hint_asks_for_trust_only_where_the_run_names_code_and_quotes_the_folder(tmp_path, monkeypatch):
    interrupt_at(monkeypatch, 0)
    with pytest.raises(Interrupted, match=r"--resume '.*a b'$"):
        train(settings(tmp_path / "a b", env="corridor"))


def test_ctrl_c_before_the_first_update_can_be_gone_on_from_as_well(tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(evaluations_module, "evaluate_run", stop)
        with pytest.raises(Interrupted, match=r"stopped at 0 of 48 .*step 0 is saved. Go on with: "):
            train(settings(tmp_path / "a", final_policy_eval_episodes=1))
    resume(tmp_path / "a", trusted=True)
    assert (tmp_path / "a" / "done.json").exists()
    assert [row["update"] for row in rows(tmp_path / "a", "updates")] == [0, 1, 2]


def test_an_env_that_breaks_loses_no_update_and_its_error_passes_through(tmp_path, monkeypatch):
    original, steps = Team.step, []

    def step(self, actions):
        steps.append(1)
        if len(steps) == 2 * 20:
            raise ZeroDivisionError("a bug of the env's own")
        return original(self, actions)

    with monkeypatch.context() as patch:
        patch.setattr(Team, "step", step)
        with pytest.raises(ZeroDivisionError, match="a bug of the env's own") as caught:
            train(settings(tmp_path / "a"))
    assert re.search(
        r"^The state at env step 32 is saved\. Go on with: .* --trust$", caught.value.__notes__[-1]
    )
    assert load_checkpoint(tmp_path / "a" / "checkpoints" / "latest.safetensors")[1]["updates"] == 2
    resume(tmp_path / "a", trusted=True)
    assert (tmp_path / "a" / "done.json").exists()


def test_a_run_in_another_thread_leaves_signals_alone(tmp_path):
    thread = threading.Thread(target=train, args=(settings(tmp_path / "a"),))
    thread.start()
    thread.join()
    assert (tmp_path / "a" / "done.json").exists()


def test_a_run_that_was_stopped_after_its_last_update_can_still_be_finished(tmp_path, monkeypatch):
    original, played = evaluate_module.play_episode, []

    def play_or_stop(*args, **kwargs):
        played.append(1)
        if len(played) == 3:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    folder = tmp_path / "a"
    # Two episodes of random play go before; the first of the trained team is interrupted.
    monkeypatch.setattr(evaluate_module, "play_episode", play_or_stop)
    with pytest.raises(Interrupted, match=r"the state at env step 48 is saved\. Go on with: "):
        train(settings(folder, final_policy_eval_episodes=2))
    assert not (folder / "done.json").exists()
    result = resume(folder, trusted=True)
    assert result.after.mean_returns()["mean over agents"] == 15.0
    assert (folder / "done.json").exists()
    assert len(rows(folder, "updates")) == 3


def test_a_finished_run_is_not_trained_again_but_can_be_trained_longer(tmp_path, monkeypatch):
    folder = tmp_path / "a"
    train(settings(folder))
    with pytest.raises(ConfigError, match="is complete at 48 env steps: give more --timesteps"):
        resume(folder, trusted=True)
    assert (folder / "done.json").exists()
    interrupt_at(monkeypatch, 4)
    with pytest.raises(Interrupted):
        resume(folder, timesteps=96, trusted=True)
    assert not (folder / "done.json").exists(), "a run that goes on again is not done"
    resume(folder, trusted=True)
    assert (folder / "done.json").exists()
    assert rows(folder, "updates")[-1]["frames"] == 96


def test_only_a_run_folder_that_is_whole_can_be_resumed(tmp_path):
    with pytest.raises(ConfigError, match=r"is not a run folder: it has no config\.json"):
        resume(tmp_path)
    train(settings(tmp_path / "a"))
    shutil.rmtree(tmp_path / "a" / "checkpoints")
    with pytest.raises(ConfigError, match="is done, but its checkpoints are gone"):
        resume(tmp_path / "a", trusted=True)
    (tmp_path / "a" / "config.json").write_text("{")
    with pytest.raises(CorruptFileError, match=r"config\.json"):
        resume(tmp_path / "a", trusted=True)


def test_a_folder_from_a_stranger_imports_nothing_unasked(tmp_path, monkeypatch):
    train(settings(tmp_path / "a"))
    flat = json.loads((tmp_path / "a" / "config.json").read_text())
    flat["env"] = "a_stranger.package:function"
    (tmp_path / "a" / "config.json").write_text(json.dumps(flat))
    with pytest.raises(ConfigError, match=r"a_stranger\.package:function.*--trust"):
        resume(tmp_path / "a")


@pytest.mark.parametrize("what", ["observation", "reward", "final observation"])
def test_a_number_that_is_none_stops_the_run_with_its_place_and_saves_the_state(tmp_path, what):
    config = settings(
        tmp_path / "a", env="tests.probe_envs:Broken", env_kwargs={"what": what, "first_episode": 2}
    )
    with pytest.raises(NonFiniteError) as caught:
        train(config)
    assert re.match(rf"update 1: broken_v0: {what} of agent 'agent_1' in copy 0 ", str(caught.value))
    assert str(caught.value).endswith(f"The state at env step 16 is saved in {tmp_path / 'a'}.")
    assert frames_saved(tmp_path / "a") >= 16
    # The team plays on, and the episodes before are on record.
    assert load_policy(tmp_path / "a").groups[0].agents == ("agent_0", "agent_1")
    assert episodes(tmp_path / "a")


def test_a_kill_loses_no_finished_episode(tmp_path):
    """SIGKILL in the middle of a rollout: all whole episodes are whole lines."""
    folder = tmp_path / "a"
    killed = run_script(
        """
import os, signal, sys
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.run import train
from tests.envs_for_tests import Team
original, steps = Team.step, []
def step(self, actions):
    steps.append(1)
    if len(steps) == 2 * 53 + 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, actions)
Team.step = step
train(RunConfig.from_flat({"env": "tests.core.film:Film", "timesteps": 1000, "num_envs": 2, "rollouts": 20,
      "hidden": (8,), "final_policy_eval_episodes": 0, "video_episodes": 0, "out": sys.argv[1]}))
""",
        folder,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (folder / "episodes.jsonl").read_bytes().endswith(b"\n")
    logs = episodes(folder)
    assert len(logs) == 2 * 10, "53 steps are 10 whole episodes a copy"
    assert {log.mean_return for log in logs} == {15.0}
    assert [row["frames"] for row in rows(folder, "updates")] == [40, 80]


# --- wandb --------------------------------------------------------------------------------------------------------


def test_episodes_updates_films_and_tables_go_to_wandb_too_without_an_account(tmp_path):
    folder = tmp_path / "a"
    # In a process of its own: wandb leaves threads and a service behind.
    script = run_script(
        """
import sys
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.run import train
train(RunConfig.from_flat({"env": "tests.core.film:Film", "timesteps": 48, "num_envs": 2, "rollouts": 8,
      "hidden": (8,), "final_policy_eval_episodes": 1, "use_wandb": True, "out": sys.argv[1]}))
""",
        folder,
    )
    assert script.returncode == 0, script.stderr
    (run,) = (folder / "wandb").glob("offline-run-*")
    run_id = load_config(folder).wandb_id
    assert run.name.endswith(run_id)
    assert [path.suffix for path in (run / "files" / "media" / "videos").rglob("*") if path.is_file()] == [
        ".mp4"
    ]
    data = next(run.glob("*.wandb")).read_bytes()
    for key in (
        b"train/returns/agent_0",
        b"update/groups/agent/loss",
        b"eval/trained/mean_return",
        b"video/final",
        b"table/evaluation-random",
    ):
        assert key in data, key


def test_each_run_folder_has_a_wandb_id_of_its_own_which_a_resumed_run_keeps(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(
        tracking.wandb, "start_run", lambda algo, idx, base, extra: started.append(base["wandb_id"])
    )
    for name in "ab":
        train(settings(tmp_path / name, use_wandb=True))
    resume(tmp_path / "a", timesteps=64, trusted=True)
    first, second, resumed = started
    assert first == resumed != second
