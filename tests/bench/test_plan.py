"""Plans: what they come to, and that a slip is found before anything runs."""

import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from marl_tools.bench.fingerprint import differing_settings, fingerprint
from marl_tools.bench.plan import Excluded, Plan
from marl_tools.bench.presets import PRESETS
from marl_tools.core.errors import ConfigError, CorruptFileError
from marl_tools.experiment.config import RunConfig

TOML = """
seeds = [3, 5]

[settings]
timesteps = 2_000
learning_rate = 1e-3

[methods.ippo]

[methods.ledger]
shield = "ledger"
num_envs = 4

[tasks.crossing]
num_envs = 16
native = true

[tasks.capped]
env = "crossing"
learning_rate = 3e-4
env_kwargs = { max_cycles = 20 }

[[except]]
method = "ledger"
task = "capped"
why = "to see that it is left out"
"""


def plan(**changes):
    parts = {"name": "p", "methods": {"a": {}}, "tasks": {"crossing": {}}, "seeds": (0,)}
    return Plan(**(parts | changes))


def written(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_a_file_comes_to_methods_by_tasks_by_seeds_without_what_it_excepts(tmp_path):
    read = Plan.from_toml(written(tmp_path, TOML))
    assert (read.name, read.seeds) == ("mine", (3, 5))
    pairs = [("ippo", "crossing"), ("ledger", "crossing"), ("ippo", "capped")]
    runs = read.runs()
    assert [(run.method, run.task, run.seed) for run in runs] == [
        (method, task, seed) for seed in (3, 5) for method, task in pairs
    ]
    assert all(run.config.seed == run.seed and run.config.timesteps == 2000 for run in runs)
    assert read.excluded == (Excluded(method="ledger", task="capped", why="to see that it is left out"),)


def test_a_task_wins_over_what_all_have_in_common_and_a_method_over_both(tmp_path):
    runs = {(run.method, run.task): run.config for run in Plan.from_toml(written(tmp_path, TOML)).runs()}
    assert [config.ippo.learning_rate for config in runs.values()] == [1e-3, 1e-3, 3e-4]
    assert [config.num_envs for config in runs.values()] == [16, 4, 8]
    assert runs["ippo", "capped"].env == "crossing"


def test_a_number_of_seeds_counts_from_0_or_from_the_plans_first(tmp_path):
    read = Plan.from_toml(written(tmp_path, TOML.replace("[3, 5]", "4")))
    assert read.seeds == (0, 1, 2, 3)
    assert plan(seeds=(7, 9)).with_seeds(3).seeds == (7, 8, 9)
    with pytest.raises(ConfigError, match="--seeds=0"):
        plan().with_seeds(0)


def test_a_run_is_called_by_method_task_seed_and_its_settings():
    (run,) = plan().runs()
    assert re.fullmatch(r"a-crossing-s0-[0-9a-f]{8}", run.id)
    (longer,) = plan(settings={"timesteps": 1}).runs()
    assert run.id[:-8] == longer.id[:-8]
    assert run.id != longer.id
    # Written as a default or left to it: the same run.
    assert plan(settings={"timesteps": 200_000}).runs() == [run]


def test_where_a_run_is_written_does_not_make_it_another():
    config = RunConfig(env="crossing")
    there = RunConfig(env="crossing", out=Path("there"), wandb_id="abc")
    assert fingerprint(config) == fingerprint(there)
    assert differing_settings(config, RunConfig(env="crossing", seed=2, cap=5)) == ["cap", "seed"]


@given(st.dictionaries(st.text(max_size=3), st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)))
def test_the_digits_of_a_run_depend_on_no_order_and_survive_its_config_file(kwargs):
    shuffled = list(kwargs.items())
    random.Random(0).shuffle(shuffled)
    config = RunConfig(env="crossing", env_kwargs=kwargs)
    assert fingerprint(RunConfig(env="crossing", env_kwargs=dict(shuffled))) == fingerprint(config)
    assert fingerprint(RunConfig.from_flat(json.loads(json.dumps(config.to_flat())))) == fingerprint(config)


