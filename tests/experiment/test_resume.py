"""A resumed run is what it would have been without the stop."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from marl_tools.core.errors import ConfigError, CorruptFileError
from marl_tools.core.io import read_jsonl
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.lock import RunLock, holder
from marl_tools.experiment.run import resume, train
from marl_tools.training.checkpoint import load_checkpoint
from marl_tools.training.checkpoint_folder import CheckpointFolder
from marl_tools.training.ippo import IPPO
from tests.core.film import run_script
from tests.envs_for_tests import Team

TIMES = ("wall_time", "collect_seconds", "update_seconds")


class Killed(BaseException):
    """What no handler of ours takes for a reason to save anything: as close to SIGKILL as a process can survive."""


def settings(folder, **changes):
    """6 updates of 4 x 16 steps, a checkpoint every second one."""
    return RunConfig.from_flat(
        {
            "env": "crossing",
            "timesteps": 384,
            "num_envs": 4,
            "rollouts": 16,
            "checkpoint_every": 2,
            "learning_epochs": 2,
            "mini_batches": 2,
            "hidden": (8,),
            "video_episodes": 0,
            "final_policy_eval_episodes": 3,
            "out": str(folder),
            **changes,
        }
    )


def kill_in_update(monkeypatch, update, step=7):
    """Let the process die in the middle of an update's rollout: without a save, a close or an unlock."""
    original = IPPO.collect

    def collect(self, on_episode=None):
        if self.updates == update:
            play, count = self.envs.step, iter(range(step))

            def step_or_die(*args, **kwargs):
                if next(count, None) is None:
                    monkeypatch.undo()
                    raise Killed
                return play(*args, **kwargs)

            monkeypatch.setattr(self.envs, "step", step_or_die)
        return original(self, on_episode)

    monkeypatch.setattr(IPPO, "collect", collect)


def rows(path):
    return [{key: value for key, value in row.items() if key not in TIMES} for row in read_jsonl(path)]


