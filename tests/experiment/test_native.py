"""Native envs of a run: for which envs, and that a run with them is the run without them."""

import pytest

from marl_tools.core.errors import ConfigError
from marl_tools.core.io import load_from_file, read_jsonl
from marl_tools.envs.tasks import find_task, task_names
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.native import native_envs
from marl_tools.experiment.run import train

RUN = {
    "timesteps": 256,
    "num_envs": 4,
    "rollouts": 32,
    "hidden": [8],
    "learning_epochs": 1,
    "video_episodes": 0,
}
SHIELD = {
    "final_policy_eval_episodes": 5,
    "shield": "ledger",
    "shield_patience": 2,
    "shield_calibrate": 3,
}


def lines(folder, name):
    """Rows of a file of a run without what time they took."""
    timeless = [
        {key: value for key, value in row.items() if key != "wall_time" and not key.endswith("seconds")}
        for row in read_jsonl(folder / name)
    ]
    assert timeless
    return timeless


@pytest.mark.parametrize(
    "settings",
    [
        {"env": "crossing", **SHIELD},
        {"env": "simple_tag", "final_policy_eval_episodes": 2},
    ],
    ids=["crossing", "simple_tag"],
)
def test_a_run_of_native_envs_is_the_run_without_them(tmp_path, settings):
    folders = []
    for native in (False, True):
        run = RunConfig.from_flat({**RUN, **settings, "native": native, "out": str(tmp_path / f"{native}")})
        folders.append(train(run)[0].folder)
    for name in ("episodes.jsonl", "updates.jsonl"):
        single, in_arrays = (lines(folder, name) for folder in folders)
        assert single == in_arrays
    made = "certificate.json" if "shield" in settings else "evaluation-trained.json"
    single, in_arrays = (load_from_file(folder, made) for folder in folders)
    assert single == in_arrays
    assert load_from_file(folders[1], "versions.json")["native"] is True


@pytest.mark.parametrize("task", [name for name in task_names() if "pistonball" not in name])
def test_a_task_has_a_native_form_exactly_where_it_says_so(task):
    factory = RunConfig.from_flat({"env": task, "preprocess": []}).factory()
    if find_task(task).native:
        native_envs(factory, 2).close()
    else:
        with pytest.raises(ConfigError, match=f"{task} has no native form"):
            native_envs(factory, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env": "rps"}, "rps has no native form; leave the flag out"),
        (
            {"env": "simple_spread", "env_kwargs": {"curriculum": True}},
            "no curriculum; leave curriculum or the flag",
        ),
        ({"env": "simple_spread", "cap": 5}, "takes no cap"),
        ({"env": "crossing", "cap": 5}, "takes no cap"),
        ({"env": "crossing", "cost": "tests.keyed_envs:added_cost"}, "takes no cost"),
    ],
)
def test_an_env_or_a_wrapper_without_a_native_form_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        native_envs(RunConfig.from_flat(settings).factory(), 2)