def test_a_plan_is_the_same_after_its_own_json(tmp_path):
    read = Plan.from_toml(written(tmp_path, TOML))
    again = Plan.from_definition(json.loads(json.dumps(read.definition())))
    assert again.definition() == read.definition()
    assert again.runs() == read.runs()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"timestep": 5}}, r"settings: unknown setting 'timestep'. Did you mean 'timesteps'\?"),
        (
            {"methods": {"a": {"sheild": "ledger"}}},
            r"methods.a: unknown setting 'sheild'. Did you mean 'shield'\?",
        ),
        ({"tasks": {"crossing": {"nativ": True}}}, r"tasks.crossing: unknown setting 'nativ'"),
        ({"methods": {"a": {"shield": "leger"}}}, r"method 'a' on task 'crossing': shield='leger'"),
        (
            {"tasks": {"crosing": {}}},
            r"method 'a' on task 'crosing': No task is named 'crosing'. Did you mean 'crossing'",
        ),
        ({"methods": {"a": {"timesteps": 0}}}, r"method 'a' on task 'crossing': timesteps=0"),
        ({"settings": {"seed": 3}}, r"settings: seed cannot be set here: seeds are the plan's"),
        ({"tasks": {"crossing": {"out": "x"}}}, r"tasks.crossing: out cannot be set here"),
        ({"methods": {"a": {"env": "corridor"}}}, r"methods.a: env cannot be set here"),
        ({"methods": {}}, "has no methods"),
        ({"seeds": ()}, "give at least one"),
        ({"seeds": (1, 1)}, "each once"),
        ({"seeds": (-1,)}, "seeds=-1"),
        ({"seeds": (True,)}, "seeds=True"),
        ({"seeds": ([1],)}, r"seeds=\[1\]"),
        ({"excluded": (Excluded(method="b", task="crossing", why=""),)}, "except: no method 'b' in the plan"),
        ({"excluded": (Excluded(method="a", task="crossing", why=""),)}, "nothing is left to run"),
        ({"tasks": {"my.module:make": {}}}, r"call it otherwise and set env = 'my.module:make' in it"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_the_place_and_the_remedy(changes, message):
    with pytest.raises(ConfigError, match=message):
        plan(**changes)


@pytest.mark.parametrize(
    "name", ["..", "../up", "a/b", "/etc", "", "a b", ".hidden", "-x", "a" * 65, "a\n", "ä"]
)
def test_no_name_leads_out_of_the_plans_folder(name):
    for changes in ({"name": name}, {"methods": {name: {}}}, {"tasks": {name: {"env": "crossing"}}}):
        with pytest.raises(ConfigError, match="a name becomes part of folders"):
            plan(**changes)


def test_names_that_join_to_the_same_id_are_refused():
    twins = plan(methods={"a": {}, "a-b": {}}, tasks={"b-crossing": {"env": "crossing"}, "crossing": {}})
    with pytest.raises(ConfigError, match="two runs are called 'a-b-crossing-s0-"):
        twins.runs()


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("[methods", CorruptFileError, "is not TOML"),
        ("[methods.a]\n", ConfigError, "the plan has no tasks"),
        ("[tasks.crossing]\n", ConfigError, "the plan has no methods"),
        ("[method.a]\n", ConfigError, "unknown part 'method' of a plan. Did you mean 'methods'"),
        ("methods = 3\n[tasks.crossing]\n", ConfigError, "methods=3: must be a table"),
        ("[methods]\na = 3\n[tasks.crossing]\n", ConfigError, "methods.a=3: must be a table"),
        ("name = 3\n[methods.a]\n[tasks.crossing]\n", ConfigError, "name=3: must be a string"),
        ("seeds = 0\n[methods.a]\n[tasks.crossing]\n", ConfigError, "seeds=0"),
        ('except = "x"\n[methods.a]\n[tasks.crossing]\n', ConfigError, "must be a list"),
        (
            '[[except]]\nmethod = "a"\n[methods.a]\n[tasks.crossing]\n',
            ConfigError,
            "needs method, task and why",
        ),
        ("[methods.a]\nlr = 1\n[tasks.crossing]\n", ConfigError, "methods.a: unknown setting 'lr'"),
        (
            "[methods.a]\n[tasks.crossing]\nenv_kwargs = {a = 2020-01-01}\n",
            ConfigError,
            "is not a plain value",
        ),
    ],
)
def test_a_file_that_is_no_plan_is_refused_by_its_name(tmp_path, text, kind, message):
    path = written(tmp_path, text)
    with pytest.raises(kind, match=message) as raised:
        Plan.from_toml(path).runs()
    if "plain value" not in message:
        assert str(path) in str(raised.value)


def test_a_file_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the plan .*absent.toml: No such file"):
        Plan.from_toml(tmp_path / "absent.toml")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_runs_each_with_a_name_of_its_own(name):
    preset = PRESETS[name]
    runs = preset.runs()
    assert preset.name == name
    assert len({run.id for run in runs}) == len(runs)
    pairs = len(preset.methods) * len(preset.tasks) - len(preset.excluded)
    assert len(runs) == pairs * len(preset.seeds)


def test_a_seed_that_no_file_name_can_hold_is_refused():
    with pytest.raises(ConfigError, match="300 digits; give seeds below"):
        Plan(name="p", methods={"ippo": {}}, tasks={"crossing": {}}, seeds=(10**299,))
