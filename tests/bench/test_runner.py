"""A plan called again and again: done runs are left alone, others go on, more may be added, another plan is refused."""

import dataclasses
import json
import os
import re
import shutil

import pytest

from marl_tools.bench.plan import Excluded, Plan
from marl_tools.bench.runner import PlanFailed, check_complete, plan_status, run_plan
from marl_tools.cli import main
from marl_tools.core.errors import ConfigError, CorruptFileError, Interrupted, MissingExtraError
from marl_tools.envs import tasks
from marl_tools.experiment.lock import RunLock
from tests.bench.saboteur import SABOTEUR, TEAM, TINY, HereExecutor

PLAN = Plan(
    name="small",
    settings=TINY,
    methods={"shared": {}, "separate": {"share": "none"}},
    tasks={"team": {"env": TEAM}},
    seeds=(0,),
)


def carry_out(plan, folder, **kwargs):
    """The status, and which runs were started for it."""
    executor = HereExecutor(kwargs.pop("stop_at", None))
    status = run_plan(plan, folder, executor=executor, trusted=True, **kwargs)
    return status, executor.started


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans") / "small"
    return folder, *carry_out(PLAN, folder)


def with_bug(**kwargs):
    task = {"env": SABOTEUR, "env_kwargs": {"max_cycles": 9, "harm": "raise", **kwargs}}
    return dataclasses.replace(PLAN, tasks={"team": {"env": TEAM}, "bug": task})


def test_a_plan_leaves_its_definition_its_runs_and_a_summary(done):
    folder, status, started = done
    ids = [run.id for run in PLAN.runs()]
    assert started == ids == sorted(ids, key=ids.index)
    assert (status.done, status.failures) == (2, [])
    stored = json.loads((folder / "plan.json").read_text())
    assert [run["id"] for run in stored["runs"]] == ids
    assert stored["methods"] == {"shared": {}, "separate": {"share": "none"}}
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["counts"], summary["failures"]) == ({"done": 2}, [])
    assert {run["id"]: (run["state"], run["frames"]) for run in summary["runs"]} == dict.fromkeys(
        ids, ("done", 96)
    )
    assert {path.name for path in (folder / "runs").iterdir()} == set(ids)
    assert not (folder / "run.lock").exists()
    check_complete(status)


def test_called_again_nothing_is_left_to_do_and_more_seeds_methods_and_tasks_are_added(done, tmp_path):
    folder = shutil.copytree(done[0], tmp_path / "small")
    assert carry_out(PLAN, folder)[1] == []
    more = dataclasses.replace(
        PLAN,
        methods={**PLAN.methods, "faster": {"learning_rate": 1e-3}},
        tasks={**PLAN.tasks, "long": {"env": TEAM, "env_kwargs": {"max_cycles": 20}}},
        excluded=(Excluded(method="faster", task="long", why="to leave something out"),),
        seeds=(0, 1),
    )
    status, started = carry_out(more, folder)
    assert started == [run.id for run in more.runs() if run not in PLAN.runs()]
    assert len(status.runs) == status.done == 10
    # Fewer seeds are asked for: the others stay, and none is run.
    assert carry_out(dataclasses.replace(more, seeds=(1,)), folder)[1] == []
    assert json.loads((folder / "plan.json").read_text())["seeds"] == [0, 1]
    with pytest.raises(ConfigError, match=r"methods\.faster is missing now"):
        run_plan(PLAN, folder, executor=HereExecutor(), trusted=True)


