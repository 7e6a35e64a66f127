"""`RunConfig` from flat settings, TOML and base configs: nothing is lost, nothing is guessed, nothing is decoration."""

import dataclasses
import inspect
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from marl_tools.core.errors import ConfigError, CorruptFileError
from marl_tools.core.wandb import create_base_config
from marl_tools.experiment.config import RunConfig, check_trust
from marl_tools.experiment.safety import SafetySettings
from marl_tools.experiment.stepping import SteppingSettings
from marl_tools.experiment.trajectories import TrajectorySettings
from marl_tools.models.networks import NetworkConfig
from marl_tools.safety.lagrange import LagrangeConfig
from marl_tools.training.ippo import IPPOConfig

BASE = {
    "env_name": "simple_spread",
    "num_envs": 4,
    "n_agents": 3,
    "timesteps": 1000,
    "num_runs": 3,
    "rollouts": 64,
    "learning_epochs": 3,
    "mini_batches": 2,
    "learning_rate": 1e-3,
    "max_risk": 0.1,
    "use_wandb": False,
}
CHANGED = {
    "env_name": "simple_tag",
    "num_envs": 5,
    "n_agents": 4,
    "timesteps": 2000,
    "num_runs": 2,
    "rollouts": 32,
    "learning_epochs": 5,
    "mini_batches": 8,
    "learning_rate": 2e-3,
    "max_risk": 0.2,
    "use_wandb": True,
    "shield_patience": 7,
    "shield_opponent_mode": "oracle",
    "shield_reward_mode": "penalty",
    "shield_credible_delta": 0.01,
    "shield_credible_schedule": "constant",
    "experiment_tag": "sweep",
    "seed_offset": 40,
    "final_policy_eval_episodes": 17,
    "final_policy_eval_horizons": (2, 3),
    "final_policy_eval_seed_offset": 5,
    "final_policy_eval_confidence": 0.5,
}
ONE_VERSION = {"wm_version", "om_version", "ippo_version", "lag_version", "shield_version"}
ARGUMENTS = [name for name in inspect.signature(create_base_config).parameters if name != "overrides"]
RENAMED = {"env_name": "env", "seed_offset": "seed"}


def base(**changes):
    return create_base_config(**{**BASE, **changes})


# --- base configs -------------------------------------------------------------------------------------------------


def test_the_walk_below_covers_all_27_arguments():
    assert len(ARGUMENTS) == 27
    assert CHANGED.keys() | ONE_VERSION == set(ARGUMENTS)


@pytest.mark.parametrize("name", sorted(CHANGED))
def test_every_argument_of_a_base_config_reaches_the_run(name):
    before = RunConfig.from_base(base()).to_flat()
    after = RunConfig.from_base(base(**{name: CHANGED[name]})).to_flat()
    ours = RENAMED.get(name, name)
    assert after[ours] == CHANGED[name] != before[ours]
    assert {key for key, value in after.items() if value != before[key]} == {ours}


@pytest.mark.parametrize("name", sorted(ONE_VERSION))
def test_a_version_is_kept_and_only_the_known_one_is_accepted(name):
    assert RunConfig.from_base(base()).to_flat()[name] == "v0"
    with pytest.raises(ConfigError, match=name):
        base(**{name: "v9"})


def test_the_ippo_version_of_a_flat_config_is_checked_as_well():
    with pytest.raises(ConfigError, match="ippo_version='v1'"):
        RunConfig.from_flat({"env": "simple_spread", "ippo_version": "v1"})


def test_a_base_config_comes_back_out_as_it_went_in():
    config = RunConfig.from_base(base(**CHANGED))
    out = config.to_base()
    assert {name: out[name] for name in ARGUMENTS} == base(**CHANGED)
    assert RunConfig.from_base(out) == config


def test_settings_of_the_trainer_pass_through_a_base_configs_overrides():
    config = RunConfig.from_base(base(gamma=0.9, hidden=(32,), share="none"))
    assert (config.ippo.gamma, config.ippo.network.hidden, config.ippo.share) == (0.9, (32,), "none")


