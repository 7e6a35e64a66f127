"""A disk that fills up: one message, nothing finished is lost, and the run goes on once there is room."""

import signal

import pytest

from marl_tools.core.errors import DiskFullError, Interrupted
from marl_tools.experiment.run import resume, train
from marl_tools.experiment.runs import summarise_run
from marl_tools.training.checkpoint_folder import CheckpointFolder
from marl_tools.training.ippo import IPPO
from tests.core.film import run_script
from tests.experiment.test_resume import assert_same_run, rows, settings

CHANGES = {
    "env": "tests.envs_for_tests:Team",
    "env_kwargs": {"max_cycles": 2},
    "final_policy_eval_episodes": 0,
}

FLAGS = ["tests.envs_for_tests:Team", "--env-kwargs", "max_cycles=2", "--timesteps", "384", "--num-envs", "4"]
FLAGS += [
    "--rollouts",
    "16",
    "--checkpoint-every",
    "2",
    "--learning-epochs",
    "2",
    "--mini-batches",
    "2",
    "--hidden",
    "8",
]
FLAGS += ["--video-episodes", "0", "--final-policy-eval-episodes", "0"]
"""The same run as `settings` describe."""

# The system takes no more than so many bytes into any file of this process: every further write fails for real.
LIMITED = """
import resource, sys
from marl_tools.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.exit(main(["train", *sys.argv[2:]]))
"""


def test_a_log_without_room_stops_the_run_with_one_message_and_can_be_gone_on_with(tmp_path):
    train(settings(tmp_path / "whole", **CHANGES))
    checkpoint = (tmp_path / "whole" / "checkpoints" / "latest.safetensors").stat().st_size
    log = (tmp_path / "whole" / "episodes.jsonl").stat().st_size
    assert checkpoint < log / 2, "else it is the checkpoint that finds no room"
    full = run_script(LIMITED, int(log * 0.7), *FLAGS, "--out", tmp_path / "cut")
    assert full.returncode == 1, full.stderr
    assert "Traceback" not in full.stderr
    message = full.stderr[full.stderr.index("marl-tools: ") :]
    assert message.count("\n") == 1
    assert "no room left on the disk of" in message
    assert f"Make room, then: marl-tools train --resume {tmp_path / 'cut'} --trust" in message
    # What was finished is readable: whole lines, whole checkpoints, and the reason.
    assert rows(tmp_path / "cut" / "episodes.jsonl")
    assert CheckpointFolder(tmp_path / "cut").load()[1]["frames"] > 0
    assert summarise_run(tmp_path / "cut").state == "failed"
    resume(tmp_path / "cut", trusted=True)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_checkpoint_without_room_leaves_the_one_before_and_can_be_gone_on_with(tmp_path, monkeypatch):
    train(settings(tmp_path / "whole", **CHANGES))
    original = CheckpointFolder.save

    def full(self, which, tensors, state, **facts):
        if state["updates"] > 2:
            raise OSError(28, "No space left on device")
        original(self, which, tensors, state, **facts)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "save", full)
        with pytest.raises(
            DiskFullError, match=r"No space left on device\)\. All that was finished before is whole"
        ):
            train(settings(tmp_path / "cut", **CHANGES))
    assert CheckpointFolder(tmp_path / "cut").load()[1]["updates"] == 2
    resume(tmp_path / "cut", trusted=True)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_ctrl_c_on_a_full_disk_says_that_the_last_update_is_not_saved(tmp_path, monkeypatch, capsys):
    original = IPPO.update

    def update(self, rollout):
        if self.updates == 3:
            signal.raise_signal(signal.SIGINT)
        return original(self, rollout)

    def full(self, *args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(IPPO, "update", update)
        patch.setattr(CheckpointFolder, "save", full)
        with pytest.raises(Interrupted, match=r"the state before is kept\. Go on with: "):
            train(settings(tmp_path / "a", **CHANGES, checkpoint_every=100))
    assert "the last update could not be saved: No space left on device" in capsys.readouterr().err
