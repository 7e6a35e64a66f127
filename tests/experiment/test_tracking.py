"""Runs that TensorBoard is told of: all that wandb is told, without gaps or repeats, and never at the cost of the run."""

import json
import shutil
import sys

import pytest

from marl_tools.core.errors import ConfigError, MissingExtraError
from marl_tools.core.io import load_from_file, read_jsonl
from marl_tools.core.run_logs import read_episodes
from marl_tools.experiment import tracking
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.run import resume, train
from marl_tools.experiment.tracking import certificate_table, evaluation_table, start_trackers
from tests.core.test_tensorboard import curve, read


def settings(folder, **changes):
    flat = {
        "env": "crossing",
        "timesteps": 128,
        "num_envs": 4,
        "rollouts": 16,
        "hidden": (8,),
        "checkpoint_every": 1,
        "video_episodes": 1,
        "final_policy_eval_episodes": 3,
        "final_policy_eval_horizons": (5, 20),
        "eval_every": 1,
        "eval_episodes": 2,
        "use_tensorboard": True,
        "out": str(folder),
    }
    return RunConfig.from_flat({**flat, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tracked") / "run"
    train(settings(folder))
    return folder


def returns_of(folder, split):
    """(t_end, mean return) of the log, in its order."""
    logs = [
        log for log in read_episodes(folder / "episodes.jsonl") if log.split == split and not log.interrupted
    ]
    return [(log.t_end, log.mean_return) for log in logs]


def assert_drawn(folder, name, split):
    """A curve has every episode of the log: its value, and its step but for those that share it."""
    drawn, logged = curve(folder / "tensorboard", name), returns_of(folder, split)
    assert [value for _, value in drawn] == pytest.approx([value for _, value in logged])
    assert all(end - 4 < step <= end for (step, _), (end, _) in zip(drawn, logged, strict=True))


def test_every_episode_and_update_of_the_logs_is_a_point(finished):
    assert_drawn(finished, "train/mean_return", "train")
    assert_drawn(finished, "eval/learning/mean_return", "eval")
    updates = list(read_jsonl(finished / "updates.jsonl"))
    [group] = updates[0]["groups"]
    drawn = curve(finished / "tensorboard", f"update/groups/{group}/loss")
    assert drawn == [
        (row["frames"], pytest.approx(row["groups"][group]["loss"], rel=1e-5)) for row in updates
    ]


def test_evaluations_before_and_after_share_a_chart(finished):
    for name in ("random", "trained"):
        drawn = curve(finished / "tensorboard" / f"eval-{name}", "eval/mean_return")
        mean = load_from_file(finished, f"evaluation-{name}.json")["returns"]["mean_over_agents"]["mean"]
        assert len(drawn) == 3
        assert sum(value for _, value in drawn) / 3 == pytest.approx(mean, rel=1e-5)


def test_tables_of_evaluations_and_certificate_and_the_film_are_there(finished):
    events = read(finished / "tensorboard")
    steps = {
        name: [event.step for event in events.Tensors(f"table/{name}")]
        for name in ("evaluation-random", "evaluation-trained", "certificate")
    }
    assert steps == {"evaluation-random": [0], "evaluation-trained": [128], "certificate": [128]}
    [certificate] = events.Tensors("table/certificate")[0].tensor_proto.string_val
    assert (
        "| steps | who | violations | episodes | estimate | low | high | bound | allowed |"
        in certificate.decode()
    )
    assert len(events.Images("video/final")) == 1


def test_a_table_of_an_evaluation_has_every_agent_with_its_interval(finished):
    summary = load_from_file(finished, "evaluation-trained.json")
    columns, rows = evaluation_table(summary)
    assert columns == ["agent", "mean return", "low", "high", "mean cost", "episodes"]
    assert [row[0] for row in rows] == ["mean over agents", *summary["returns"]["agents"]]
    for row in rows[1:]:
        expected = summary["returns"]["agents"][row[0]]
        assert row[1:4] == [expected["mean"], *expected["interval"]]
        assert row[4:] == [summary["costs"]["agents"][row[0]]["mean"], 3]
    summary["returns"]["mean_over_agents"]["interval"] = None
    assert evaluation_table(summary)[1][0][2:4] == [None, None]


def test_a_table_of_a_certificate_has_each_horizon_once_against_the_allowed_risk(finished):
    certificate = load_from_file(finished, "certificate.json")
    # A second horizon that the cap made equal, and one that says nothing.
    last = certificate["horizons"][-1]
    refused = {"team": {"episodes": 3, "violations": 0, "censored": 3, "refused": "cut off"}}
    certificate["horizons"] += [last, {"horizon": 99, "h": 99, "subjects": refused}]
    columns, rows = certificate_table(certificate, 0.05)
    assert len(rows) == 2 * len(last["subjects"]) + 1
    for row in (dict(zip(columns, row, strict=True)) for row in rows[:-1]):
        assert row["allowed"] == (None if row["who"] == "team" else 0.05)
        assert row["low"] <= row["estimate"] <= row["high"]
    assert rows[-1] == [99, "team", 0, 3, None, None, None, None, None]


def test_a_run_that_goes_on_draws_every_episode_once(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    resume(tmp_path / "run", timesteps=256)
    assert_drawn(tmp_path / "run", "train/mean_return", "train")
    assert_drawn(tmp_path / "run", "eval/learning/mean_return", "eval")
    assert len(curve(tmp_path / "run" / "tensorboard" / "eval-trained", "eval/mean_return")) == 3


def test_a_tracker_that_cannot_write_costs_no_run(finished, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "tensorboard" / "eval-trained")
    (folder / "tensorboard" / "eval-trained").write_text("in the way")
    result = resume(folder, timesteps=192)
    assert result.after is not None
    assert json.loads((folder / "done.json").read_text())["frames"] == 192
    assert "TensorBoard misses something: FileExistsError" in "".join(capsys.readouterr())
    assert_drawn(folder, "train/mean_return", "train")


def test_without_the_package_nothing_is_begun(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtraError, match="use_tensorboard"):
        train(settings(tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_of_wandb_leaves_no_event_file_open(tmp_path, monkeypatch):
    def refuse(*_):
        raise ConfigError("no")

    monkeypatch.setattr(tracking.wandb, "start_run", refuse)
    # An open file that is forgotten would be a warning, and warnings are errors here.
    with pytest.raises(ConfigError, match="no"):
        start_trackers(settings(tmp_path / "run"), tmp_path / "run", frames=0)


def test_nothing_is_tracked_unless_asked_for(tmp_path):
    config = settings(tmp_path, use_tensorboard=False)
    with start_trackers(config, tmp_path, frames=0) as trackers:
        trackers.table("t", ["a"], [[1]], 0)
    assert list(tmp_path.iterdir()) == []