@pytest.mark.parametrize(
    ("key", "hint"), [("gama", "'gamma'"), ("hiden", "'hidden'"), ("cheese", "Known: .*learning_rate")]
)
def test_a_key_that_is_no_setting_is_refused_with_the_nearest(key, hint):
    with pytest.raises(ConfigError, match=f"unknown setting '{key}'.*{hint}"):
        RunConfig.from_base(base(**{key: 1}))


def test_two_names_of_one_setting_are_not_silently_merged():
    with pytest.raises(ConfigError, match="seed_offset and seed are the same setting"):
        RunConfig.from_base(base(seed=3))
    with pytest.raises(ConfigError, match="env_name and env are the same setting"):
        RunConfig.from_base({**base(), "env": "simple_tag"})


# --- several runs -------------------------------------------------------------------------------------------------


def test_runs_have_consecutive_seeds_and_folders_of_their_own(tmp_path):
    config = RunConfig.from_base(base(seed_offset=10, out=str(tmp_path)))
    runs = config.runs()
    assert [run.seed for run in runs] == [10, 11, 12]
    assert [run.folder for run in runs] == [tmp_path / f"run-{i}" for i in range(3)]
    assert {run.num_runs for run in runs} == {1}
    assert [RunConfig.from_base(base(seed_offset=10, out=str(tmp_path)), i) for i in range(3)] == runs
    single = RunConfig(env="simple_spread")
    assert single.runs() == [single]


@pytest.mark.parametrize("run_idx", [-1, 3])
def test_a_run_index_out_of_range_is_refused(run_idx):
    with pytest.raises(ConfigError, match=rf"run_idx={run_idx}: there are num_runs=3, counted from 0"):
        RunConfig.from_base(base(), run_idx)


def test_the_evaluation_seed_follows_from_the_runs_own():
    runs = RunConfig.from_base(base(final_policy_eval_seed_offset=500)).runs()
    assert [run.eval_seed for run in runs] == [500, 501, 502]


# --- flat settings ------------------------------------------------------------------------------------------------

flat_settings = st.fixed_dictionaries(
    {"env": st.sampled_from(["simple_spread", "kaz", "my.module:make"])},
    optional={
        "env_kwargs": st.dictionaries(st.text(min_size=1), st.integers() | st.text() | st.booleans()),
        "n_agents": st.none() | st.integers(1, 9),
        "preprocess": st.none() | st.lists(st.just("resize=84x84")).map(tuple),
        "cap": st.none() | st.just("infer") | st.integers(1, 9),
        "seed": st.integers(0, 2**31),
        "out": st.none() | st.just(Path("/somewhere/else")),
        "final_policy_eval_horizons": st.just((1, 5)),
        "share": st.sampled_from(["group", "none"]),
        "target_kl": st.none() | st.floats(1e-3, 1),
        "hidden": st.lists(st.integers(1, 99), min_size=1, max_size=3).map(tuple),
        "activation": st.sampled_from(["tanh", "relu"]),
        "max_risk": st.floats(0.01, 0.99),
        "shield": st.sampled_from(["none", "ledger"]),
    },
)


@given(flat_settings)
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=50)
def test_a_config_survives_its_json_file(flat):
    config = RunConfig.from_flat(flat)
    assert RunConfig.from_flat(config.to_flat()) == config
    assert RunConfig.from_flat(json.loads(json.dumps(config.to_flat()))) == config


