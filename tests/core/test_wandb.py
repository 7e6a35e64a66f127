"""Experiment configuration and tracking, without an account or a network."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from marl_tools.core.errors import ConfigError
from marl_tools.core.history import History
from marl_tools.core.types import EpisodeLog
from marl_tools.core.wandb import (
    create_base_config,
    finish,
    log_history,
    log_points,
    log_table,
    log_video,
    start_run,
)

REQUIRED = {
    "env_name": "simple_spread",
    "num_envs": 8,
    "n_agents": 3,
    "timesteps": 1000,
    "num_runs": 2,
    "rollouts": 128,
    "learning_epochs": 4,
    "mini_batches": 4,
    "learning_rate": 2.5e-4,
    "max_risk": 0.05,
    "use_wandb": False,
}


def episode(t_end, **changes):
    fields = {
        "env_name": "simple_spread",
        "episode": t_end // 25,
        "t_start": t_end - 25,
        "t_end": t_end,
        "wall_time": 0.5,
        "length": 25,
        "returns": {"agent_0": 1.0 * t_end, "000": -1.0},
        "costs": {"agent_0": 0.0, "000": 2.0},
        "lengths": {"agent_0": 25, "000": 20},
        "ends": {"agent_0": "truncated", "000": "terminated"},
        "first_violation": {"agent_0": None, "000": 3},
    }
    return EpisodeLog(**{**fields, **changes})


class FakeRun:
    """Remembers what it is told."""

    def __init__(self):
        self.points = []
        self.metrics = []

    def define_metric(self, name, step_metric=None, hidden=None):
        self.metrics.append((name, step_metric))

    def log(self, point):
        self.points.append(point)


def test_the_config_has_the_27_arguments_in_order_with_their_defaults():
    parameters = inspect.signature(create_base_config).parameters
    assert len(parameters) == 28
    assert list(parameters)[:11] == list(REQUIRED)
    assert all(parameters[name].default is inspect.Parameter.empty for name in REQUIRED)
    config = create_base_config(**REQUIRED)
    assert list(config) == [name for name in parameters if name != "overrides"]
    assert {key: config[key] for key in REQUIRED} == REQUIRED
    assert {key: value for key, value in config.items() if key not in REQUIRED} == {
        "shield_patience": 64,
        "shield_opponent_mode": "monotone_floor",
        "shield_reward_mode": "bayesian",
        "shield_credible_delta": 0.05,
        "shield_credible_schedule": "summable",
        "experiment_tag": "",
        "seed_offset": 0,
        "wm_version": "v0",
        "om_version": "v0",
        "ippo_version": "v0",
        "lag_version": "v0",
        "shield_version": "v0",
        "final_policy_eval_episodes": 0,
        "final_policy_eval_horizons": (1, 10, 50, 100, 200),
        "final_policy_eval_seed_offset": 1_000_000,
        "final_policy_eval_confidence": 0.95,
    }


def test_numpy_numbers_and_lists_become_plain_and_other_keys_pass():
    changes = {"num_envs": np.int64(4), "max_risk": np.float32(0.5), "final_policy_eval_horizons": [1, 5]}
    config = create_base_config(
        **{**REQUIRED, **changes}, gamma=0.9, wandb_mode="offline", learning_rate_end=0.0
    )
    assert type(config["num_envs"]) is int
    assert type(config["max_risk"]) is float
    assert config["final_policy_eval_horizons"] == (1, 5)
    assert (config["gamma"], config["learning_rate_end"]) == (0.9, 0.0)


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("learning_rte", "learning_rate"),
        ("minibatches", "mini_batches"),
        ("rollout", "rollouts"),
        ("Num_Envs", "num_envs"),
    ],
)
def test_a_misspelt_argument_gets_a_did_you_mean(typo, meant):
    with pytest.raises(ConfigError, match=f"{typo!r}.*Did you mean {meant!r}"):
        create_base_config(**REQUIRED, **{typo: 1})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[
            (key, value)
            for key in ("num_envs", "n_agents", "timesteps", "num_runs")
            for value in (0, -1, True, 2.0)
        ],
        *[
            (key, value)
            for key in ("rollouts", "learning_epochs", "mini_batches")
            for value in (0, "4", None)
        ],
        *[("learning_rate", value) for value in (0, -1e-3, float("nan"), float("inf"), True, "high")],
        *[
            (key, value)
            for key in ("max_risk", "shield_credible_delta")
            for value in (0, 1, 1.5, float("nan"), None)
        ],
        *[("final_policy_eval_confidence", value) for value in (0, 1, 95)],
        *[("final_policy_eval_horizons", value) for value in ((), (1, 1), (5, 2), 10, "12")],
        *[(key, -1) for key in ("seed_offset", "shield_patience", "final_policy_eval_episodes")],
        ("final_policy_eval_seed_offset", 1.5),
        *[("final_policy_eval_horizons", value) for value in ((0, 1), (True, 2), (1.0, 2), ("1", 2))],
        ("use_wandb", 1),
        ("use_wandb", "yes"),
        ("env_name", ""),
        ("experiment_tag", None),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name_and_value(key, value):
    with pytest.raises(ConfigError, match=re.escape(f"{key}={value!r}")):
        create_base_config(**{**REQUIRED, key: value})


@pytest.mark.parametrize(
    ("key", "choice"),
    [
        ("shield_opponent_mode", "worst_case"),
        ("shield_reward_mode", "bayesian_potential"),
        ("shield_credible_schedule", "ppr"),
        *[(f"{part}_version", "v0") for part in ("wm", "om", "ippo", "lag", "shield")],
    ],
)
def test_an_unknown_mode_or_version_lists_the_choices(key, choice):
    assert create_base_config(**REQUIRED, **{key: choice})[key] == choice
    with pytest.raises(ConfigError, match=f"{key}='v9'.*{choice!r}"):
        create_base_config(**REQUIRED, **{key: "v9"})


def test_without_wandb_nothing_is_imported_and_everything_is_a_no_op(tmp_path):
    code = f"""