def assert_same_run(ours, theirs):
    for name in ("episodes.jsonl", "updates.jsonl"):
        assert json.dumps(rows(ours / name)) == json.dumps(rows(theirs / name)), name
    for which in ("latest", "best"):
        (tensors, state), (others, of_other) = (
            load_checkpoint(folder / "checkpoints" / f"{which}.safetensors") for folder in (ours, theirs)
        )
        assert tensors.keys() == others.keys()
        assert [name for name in tensors if not torch.equal(tensors[name], others[name])] == []
        assert state["best"] == of_other["best"]
        np.testing.assert_equal(state["shield"], of_other["shield"])
    for name in ("certificate.json", "evaluation-trained.json"):
        if (ours / name).exists() or (theirs / name).exists():
            assert (ours / name).read_text() == (theirs / name).read_text(), name


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"constraint": "lagrange", "native": True},
        {"shield": "ledger", "shield_calibrate": 2},
        {"shield": "ledger", "native": True, "eval_every": 2, "eval_episodes": 2},
        {"env": "simple_spread", "learning_rate_schedule": "linear", "entropy_schedule": "cosine"},
        {"env": "simple_tag", "native": True, "share": "none"},
        {
            "env": "tests.envs_for_tests:Team",
            "env_kwargs": {"max_cycles": 9, "deaths": {"agent_1": 4}, "births": {"agent_2": 3}},
        },
    ],
    ids=["ippo", "lagrange-native", "shield", "shield-native", "spread", "tag-native", "births-and-deaths"],
)
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(tmp_path, monkeypatch, changes):
    train(settings(tmp_path / "whole", **changes))
    kill_in_update(monkeypatch, update=3)
    with pytest.raises(Killed):
        train(settings(tmp_path / "cut", **changes))
    resume(tmp_path / "cut", trusted=True)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_run_in_workers_that_was_killed_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    changes = {"env": "simple_spread", "workers": 2, "final_policy_eval_episodes": 0}
    train(settings(tmp_path / "whole", **changes))
    kill_in_update(monkeypatch, update=3)
    # The vector env of a run is stepped part by part here.
    original = IPPO.update

    def update(self, rollout):
        if self.updates == 3:
            monkeypatch.undo()
            raise Killed
        return original(self, rollout)

    monkeypatch.setattr(IPPO, "update", update)
    with pytest.raises(Killed):
        train(settings(tmp_path / "cut", **changes))
    resume(tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_lines_later_than_the_checkpoint_are_set_aside_and_none_is_there_twice(tmp_path, monkeypatch):
    folder = tmp_path / "a"
    kill_in_update(monkeypatch, update=3, step=15)
    with pytest.raises(Killed):
        train(settings(folder, env="simple_spread", rollouts=25, timesteps=400))
    before = rows(folder / "episodes.jsonl")
    resume(folder)
    after, replayed = rows(folder / "episodes.jsonl"), rows(folder / "episodes.replayed.jsonl")
    assert [row for row in before if row["t_end"] > 200] == replayed != []
    assert all(row in after for row in before), "what was played again came out the same"
    assert len({(row["env_index"], row["episode"]) for row in after}) == len(after)
    assert [row["update"] for row in rows(folder / "updates.jsonl")] == [0, 1, 2, 3]
    assert [row["update"] for row in rows(folder / "updates.replayed.jsonl")] == [2]


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(tmp_path, monkeypatch):
    train(settings(tmp_path / "whole"))
    kill_in_update(monkeypatch, update=1)
    with pytest.raises(Killed):
        train(settings(tmp_path / "cut"))
    assert not CheckpointFolder(tmp_path / "cut").exists()
    resume(tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_damaged_checkpoint_costs_some_updates_but_not_the_run(tmp_path, monkeypatch, capsys):
    train(settings(tmp_path / "whole"))
    kill_in_update(monkeypatch, update=5)
    with pytest.raises(Killed):
        train(settings(tmp_path / "cut"))
    latest = tmp_path / "cut" / "checkpoints" / "latest.safetensors"
    latest.write_bytes(latest.read_bytes()[:-100])
    resume(tmp_path / "cut")
    assert "latest.safetensors is not a readable checkpoint" in (said := capsys.readouterr().err)
    assert "previous.safetensors, 128 env steps" in said
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


class Forgetful(Team):
    """Seeds mean nothing to it: it cannot be played again."""

    def reset(self, seed=None, options=None):
        return super().reset(None if self.max_seeds else seed, options)

    max_seeds = True


def test_an_env_that_does_not_play_again_alike_is_found_out_and_starts_fresh_episodes(
    tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "a"
    changes = {"env": "tests.experiment.test_resume:Forgetful", "env_kwargs": {"max_cycles": 9}}
    kill_in_update(monkeypatch, update=3)
    with pytest.raises(Killed):
        train(settings(folder, **changes))
    capsys.readouterr()
    resume(folder, trusted=True)
    assert "4 running episodes of team_v0 did not play again" in capsys.readouterr().err
    logs = rows(folder / "episodes.jsonl")
    given_up = [log for log in logs if "interrupted" in log["ends"].values()]
    # 32 steps of 9-step episodes: 5 steps of the fourth were played when the checkpoint was written.
    assert [(log["episode"], log["length"], log["t_end"]) for log in given_up] == [(3, 5, 128)] * 4
    assert len({(log["env_index"], log["episode"]) for log in logs}) == len(logs)
    assert len({log["seed"] for log in logs}) == len(logs)


def test_the_best_so_far_is_remembered(tmp_path, monkeypatch):
    kill_in_update(monkeypatch, update=5)
    with pytest.raises(Killed):
        train(settings(tmp_path / "a", ma_window=3))
    folder = CheckpointFolder(tmp_path / "a")
    _, state = folder.load()
    resume(tmp_path / "a", timesteps=448)
    assert folder.load("best")[1]["best"]["average"] >= state["best"]["average"]


def test_one_process_at_a_time_and_the_other_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "a"
    kill_in_update(monkeypatch, update=3)
    with pytest.raises(Killed):
        train(settings(folder))
    with RunLock(folder):
        assert holder(folder).pid == os.getpid()
        with pytest.raises(
            ConfigError, match=rf"a is in use by process {os.getpid()}: wait for it, or stop it"
        ):
            resume(folder)
    assert holder(folder) is None
    resume(folder)
    assert not (folder / "run.lock").exists()


def test_a_lock_dies_with_its_process(tmp_path):
    script = "import sys, time; from pathlib import Path; from marl_tools.experiment.lock import RunLock\n"
    script += "with RunLock(Path(sys.argv[1])): print('locked', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(ConfigError, match=f"in use by process {process.pid}"), RunLock(tmp_path):
            pass
        process.kill()
        process.wait()
    assert (tmp_path / "run.lock").exists(), "nobody could remove it"
    with RunLock(tmp_path):
        assert holder(tmp_path).pid == os.getpid()


SUICIDAL = """
import os, signal, sys, threading
from marl_tools.cli import main
from marl_tools.training.checkpoint_folder import CheckpointFolder
original = CheckpointFolder.save
def save(*args, **facts):
    original(*args, **facts)
    threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGKILL)).start()
CheckpointFolder.save = save
main(["train", *sys.argv[1:]])
"""


def test_a_real_kill_at_any_moment(tmp_path):
    """SIGKILL soon after a checkpoint, wherever the run is by then."""
    train(settings(tmp_path / "whole", timesteps=768, shield="ledger"))
    cut = tmp_path / "cut"
    flags = [
        "--timesteps",
        "768",
        "--num-envs",
        "4",
        "--rollouts",
        "16",
        "--checkpoint-every",
        "2",
        "--hidden",
        "8",
    ]
    flags += ["--learning-epochs", "2", "--mini-batches", "2", "--shield", "ledger", "--video-episodes", "0"]
    killed = run_script(SUICIDAL, "crossing", *flags, "--final-policy-eval-episodes", "3", "--out", cut)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resume(cut)
    assert_same_run(tmp_path / "whole", cut)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("envs", {"frames": 1}),
        ("rng", 3),
        ("best", None),
        ("frames", "many"),
        ("constraint", []),
        ("updates", None),
    ],
)
def test_a_strangers_state_is_refused_by_name_however_wrong_it_is(tmp_path, field, value):
    folder = tmp_path / "a"
    train(settings(folder, constraint="lagrange", final_policy_eval_episodes=0))
    tensors, state = load_checkpoint(folder / "checkpoints" / "latest.safetensors")
    del state["schema"]
    CheckpointFolder(folder).save("latest", tensors, {**state, field: value})
    with pytest.raises(CorruptFileError, match=r"the checkpoint in .*a does not hold the state of this run"):
        resume(folder, timesteps=448)


def test_a_log_that_is_none_is_refused_with_file_row_and_field(tmp_path):
    folder = tmp_path / "a"
    train(settings(folder, final_policy_eval_episodes=0))
    whole = (folder / "episodes.jsonl").read_text()
    for broken, message in (
        ('{"t_end": "late"}', r"episodes\.jsonl, row 1: field 't_end' is 'late', not a whole number"),
        ('{"t_end": 3}', r"episodes\.jsonl, row 1: not an episode log: .*'returns'"),
    ):
        (folder / "episodes.jsonl").write_text(broken + "\n")
        with pytest.raises(CorruptFileError, match=message):
            resume(folder, timesteps=448)
        assert (folder / "episodes.jsonl").read_text() == broken + "\n"
    (folder / "episodes.jsonl").write_text(whole)
    resume(folder, timesteps=448)


def test_a_run_stops_when_it_is_solved_and_goes_on_only_for_more(tmp_path):
    folder = tmp_path / "a"
    # Every episode of 9 steps earns 1 + 2 + ... + 9 a head.
    changes = {"env": "tests.envs_for_tests:Team", "env_kwargs": {"max_cycles": 9}, "ma_window": 8}
    train(settings(folder, **changes, stop_at=45.0))
    done = json.loads((folder / "done.json").read_text())
    assert (done["state"], done["frames"]) == ("solved", 128), (
        "8 episodes of 4 copies are over after 18 steps each"
    )
    with pytest.raises(ConfigError, match="is solved at 128 env steps: give a higher --stop-at"):
        resume(folder, trusted=True)
    resume(folder, stop_at=46.0, trusted=True)
    done = json.loads((folder / "done.json").read_text())
    assert (done["state"], done["frames"]) == ("done", 384)


def test_evaluations_on_the_way_are_logged_as_such_and_decide_on_the_best(tmp_path):
    folder = tmp_path / "a"
    train(settings(folder, eval_every=2, eval_episodes=2))
    logs = [log for log in rows(folder / "episodes.jsonl") if log["split"] == "eval"]
    assert [(log["update"], log["t_end"]) for log in logs] == [(1, 128)] * 2 + [(3, 256)] * 2 + [(5, 384)] * 2
    # The seeds of the final evaluation start at 1,000,000 and must be fresh.
    assert {log["seed"] for log in logs} == {3_000_000, 3_000_001}
    judged = {
        row["update"]: row["eval_return"] for row in rows(folder / "updates.jsonl") if "eval_return" in row
    }
    of_update = {
        row["update"]: np.mean(
            [np.mean(list(log["returns"].values())) for log in logs if log["update"] == row["update"]]
        )
        for row in logs
    }
    assert judged == pytest.approx(of_update)
    best = CheckpointFolder(folder).load("best")[1]["best"]
    assert best["average"] == max(judged.values())
    assert Path(folder / "checkpoints" / "manifest.json").exists()