@pytest.fixture
def stored(tmp_path):
    """A folder in which the plan was begun and stopped before its first run."""
    with pytest.raises(Interrupted, match="stopped with 0 of 2 runs done"):
        carry_out(PLAN, tmp_path / "small", stop_at=0)
    return tmp_path / "small"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "other"}, "its name is 'small', not 'other'"),
        ({"settings": TINY | {"timesteps": 5}}, "settings.timesteps is 96 there, 5 now"),
        ({"settings": TINY | {"threads": 2}}, "settings.threads is not set there, 2 now"),
        (
            {"methods": {"shared": {"share": "none"}, "separate": {"share": "none"}}},
            "methods.shared.share is not set",
        ),
        ({"tasks": {"team": {"env": SABOTEUR}}}, "tasks.team.env is 'tests.envs_for_tests:Team' there"),
        ({"tasks": {"crossing": {"env_kwargs": {}}}}, "tasks.team is missing now"),
        (
            {"excluded": (Excluded(method="shared", task="team", why="x"),)},
            "shared on team is excepted now and was not",
        ),
    ],
)
def test_another_plan_in_the_same_folder_is_refused_with_what_differs(stored, changes, message):
    before = (stored / "plan.json").read_bytes()
    with pytest.raises(ConfigError, match=re.escape(message)):
        run_plan(dataclasses.replace(PLAN, **changes), stored, executor=HereExecutor(), trusted=True)
    assert (stored / "plan.json").read_bytes() == before


def test_what_was_excepted_stays_so(tmp_path):
    excluded = dataclasses.replace(PLAN, excluded=(Excluded(method="shared", task="team", why="x"),))
    with pytest.raises(Interrupted):
        carry_out(excluded, tmp_path / "p", stop_at=0)
    with pytest.raises(ConfigError, match="shared on team is no longer excepted"):
        carry_out(PLAN, tmp_path / "p")


def test_runs_keep_the_names_that_they_were_planned_under(stored):
    # As by an earlier version, which knew other settings.
    content = json.loads((stored / "plan.json").read_text())
    for run in content["runs"]:
        run["id"] = run["id"][:-8] + "0123abcd"
    (stored / "plan.json").write_text(json.dumps(content))
    _, started = carry_out(PLAN, stored)
    assert started == ["shared-team-s0-0123abcd", "separate-team-s0-0123abcd"]
    assert carry_out(PLAN, stored)[1] == []


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: [], "holds a list, not a plan"),
        (lambda content: content | {"methods": 3}, "methods=3"),
        (lambda content: content | {"runs": 3}, "field 'runs' is no list"),
        (lambda content: content | {"runs": [3]}, "field 'runs' names a run 3"),
        (
            lambda content: content | {"runs": [content["runs"][0] | {"id": "../../etc"}]},
            "that is none of a plan",
        ),
    ],
)
def test_a_damaged_plan_is_named_and_left_as_it_is(stored, spoil, message):
    path = stored / "plan.json"
    path.write_text(json.dumps(spoil(json.loads(path.read_text()))))
    before = path.read_bytes()
    with pytest.raises(CorruptFileError, match=message) as raised:
        carry_out(PLAN, stored)
    assert str(path) in str(raised.value)
    assert path.read_bytes() == before


