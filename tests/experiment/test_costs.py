"""Tasks with a cost in runs: where it is counted, and that every kind of third-party env trains, is judged and filmed."""

import pytest

from marl_tools.core.errors import ConfigError
from marl_tools.core.io import load_from_file, read_jsonl
from marl_tools.envs import find_task
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.native import native_envs
from marl_tools.experiment.run import train

TINY = {
    "timesteps": 64,
    "num_envs": 2,
    "rollouts": 16,
    "hidden": [8],
    "learning_epochs": 1,
    "final_policy_eval_episodes": 2,
    "video_episodes": 0,
}
OWN, MINE = "marl_tools.envs.costs:spread", "tests.keyed_envs:added_cost"


@pytest.mark.parametrize(
    ("settings", "training", "judging"),
    [
        ({}, None, OWN),
        ({"cost": "default"}, OWN, OWN),
        ({"constraint": "lagrange"}, OWN, OWN),
        ({"shield": "ledger"}, OWN, OWN),
        ({"cost": MINE}, MINE, MINE),
        ({"cost": MINE, "constraint": "pid"}, MINE, MINE),
    ],
)
def test_a_tasks_own_cost_is_counted_in_evaluations_and_where_a_run_needs_it_or_asks(
    settings, training, judging
):
    config = RunConfig.from_flat({"env": "simple_spread", **settings})
    assert (config.factory().cost, config.factory(judged=True).cost) == (training, judging)


def test_a_cost_of_its_own_is_refused_of_a_task_without_one():
    with pytest.raises(ConfigError, match="rps has no cost of its own"):
        RunConfig(env="rps", cost="default")


@pytest.mark.parametrize("task", ["simple_spread", "simple_tag"])
def test_a_constrained_run_of_a_twin_is_that_of_the_env(tmp_path, task):
    logs = []
    for native in (False, True):
        settings = {
            "env": task,
            "constraint": "lagrange",
            "native": native,
            "out": str(tmp_path / f"{native}"),
        }
        longer = {"timesteps": 400, "num_envs": 8, "rollouts": 25}
        (result,) = train(RunConfig.from_flat({**TINY, **longer, **settings}))
        rows = read_jsonl(result.folder / "episodes.jsonl")
        logs.append([{key: value for key, value in row.items() if key != "wall_time"} for row in rows])
    assert logs[0] == logs[1]
    assert any(sum(row["costs"].values()) for row in logs[0])


def test_a_twin_takes_no_other_cost():
    factory = RunConfig.from_flat({"env": "simple_spread", "cost": MINE}).factory()
    with pytest.raises(ConfigError, match=f"takes no cost {MINE}; leave that or the flag out"):
        native_envs(factory, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("half_cheetah_2x3", {"env_kwargs": {"max_episode_steps": 6}, "constraint": "lagrange"}),
        ("crazyrl_surround", {"cap": 6}),
        ("adversarial_pursuit", {"env_kwargs": {"max_cycles": 6}}),
        ("knights_archers_zombies", {"env_kwargs": {"max_cycles": 6}}),
        ("multiwalker", {"env_kwargs": {"max_cycles": 6}}),
        ("lle_level_3", {"cap": 6}),
        ("masa_stag_hunt", {"cap": 6}),
    ],
)
def test_every_kind_trains_and_is_judged_by_its_cost(tmp_path, task, settings):
    if missing := find_task(task).missing():
        pytest.skip(f"{missing} not installed")
    (result,) = train(RunConfig.from_flat({**TINY, "env": task, "out": str(tmp_path / "run"), **settings}))
    assert load_from_file(result.folder, "done.json")["state"] == "done"
    assert result.after.costed
    assert result.certificate["episodes"] == 2
    cut = [end for log in result.after.episodes if log.length == 6 for end in log.ends.values()]
    assert set(cut) <= {"truncated", "capped"}


# Gymnasium's half-made viewer complains when it is collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_run_whose_env_cannot_be_drawn_ends_well_and_says_what_is_missing(tmp_path, monkeypatch, capsys):
    pytest.importorskip("gymnasium_robotics")
    monkeypatch.setenv("MUJOCO_GL", "papyrus")
    settings = {**TINY, "final_policy_eval_episodes": 0, "video_episodes": 1, "timesteps": 32}
    kwargs = {"env_kwargs": {"max_episode_steps": 6}, "env": "swimmer_2x1", "out": str(tmp_path / "run")}
    (result,) = train(RunConfig.from_flat({**settings, **kwargs}))
    assert load_from_file(result.folder, "done.json")["state"] == "done"
    assert "no film: Swimmer_2x1 cannot be drawn with MUJOCO_GL=papyrus" in capsys.readouterr().err
    assert not list((result.folder / "videos").glob("*.mp4"))