import sys
from marl_tools.core.wandb import *
from marl_tools.core.wandb import finish, log_history, log_points, log_table, log_video, start_run
run = start_run("ippo", 0, {REQUIRED!r})
log_history(run, [], "train"); log_points(run, [{{}}]); log_video(run, "x.mp4", "clip", 3)
log_table(run, "table", [], [], 3); finish(run)
print(run, "wandb" in sys.modules, "torch" in sys.modules)
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=tmp_path).split() == [
        "None",
        "False",
        "False",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"use_wandb": True, "wandb_mode": "on-line"}, "wandb_mode.*'on-line'.*'online'"),
        ({"use_wandb": "yes"}, "use_wandb='yes'"),
    ],
)
def test_a_bad_tracking_setting_is_refused_before_wandb_is_asked(changes, hint):
    with pytest.raises(ConfigError, match=hint):
        start_run("ippo", 0, create_base_config(**REQUIRED), changes)
    with pytest.raises(ConfigError, match=r"'use_wandb'.*create_base_config"):
        start_run("ippo", 0, {"env_name": "x"})
    with pytest.raises(ConfigError, match="run_idx=-1"):
        start_run("ippo", -1, {**REQUIRED, "use_wandb": True})


def test_an_episode_is_one_point_at_t_end_with_values_per_agent_and_team():
    run = FakeRun()
    log_history(
        run, [episode(25, agent_metrics={"000": {"speed": 2.0}}, slack={"000": None})], prefix="train"
    )
    [point] = run.points
    assert point["t_end"] == 25
    assert point["train/returns/agent_0"] == 25.0
    assert point["train/costs/000"] == 2.0
    assert point["train/agent_metrics/000/speed"] == 2.0
    assert (point["train/team_return"], point["train/mean_return"], point["train/team_cost"]) == (
        24.0,
        12.0,
        2.0,
    )
    assert (point["train/violated"], point["train/interrupted"]) == (1, 0)
    assert point["train/first_violation/000"] == 3
    assert not [
        key for key in point if "slack" in key or "ends" in key or key.endswith("first_violation/agent_0")
    ]
    assert ("train/*", "t_end") in run.metrics


def test_all_four_kinds_of_history_give_the_same_points():
    logs = [episode(25), episode(50)]
    history = History()
    history.extend(logs)
    lists = {"t_end": [25, 50], "returns": [log.returns for log in logs]}
    rows = [{"t_end": log.t_end, "returns": log.returns} for log in logs]
    sent = []
    for kind in (logs, history, rows, lists):
        run = FakeRun()
        log_history(run, kind, "eval")
        sent.append(
            [
                {key: point[key] for key in ("t_end", "eval/returns/agent_0", "eval/returns/000")}
                for point in run.points
            ]
        )
    assert sent[0] == sent[1] == sent[2] == sent[3]
    assert [point["t_end"] for point in sent[0]] == [25, 50]


