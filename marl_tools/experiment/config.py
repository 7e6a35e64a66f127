"""`RunConfig`: everything that makes a run, from flags, a TOML file or a dict of `create_base_config`.

All three use one flat set of names, those of the fields below and of the trainer's settings.
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from typeguard import TypeCheckError, check_type

from marl_tools.core.checks import at_least, between, increasing
from marl_tools.core.errors import ConfigError, CorruptFileError, did_you_mean
from marl_tools.core.factory import EnvFactory
from marl_tools.envs.tasks import Task, find_task, require
from marl_tools.training.ippo import IPPOConfig

_RENAMED = {"env_name": "env", "seed_offset": "seed"}
_SAFETY = (
    "max_risk",
    "shield_patience",
    "shield_opponent_mode",
    "shield_reward_mode",
    "shield_credible_delta",
    "shield_credible_schedule",
    "wm_version",
    "om_version",
    "lag_version",
    "shield_version",
)
"""Arguments of `create_base_config` that belong to the constraint and the shield: kept with the run."""


def _read_pairs(pairs: list[str]) -> dict[str, Any]:
    """key=value arguments; a value is TOML where it parses as that, else the text itself."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"{pair!r} is no key=value, such as N=4")
        try:
            settings[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            settings[key] = text
    return settings


_PAIRS = tyro.constructors.PrimitiveConstructorSpec(
    nargs="*",
    metavar="KEY=VALUE ...",
    instance_from_str=_read_pairs,
    is_instance=lambda value: isinstance(value, Mapping),
    str_from_instance=lambda value: [f"{key}={item}" for key, item in value.items()],
)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run, or ``num_runs`` of them with consecutive seeds.

    Args:
        env: a task name such as simple_spread, or package.module:function.
        env_kwargs: arguments of the environment.
        n_agents: size of the team, where the environment lets it be set; otherwise it must match.
        preprocess: SuperSuit steps by name, such as "resize=84x84"; None: what the task asks for.
        cost: package.module:function for AddCost, a cost per agent and step.
        cap: truncate episodes after this many steps, or "infer" the env's own hidden cap.
        timesteps: env steps in total, all copies of the env together.
        num_envs: copies of the env.
        seed: everything random follows from it.
        num_runs: how many runs, with seeds seed, seed + 1, ...
        out: the run folder; None: runs/<env>-s<seed>.
        checkpoint_every: updates between two checkpoints.
        video_every: updates between two evaluation clips while training; 0: none.
        video_episodes: episodes to film at the end.
        final_policy_eval_episodes: evaluation episodes, of random play before and of the team after; 0: none.
        final_policy_eval_horizons: report returns over the first so many steps.
        final_policy_eval_seed_offset: evaluation episode i has the seed ``seed + offset + i``.
        final_policy_eval_confidence: of the intervals.
        threads: torch threads; 1 is fastest for small networks.
        use_wandb: send episodes, updates and clips to wandb as well.
        wandb_mode: "offline" needs neither account nor network.
        wandb_id: the run's id there; None: one that its run folder keeps.
        experiment_tag: groups runs in wandb and begins the default folder's name.
        ippo_version: generation of the trainer.
        safety: max_risk and the shield's settings of a base config, kept for the record.
        ippo: settings of the trainer.
    """

    env: tyro.conf.Positional[str]
    env_kwargs: Annotated[Mapping[str, Any], _PAIRS] = field(default_factory=dict)
    n_agents: int | None = None
    preprocess: tuple[str, ...] | None = None
    cost: str | None = None
    cap: int | Literal["infer"] | None = None
    timesteps: int = 200_000
    num_envs: int = 8
    seed: int = 0
    num_runs: int = 1
    out: Path | None = None
    checkpoint_every: int = 20
    video_every: int = 0
    video_episodes: int = 1
    final_policy_eval_episodes: int = 10
    final_policy_eval_horizons: tuple[int, ...] = (1, 10, 50, 100, 200)
    final_policy_eval_seed_offset: int = 1_000_000
    final_policy_eval_confidence: float = 0.95
    threads: int = 1
    use_wandb: bool = False
    wandb_mode: Literal["offline", "online", "disabled"] = "offline"
    wandb_id: tyro.conf.Suppress[str | None] = None
    experiment_tag: str = ""
    ippo_version: Literal["v0"] = "v0"
    safety: tyro.conf.Suppress[Mapping[str, Any]] = field(default_factory=dict)
    ippo: IPPOConfig = field(default_factory=IPPOConfig)

    def __post_init__(self) -> None:
        for name in ("timesteps", "num_envs", "num_runs", "checkpoint_every", "threads"):
            at_least(1)(name, getattr(self, name))
        for name in (
            "seed",
            "video_every",
            "video_episodes",
            "final_policy_eval_episodes",
            "final_policy_eval_seed_offset",
        ):
            at_least(0)(name, getattr(self, name))
        between(0, 1)("final_policy_eval_confidence", self.final_policy_eval_confidence)
        increasing("final_policy_eval_horizons", self.final_policy_eval_horizons)
        find_task(self.env)

    @property
    def task(self) -> Task:
        return find_task(self.env)

    @property
    def folder(self) -> Path:
        """``out``, or the default below the working directory."""
        if self.out is not None:
            return self.out
        tag = f"{self.experiment_tag}-" if self.experiment_tag else ""
        name = self.task.name.replace(":", ".")
        return Path("runs") / f"{tag}{name}-s{self.seed}".replace("/", "-")

    @property
    def eval_seed(self) -> int:
        """Env and policy seed of the first evaluation episode."""
        return self.seed + self.final_policy_eval_seed_offset

    def factory(self) -> EnvFactory:
        """What builds one copy of the env with all its wrappers.

        Raises:
            ConfigError: the task cannot have ``n_agents`` agents.
            MissingExtraError: the packages behind the task are not installed.
        """
        task = self.task
        require(task)
        settable = task.n_agents_kwarg is not None
        return EnvFactory(
            make_env=task.make_env,
            kwargs={**task.kwargs_for(self.n_agents if settable else None), **self.env_kwargs},
            env_name=None if ":" in self.env else task.name,
            preprocess=task.preprocess if self.preprocess is None else self.preprocess,
            cost=self.cost,
            cap=self.cap,
        )

    def check_team(self, agents: tuple[str, ...]) -> None:
        """Refuse an env whose agents are not as many as ``n_agents`` says."""
        if self.n_agents not in (None, len(agents)):
            raise ConfigError(
                f"n_agents={self.n_agents}, but {self.env} has {len(agents)}: {', '.join(agents)}. "
                "Leave n_agents out, or set the env's own arguments with env_kwargs."
            )

    def to_flat(self) -> dict[str, Any]:
        """One level of plain values, as in ``config.json``; `from_flat` reads it back."""
        flat = {}
        for name, owner in _FIELDS.items():
            value = getattr(_part(self, owner), name)
            flat[name] = str(value) if isinstance(value, Path) else value
        return flat

    @classmethod
    def from_flat(cls, settings: Mapping[str, Any]) -> RunConfig:
        """A run from one level of names and values.

        Raises:
            ConfigError: an unknown name (with the nearest known one), a value of the wrong type, no env.
        """
        parts: dict[str, dict[str, Any]] = {"run": {}, "ippo": {}, "network": {}}
        for name, value in settings.items():
            if name not in _FIELDS:
                raise ConfigError(f"unknown setting {name!r}.{did_you_mean(name, _FIELDS)}")
            owner = _FIELDS[name]
            parts[owner][name] = _typed(name, value, _HINTS[owner][name])
        if "env" not in parts["run"]:
            raise ConfigError("no env is given: name a task, or package.module:function")
        network = dataclasses.replace(IPPOConfig().network, **parts["network"])
        return cls(**parts["run"], ippo=IPPOConfig(network=network, **parts["ippo"]))

    @classmethod
    def from_base(cls, base: Mapping[str, Any], run_idx: int | None = None) -> RunConfig:
        """The run, or with ``run_idx`` one of its ``num_runs`` runs, of a dict from `create_base_config`.

        Raises:
            ConfigError: a key that is neither of that function nor a setting of a run.
        """
        for theirs, ours in _RENAMED.items():
            if theirs in base and ours in base:
                raise ConfigError(f"{theirs} and {ours} are the same setting: give one of them")
        settings = {_RENAMED.get(name, name): value for name, value in base.items() if name not in _SAFETY}
        settings["safety"] = {name: base[name] for name in _SAFETY if name in base}
        config = cls.from_flat(settings)
        if run_idx is None:
            return config
        if not 0 <= run_idx < config.num_runs:
            raise ConfigError(f"run_idx={run_idx}: there are num_runs={config.num_runs}, counted from 0")
        return config.runs()[run_idx]

    @classmethod
    def from_toml(cls, path: Path, **overrides: Any) -> RunConfig:
        """A run from a TOML file of settings, or of a base config's arguments; ``overrides`` win.

        Raises:
            ConfigError: no such file, or what `from_flat` refuses.
            CorruptFileError: the file is no TOML.
        """
        try:
            settings = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read the config file {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise CorruptFileError(f"{path} is not TOML: {error}") from error
        # An override also replaces the setting under its other name.
        kept = {name: value for name, value in settings.items() if _RENAMED.get(name) not in overrides}
        return cls.from_base(kept | overrides)

    def runs(self) -> list[RunConfig]:
        """The single runs: itself, or one a seed in ``out/run-<i>``."""
        if self.num_runs == 1:
            return [self]
        return [
            dataclasses.replace(self, num_runs=1, seed=self.seed + index, out=self.folder / f"run-{index}")
            for index in range(self.num_runs)
        ]

    def to_base(self) -> dict[str, Any]:
        """The flat settings under the names of a base config, for `core.wandb.start_run`."""
        names = {ours: theirs for theirs, ours in _RENAMED.items()}
        flat = {names.get(name, name): value for name, value in self.to_flat().items() if name != "safety"}
        return {**flat, **self.safety}


def check_trust(config: RunConfig, trusted: bool) -> None:
    """Refuse to import what only a run folder names: the folder may come from a stranger.

    Raises:
        ConfigError: env or cost is a reference to code, and not ``trusted``.
    """
    code = [name for name in (config.env, config.cost) if name and ":" in name]
    if code and not trusted:
        raise ConfigError(
            f"this run folder names code to be imported: {', '.join(code)}. If you trust it, add --trust."
        )


def _part(config: RunConfig, owner: str) -> Any:
    return {"run": config, "ippo": config.ippo, "network": config.ippo.network}[owner]


def _typed(name: str, value: Any, hint: Any) -> Any:
    """``value`` if it is of the declared type, lists as tuples and strings as paths; no other conversion."""
    if isinstance(value, list):
        value = tuple(value)
    if hint == Path | None and isinstance(value, str):
        value = Path(value)
    try:
        # A bool passes for a number in Python; as a setting it is a slip.
        if isinstance(value, bool) and bool not in (hint, *typing.get_args(hint)):
            raise TypeCheckError("is a bool")
        return check_type(value, hint)
    except TypeCheckError as error:
        expected = (
            getattr(hint, "__name__", None) if isinstance(hint, type) else str(hint).replace("typing.", "")
        )
        raise ConfigError(f"{name}={value!r}: must be {expected}") from error


def _fields() -> dict[str, str]:
    """Where each flat name lives."""
    network = IPPOConfig().network
    owners = (("network", type(network)), ("ippo", IPPOConfig), ("run", RunConfig))
    return {
        field_.name: owner
        for owner, kind in reversed(owners)
        for field_ in dataclasses.fields(kind)
        if field_.name not in ("ippo", "network")
    }


_FIELDS = _fields()
_HINTS = {
    "run": typing.get_type_hints(RunConfig),
    "ippo": typing.get_type_hints(IPPOConfig),
    "network": typing.get_type_hints(type(IPPOConfig().network)),
}