def test_a_folder_with_something_else_in_it_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match="is not empty and holds no plan"):
        carry_out(PLAN, tmp_path)
    with pytest.raises(ConfigError, match="cannot be a folder"):
        carry_out(PLAN, tmp_path / "thesis.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_two_calls_at_once_in_the_same_folder_are_refused(stored):
    with RunLock(stored), pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
        carry_out(PLAN, stored)


def test_only_picks_runs_by_parts_of_their_names(stored):
    status, started = carry_out(PLAN, stored, only=["separate-"])
    assert [id.split("-")[0] for id in started] == ["separate"]
    assert [run.state for run in status.runs] == ["missing", "done"]
    assert [run.state for run in plan_status(PLAN, stored, only=["shared"]).runs] == ["missing"]
    with pytest.raises(
        ConfigError, match="--only seperate picks none of the runs, which are called like 'shared-"
    ):
        carry_out(PLAN, stored, only=["seperate"])


def test_a_failure_stops_no_other_run_and_is_tried_again_by_the_next_call(tmp_path):
    folder = tmp_path / "p"
    buggy = with_bug(marker=str(tmp_path / "harmed"), at=40)
    status, started = carry_out(buggy, folder)
    assert len(started) == 4
    assert [run.state for run in status.runs] == ["done", "done", "failed", "done"]
    (failure,) = status.failures
    with pytest.raises(PlanFailed) as raised:
        check_complete(status)
    for said in (
        "1 of 4 runs failed",
        failure.id,
        "ZeroDivisionError: a bug in the env",
        f"{folder}/runs/",
        f"{folder}/logs/",
    ):
        assert said in str(raised.value)
    assert json.loads((folder / "summary.json").read_text())["failures"] == [failure.id]
    status, started = carry_out(buggy, folder)
    assert started == [failure.id]
    check_complete(status)


def test_a_damaged_run_is_reported_and_not_touched(tmp_path):
    folder = tmp_path / "p"
    place = folder / "runs" / PLAN.runs()[0].id
    place.mkdir(parents=True)
    (place / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="holds no plan"):
        carry_out(PLAN, folder)
    (folder / "plan.json").write_text(json.dumps({**PLAN.definition(), "runs": []}))
    status, started = carry_out(PLAN, folder)
    assert [run.state for run in status.runs] == ["damaged", "done"]
    assert started == [PLAN.runs()[1].id]
    assert (place / "config.json").read_text() == "{"
    with pytest.raises(PlanFailed, match="damaged ones it leaves as they are"):
        check_complete(status)


def test_a_stopped_plan_goes_on_where_it_was(tmp_path):
    with pytest.raises(Interrupted, match="stopped with 1 of 2 runs done"):
        carry_out(PLAN, tmp_path / "p", stop_at=1)
    assert json.loads((tmp_path / "p" / "summary.json").read_text())["counts"] == {"done": 1, "missing": 1}
    assert [run.state for run in plan_status(PLAN, tmp_path / "p").runs] == ["done", "missing"]
    status, started = carry_out(PLAN, tmp_path / "p")
    assert (len(started), status.done) == (1, 2)


def test_nothing_is_written_for_a_plan_that_names_code_or_needs_what_is_missing(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"names code to be imported: tests.envs_for_tests:Team. .*--trust"):
        run_plan(PLAN, tmp_path / "p", executor=HereExecutor())
    absent = dataclasses.replace(tasks.find_task("crossing"), packages=("no_such_package",))
    monkeypatch.setattr("marl_tools.experiment.config.find_task", lambda name: absent)
    with pytest.raises(MissingExtraError, match="no_such_package"):
        run_plan(Plan(name="p", methods={"a": {}}, tasks={"crossing": {}}), tmp_path / "p")
    assert not (tmp_path / "p").exists()


# --- the command --------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A plan of one tiny run, in the working directory."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{name} = {value!r}" for name, value in TINY.items() if name != "env_kwargs"]
    tables = ["[settings]", *lines, "[methods.a]", "[tasks.crossing]", "native = true"]
    (tmp_path / "tiny.toml").write_text("\n".join(["seeds = 1", *tables]))
    return "tiny.toml"


def test_bench_runs_a_file_says_how_it_stands_and_what_it_would_do(file, capsys, tmp_path):
    assert main(["bench", file, "--dry-run"]) == 0
    assert "1 of 1 runs to do, 96 env steps, in runs/tiny" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
    assert main(["bench", file]) == 0
    assert (tmp_path / "runs" / "tiny" / "report.html").stat().st_size > 0
    shown = capsys.readouterr()
    assert "1 of 1" in shown.out
    assert "done a-crossing-s0-" in shown.err
    assert main(["bench", file, "--dry-run"]) == 0
    assert "0 of 1 runs to do" in capsys.readouterr().out


def test_bench_with_failures_exits_with_1_and_lists_them(file, capsys, tmp_path):
    (tmp_path / file).write_text((tmp_path / file).read_text() + "\nenv_kwargs = { nonsense = 1 }")
    assert main(["bench", file, "--out", "there", "--no-report"]) == 1
    assert "marl-tools: 1 of 1 runs failed in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["sheild"], "no plan 'sheild': give a TOML file or a preset. Did you mean 'shield'?"),
        (["absent.toml"], "cannot read the plan absent.toml"),
        (["quick", "--seeds", "0"], "--seeds=0"),
        (["quick", "--jobs", "0"], "jobs=0"),
        (["quick", "--retries", "-1"], "retries=-1"),
        (["quick", "--ray-address", "here:1"], "--ray-address here:1 needs --executor ray"),
        (["quick", "--executor", "ray", "--jobs", "2"], "--jobs 2 with --executor ray"),
        (["quick", "--only", "nothing"], "picks none of the runs"),
    ],
)
def test_a_wrong_call_of_bench_is_one_sentence(args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *args]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