def test_rows_without_t_end_are_placed_by_their_index():
    run = FakeRun()
    log_history(run, {"loss": np.array([0.5, 0.25], np.float32)})
    assert run.points == [{"loss": 0.5, "index": 0}, {"loss": 0.25, "index": 1}]
    assert all(type(point["loss"]) is float for point in run.points)
    assert ("*", "index") in run.metrics


def test_metrics_are_declared_once_a_run():
    run, other = FakeRun(), FakeRun()
    for t in (25, 50):
        log_history(run, [episode(t)], "train")
        log_points(run, [{"update": t, "loss": 0.1}], "update", "update")
    log_history(other, [episode(25)], "train")
    assert len(run.metrics) == len(set(run.metrics)) == 4
    assert ("update/*", "update") in run.metrics
    assert ("train/*", "t_end") in other.metrics


@pytest.mark.parametrize(
    ("history", "hint"),
    [
        ({"t_end": [1, 2], "loss": [1, 2, 3]}, "'t_end': 2, 'loss': 3"),
        ({"t_end": 3}, r"history\['t_end'\] is 3"),
        ({"t_end": "ab"}, "needs a list"),
        ([{"t_end": 1}, {"loss": 2}], "row 1 has t_end=None"),
        ([{"t_end": 1}, {"t_end": float("nan")}], "row 1 has t_end=nan"),
        ([3], "holds a int"),
    ],
)
def test_a_history_that_cannot_be_drawn_is_refused_and_nothing_is_sent(history, hint):
    run = FakeRun()
    with pytest.raises(ConfigError, match=hint):
        log_history(run, history)
    assert run.points == []


def records(folder):
    """The records of an offline run, as wandb's own reader prints them."""
    [file] = folder.glob("*.wandb")
    wandb = Path(sys.executable).with_name("wandb")
    out = subprocess.check_output([wandb, "leet", "inspect", file, "--json"], text=True)
    return [json.loads(line) for line in out.splitlines()]


def points(folder):
    return [record["history"]["item"] for record in records(folder) if record["type"] == "history"]


@pytest.fixture(scope="module")
def offline(tmp_path_factory):
    """One offline run with points out of order, equal and per update, a clip; the same run resumed, and another beside it."""
    folder = tmp_path_factory.mktemp("tracking")
    base = create_base_config(
        **{**REQUIRED, "use_wandb": True}, experiment_tag="tag", seed_offset=100, wandb_dir=folder / "new"
    )
    # Whatever the surroundings say, the default must be reached by itself.
    mode = os.environ.pop("WANDB_MODE", None)
    try:
        run = start_run("ippo", 1, base, {"clip": np.float32(0.2), "folder": folder})
        beside = start_run("ippo", 2, base)
        with pytest.raises(ConfigError) as again_refused:
            start_run("ippo", 1, base)
        log_history(run, [episode(t) for t in (25, 75, 50, 50)], "train")
        log_points(run, [{"update": n, "loss": n / 10} for n in (1, 0)], "update", "update")
        (folder / "clip.mp4").write_bytes(b"not looked into")
        log_video(run, folder / "clip.mp4", "videos/train", 75)
        log_table(run, "table/certificate", ["who", "estimate"], [["000", 0.25], ["team", None]], 75)
        log_history(beside, [episode(25)], "train")
        other_seed = start_run("ippo", 1, base, {"seed_offset": 7})
        finish(other_seed)
        finish(run)
        resumed = start_run("ippo", 1, base)
        log_history(resumed, [episode(100)], "train")
        finish(resumed)
        finish(beside)
    finally:
        if mode is not None:
            os.environ["WANDB_MODE"] = mode
    ids = [r.id for r in (run, beside, resumed)]
    folders = [Path(r.settings.sync_dir) for r in (run, beside, resumed)]
    return SimpleNamespace(
        other_seed=other_seed.id,
        root=folder / "new",
        ids=ids,
        folders=folders,
        refusal=str(again_refused.value),
    )


def test_no_point_is_lost_offline_out_of_order_or_twice_at_one_step(offline):
    sent = points(offline.folders[0])
    train = [point for point in sent if "train/returns/agent_0" in point]
    assert [(point["t_end"], point["train/returns/agent_0"]) for point in train] == [
        (25, 25),
        (75, 75),
        (50, 50),
        (50, 50),
    ]
    updates = [(point["update"], point["update/loss"]) for point in sent if "update/loss" in point]
    assert updates == [(1, 0.1), (0, 0)]