def test_every_field_of_every_part_has_one_flat_name():
    names = list(RunConfig(env="simple_spread").to_flat())
    kinds = (
        RunConfig,
        IPPOConfig,
        NetworkConfig,
        SafetySettings,
        LagrangeConfig,
        SteppingSettings,
        TrajectorySettings,
    )
    fields = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    assert set(names) == fields - {"ippo", "network", "safety", "lagrange", "stepping", "saving"}
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("learning_rate", "high", "float"),
        ("timesteps", "1000", "int"),
        ("timesteps", 1000.5, "int"),
        ("num_envs", True, "int"),
        ("use_wandb", 1, "bool"),
        ("use_wandb", "yes", "bool"),
        ("share", "both", "Literal"),
        ("share", True, "Literal"),
        ("hidden", 64, "tuple"),
        ("hidden", ["64"], "tuple"),
        ("cap", "forever", "Literal"),
        ("cap", 2.5, "int"),
        ("env", 3, "str"),
        ("out", 3, "Path"),
        ("env_kwargs", "N=4", "Mapping"),
        ("final_policy_eval_horizons", "1", "tuple"),
        ("target_kl", False, "float"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_name_and_the_right_one(name, value, expected):
    with pytest.raises(ConfigError, match=rf"^{name}=.*: must be .*{expected}"):
        RunConfig.from_flat({"env": "simple_spread", name: value})


def test_whole_numbers_do_for_numbers():
    assert RunConfig.from_flat({"env": "simple_spread", "learning_rate": 1}).ippo.learning_rate == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timesteps", 0),
        ("num_envs", 0),
        ("num_runs", 0),
        ("seed", -1),
        ("checkpoint_every", 0),
        ("video_every", -1),
        ("threads", 0),
        ("final_policy_eval_episodes", -1),
        ("final_policy_eval_confidence", 1.0),
        ("final_policy_eval_horizons", (5, 5)),
        ("final_policy_eval_horizons", ()),
        ("hidden", ()),
        ("rollouts", 0),
        ("gamma", 2.0),
    ],
)
def test_a_value_that_cannot_work_is_refused_at_once_with_its_name(name, value):
    with pytest.raises(ConfigError, match=name):
        RunConfig.from_flat({"env": "simple_spread", name: value})


def test_a_config_without_an_env_or_with_an_unknown_one_is_refused():
    with pytest.raises(ConfigError, match="no env is given"):
        RunConfig.from_flat({"timesteps": 5})
    with pytest.raises(ConfigError, match="Did you mean 'simple_spread'"):
        RunConfig.from_flat({"env": "simple_spreed"})


# --- TOML ---------------------------------------------------------------------------------------------------------