def test_the_step_metric_is_declared_for_every_kind_of_point(offline):
    metrics = [record["metric"] for record in records(offline.folders[0]) if record["type"] == "metric"]
    declared = {(metric.get("glob_name") or metric["name"], metric.get("step_metric")) for metric in metrics}
    assert {("train/*", "t_end"), ("update/*", "update"), ("videos/train", "t_end")} <= declared


def test_a_clip_is_copied_into_the_run_at_its_step(offline):
    [point] = [point for point in points(offline.folders[0]) if "videos/train.path" in point]
    assert point["t_end"] == 75
    assert (offline.folders[0] / "files" / point["videos/train.path"]).read_bytes() == b"not looked into"


def test_a_table_is_kept_with_the_run_at_its_step(offline):
    [point] = [point for point in points(offline.folders[0]) if "table/certificate.path" in point]
    assert point["t_end"] == 75
    content = json.loads((offline.folders[0] / "files" / point["table/certificate.path"]).read_text())
    assert (content["columns"], content["data"]) == (["who", "estimate"], [["000", 0.25], ["team", None]])


def test_the_run_carries_name_group_tag_config_and_seed(offline):
    [run] = [record["run"] for record in records(offline.folders[0]) if record["type"] == "run"]
    assert run["display_name"] == "ippo-simple_spread-run1"
    assert (run["run_group"], run["tags"]) == ("tag", ["tag"])
    config = run["config"]["update"]
    assert (config["seed"], config["run_idx"], config["algo"]) == (101, 1, "ippo")
    assert config["learning_rate"] == REQUIRED["learning_rate"]
    assert config["clip"] == pytest.approx(0.2)
    assert config["final_policy_eval_horizons"] == [1, 10, 50, 100, 200]


def test_everything_is_written_to_the_given_folder_offline(offline):
    assert offline.root.is_dir()
    for folder in offline.folders:
        assert offline.root in folder.parents
        assert folder.name.startswith("offline-run-")


def test_the_same_run_keeps_its_id_and_a_resumed_part_loses_no_point(offline):
    first, beside, resumed = offline.ids
    assert first == resumed
    assert len({first, beside, offline.other_seed}) == 3
    assert len(set(offline.folders)) == 3
    [point] = [point for point in points(offline.folders[2]) if "t_end" in point]
    assert point["t_end"] == 100
    assert [point["t_end"] for point in points(offline.folders[1])] == [25]


def test_the_same_run_twice_at_once_is_refused(offline):
    assert re.search(f"{offline.ids[0]!r} in mode 'offline'.*in use", offline.refusal)


def service_processes(pid):
    """wandb's service processes that the process ``pid`` started: each is told whom it serves."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"--pid" in command and command[command.index(b"--pid") + 1] == str(pid).encode():
            found.append(int(entry.name))
    return found


TRAIN = """
import signal, sys, time
# Whoever starts the tests in the background may have had SIGINT ignored, which children inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
from marl_tools.core.wandb import log_points, start_run
run = start_run("ippo", 0, {"use_wandb": True, "env_name": "mpe2.simple_spread_v3:parallel_env", "wandb_dir": "."})
log_points(run, [{"t_end": n, "x": n} for n in range(5)], "train")
print(run.id, run.settings.sync_dir, flush=True)
if sys.argv[1] == "crash":
    raise RuntimeError("the training broke")
time.sleep(30)
"""


@pytest.mark.parametrize("ending", ["interrupt", "crash"])
def test_after_ctrl_c_or_a_crash_no_service_process_is_left_and_no_point_lost(tmp_path, ending):
    # A child of a process that tracks a run shares that one's service, by this variable.
    alone = {key: value for key, value in os.environ.items() if key != "WANDB_SERVICE"}
    with subprocess.Popen(
        [sys.executable, "-c", TRAIN, ending],
        cwd=tmp_path,
        env=alone,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        told = child.stdout.readline()
        if ending == "interrupt":
            assert service_processes(child.pid)
            # As a terminal does it: to every process of the group.
            os.killpg(child.pid, signal.SIGINT)
        errors = child.communicate()[1]
    assert child.returncode != 0
    assert ("KeyboardInterrupt" if ending == "interrupt" else "the training broke") in errors
    deadline = time.monotonic() + 20
    while service_processes(child.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert service_processes(child.pid) == []
    run_id, folder = told.split()
    assert re.fullmatch(r"ippo-mpe2-simple_spread_v3-parallel_env-0-0-[0-9a-f]{8}", run_id)
    assert [point["t_end"] for point in points(tmp_path / folder)] == [0, 1, 2, 3, 4]