def toml(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_a_toml_file_gives_the_same_run_as_its_settings(tmp_path):
    path = toml(
        tmp_path,
        'env = "simple_spread"\ntimesteps = 500\nhidden = [32, 16]\nlearning_rate = 1e-3\n[env_kwargs]\nN = 4\n',
    )
    assert RunConfig.from_toml(path) == RunConfig(
        env="simple_spread",
        timesteps=500,
        env_kwargs={"N": 4},
        ippo=IPPOConfig(learning_rate=1e-3, network=NetworkConfig(hidden=(32, 16))),
    )


def test_a_toml_file_may_hold_a_base_config_and_overrides_win_under_either_name(tmp_path):
    path = toml(tmp_path, 'env_name = "simple_spread"\nseed_offset = 4\nmax_risk = 0.2\n')
    config = RunConfig.from_toml(path)
    assert (config.env, config.seed, config.safety.max_risk) == ("simple_spread", 4, 0.2)
    changed = RunConfig.from_toml(path, env="simple_tag", seed=9)
    assert (changed.env, changed.seed) == ("simple_tag", 9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('env = "simple_spread"\nlearning_rate = "high"', "learning_rate='high': must be float"),
        ('env = "simple_spread"\ntimestep = 5', "unknown setting 'timestep'. Did you mean 'timesteps'"),
        ('env = "simple_spread"\n[ippo]\ngamma = 0.9', "unknown setting 'ippo'"),
        ("timesteps = 5", "no env is given"),
    ],
)
def test_a_toml_file_is_read_strictly(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_toml(toml(tmp_path, text))


def test_a_file_may_write_a_count_as_the_flag_may_and_no_other_float(tmp_path):
    config = RunConfig.from_toml(toml(tmp_path, 'env = "crossing"\ntimesteps = 1e6'))
    assert (config.timesteps, type(config.timesteps)) == (1_000_000, int)
    for wrong in ("timesteps = 1.5", "timesteps = inf", "timesteps = nan", "num_envs = 8.0"):
        with pytest.raises(ConfigError, match=f"{wrong.split()[0]}=.*: must be int"):
            RunConfig.from_toml(toml(tmp_path, f'env = "crossing"\n{wrong}'))


def test_a_broken_or_missing_file_is_named(tmp_path):
    for content in (b"env = ", b"\xff\xfe"):
        path = tmp_path / "broken.toml"
        path.write_bytes(content)
        with pytest.raises(CorruptFileError, match=r"broken\.toml is not TOML"):
            RunConfig.from_toml(path)
    with pytest.raises(ConfigError, match=r"cannot read the config file .*none\.toml: No such file"):
        RunConfig.from_toml(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"cannot read the config file .*directory"):
        RunConfig.from_toml(tmp_path)


# --- the env of a run ---------------------------------------------------------------------------------------------


def test_the_team_size_reaches_an_env_that_has_one_and_must_match_one_that_has_not():
    spread = RunConfig(env="simple_spread", n_agents=5)
    assert spread.factory().kwargs["N"] == 5
    assert len(spread.factory()().possible_agents) == 5
    tag = RunConfig(env="simple_tag", n_agents=3)
    with pytest.raises(ConfigError, match=r"n_agents=3, but simple_tag has 4: adversary_0"):
        tag.check_team(tuple(tag.factory()().possible_agents))
    RunConfig(env="simple_tag", n_agents=4).check_team(("a", "b", "c", "d"))


def test_env_arguments_win_over_the_tasks_and_an_unknown_one_is_named():
    config = RunConfig(env="simple_spread", env_kwargs={"N": 2, "max_cycles": 7}, cap="infer")
    env = config.factory()()
    assert (len(env.possible_agents), env.env.cap) == (2, 7)
    with pytest.raises(ConfigError, match=r"'max_cycle'.*Did you mean 'max_cycles'"):
        RunConfig(env="simple_spread", env_kwargs={"max_cycle": 7}).factory()()


def test_preprocessing_is_the_tasks_unless_it_is_given():
    assert RunConfig(env="pistonball").factory().preprocess
    assert RunConfig(env="pistonball", preprocess=()).factory().preprocess == ()
    with pytest.raises(ConfigError, match="resize"):
        RunConfig(env="pistonball", preprocess=("resiz=3x3",)).factory()


def test_the_log_calls_a_task_by_its_name_and_a_reference_by_its_envs():
    assert RunConfig(env="simple_spread_v3").factory()().env_name == "simple_spread"
    assert RunConfig(env="tests.probe_envs:Probe").factory()().env_name == "probe_v0"


@pytest.mark.parametrize(
    ("settings_", "folder"),
    [
        ({"env": "simple_spread", "seed": 3}, "runs/simple_spread-s3"),
        ({"env": "simple_spread_v3", "experiment_tag": "a/b"}, "runs/a-b-simple_spread-s0"),
        ({"env": "my.envs:make"}, "runs/my.envs.make-s0"),
        ({"env": "simple_spread", "out": Path("x/y")}, "x/y"),
    ],
)
def test_the_run_folder_is_the_one_given_or_named_after_tag_env_and_seed(settings_, folder):
    assert RunConfig(**settings_).folder == Path(folder)


def test_code_that_only_a_folder_names_is_not_imported_unasked():
    check_trust(RunConfig(env="simple_spread"), trusted=False)
    for config in (
        RunConfig(env="my.envs:make"),
        RunConfig(env="simple_spread", cost="my.costs:cost"),
    ):
        with pytest.raises(ConfigError, match=r"my\.\w+:\w+\. If you trust it, add --trust"):
            check_trust(config, trusted=False)
        check_trust(config, trusted=True)
