"""`RunConfig`: everything that makes a run, from flags, a TOML file or a dict of `create_base_config`.

All three use one flat set of names, those of the fields below and of the trainer's settings.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from marl_tools.core.checks import at_least, between, increasing
from marl_tools.core.errors import ConfigError
from marl_tools.core.factory import EnvFactory
from marl_tools.core.io import read_toml
from marl_tools.envs.tasks import Task, find_task, require
from marl_tools.experiment.flags import Count, Pairs
from marl_tools.experiment.flat import FlatSettings
from marl_tools.experiment.safety import SafetySettings
from marl_tools.experiment.stepping import SteppingSettings
from marl_tools.experiment.trajectories import TrajectorySettings
from marl_tools.training.ippo import IPPOConfig

_RENAMED = {"env_name": "env", "seed_offset": "seed"}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run, or ``num_runs`` of them with consecutive seeds.

    Args:
        env: a task name such as simple_spread, or package.module:function.
        env_kwargs: arguments of the environment.
        n_agents: size of the team, where the environment lets it be set; otherwise it must match.
        preprocess: SuperSuit steps by name, such as "resize=84x84"; None: what the task asks for.
        direct: step mpe2's envs without PettingZoo's turns, where the result is known to be the same to the bit.
        cost: package.module:function for AddCost, a cost per agent and step, in place of the task's own; "default": the
            task's own also where nothing needs it (None: for a constraint, a shield and in evaluations).
        cap: truncate episodes after this many steps, or "infer" the env's own hidden cap.
        timesteps: env steps in total, all copies of the env together, rounded up to whole updates; 200k and 1e6 are numbers, too.
        num_envs: copies of the env.
        seed: everything random follows from it.
        num_runs: how many runs, with seeds seed, seed + 1, ...
        out: the run folder; None: runs/<env>-s<seed>, with -2, -3 and so on behind it if that is taken.
        checkpoint_every: updates between two checkpoints.
        ma_window: training episodes in the moving average of the mean return over agents, which decides on the best
            checkpoint.
        stop_at: stop when that average, over a full window, is at least this; None: play all timesteps.
        eval_every: updates between two evaluations without exploration, on envs of their own; 0: none. Where there are
            any, their mean return decides on the best checkpoint and on ``stop_at``.
        eval_episodes: episodes of each of them.
        video_every: updates between two evaluation clips while training; 0: none.
        video_episodes: episodes to film at the end.
        final_policy_eval_episodes: evaluation episodes, of random play before and of the team after; 0: none.
        final_policy_eval_horizons: report returns over the first so many steps.
        final_policy_eval_seed_offset: evaluation episode i has the seed ``seed + offset + i``.
        final_policy_eval_confidence: of the intervals.
        native: step all copies of the env in arrays, where it has such a form (`marl-tools tasks` shows which do).
        threads: torch threads; 1 is fastest for small networks.
        use_wandb: send episodes, updates, tables and clips to wandb as well.
        wandb_mode: "offline" needs neither account nor network.
        wandb_id: the run's id there; None: one that its run folder keeps.
        use_tensorboard: write the same to ``tensorboard/`` in the run folder; needs the extra "tensorboard".
        experiment_tag: groups runs in wandb and begins the default folder's name.
        ippo_version: generation of the trainer.
        ippo: settings of the trainer.
        safety: constraint and shield.
        stepping: worker processes.
        saving: trajectories.
    """

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    env_kwargs: Pairs = field(default_factory=dict)
    n_agents: int | None = None
    preprocess: tuple[str, ...] | None = None
    direct: bool = True
    cost: str | None = None
    cap: int | Literal["infer"] | None = None
    timesteps: Count = 200_000
    num_envs: int = 8
    seed: int = 0
    num_runs: int = 1
    out: Path | None = None
    checkpoint_every: int = 20
    ma_window: int = 100
    stop_at: float | None = None
    eval_every: int = 0
    eval_episodes: int = 10
    video_every: int = 0
    video_episodes: int = 1
    final_policy_eval_episodes: int = 10
    final_policy_eval_horizons: tuple[int, ...] = (1, 10, 50, 100, 200)
    final_policy_eval_seed_offset: int = 1_000_000
    final_policy_eval_confidence: float = 0.95
    native: bool = False
    threads: int = 1
    use_wandb: bool = False
    wandb_mode: Literal["offline", "online", "disabled"] = "offline"
    wandb_id: tyro.conf.Suppress[str | None] = None
    use_tensorboard: bool = False
    experiment_tag: str = ""
    ippo_version: Literal["v0"] = "v0"
    ippo: IPPOConfig = field(default_factory=IPPOConfig)
    safety: SafetySettings = field(default_factory=SafetySettings)
    stepping: SteppingSettings = field(default_factory=SteppingSettings)
    saving: TrajectorySettings = field(default_factory=TrajectorySettings)

    def __post_init__(self) -> None:
        positive = (
            "timesteps",
            "num_envs",
            "num_runs",
            "checkpoint_every",
            "ma_window",
            "eval_episodes",
            "threads",
        )
        for name in positive:
            at_least(1)(name, getattr(self, name))
        for name in (
            "seed",
            "eval_every",
            "video_every",
            "video_episodes",
            "final_policy_eval_episodes",
            "final_policy_eval_seed_offset",
        ):
            at_least(0)(name, getattr(self, name))
        if self.stop_at is not None and math.isnan(self.stop_at):
            raise ConfigError("stop_at=nan: give a mean return, or leave it out to play all timesteps")
        between(0, 1)("final_policy_eval_confidence", self.final_policy_eval_confidence)
        increasing("final_policy_eval_horizons", self.final_policy_eval_horizons)
        self.task.cost_for(self.cost, needed=False)
        self.safety.check(self.env)
        shielded = self.safety.shield != "none"
        saving = self.saving.trajectories
        self.stepping.check(num_envs=self.num_envs, native=self.native, shielded=shielded, saving=saving)
        self.saving.check(native=self.native)

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

    @property
    def learning_eval_seed(self) -> int:
        """The same of the evaluations on the way: what they choose must not be tested on the seeds that chose it."""
        return self.eval_seed + 2 * self.final_policy_eval_seed_offset

    def factory(self, *, judged: bool = False) -> EnvFactory:
        """What builds one copy of the env with all its wrappers.

        A task's own cost is counted where the run needs it or asks for it, and in any case with ``judged``: evaluations are
        for judging a team, and hardly slower with it. Training at full speed pays only for what it uses.

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
            direct=self.direct,
            preprocess=task.preprocess if self.preprocess is None else self.preprocess,
            cost=task.cost_for(self.cost, needed=judged or self.safety.charged),
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
        return _SETTINGS.flatten(self)

    @classmethod
    def from_flat(cls, settings: Mapping[str, Any]) -> RunConfig:
        """A run from one level of names and values.

        Raises:
            ConfigError: an unknown name (with the nearest known one), a value of the wrong type, no env.
        """
        if "env" not in settings:
            raise ConfigError("no env is given: name a task, or package.module:function")
        return _SETTINGS.build(settings)

    @classmethod
    def from_base(cls, base: Mapping[str, Any], run_idx: int | None = None) -> RunConfig:
        """The run, or with ``run_idx`` one of its ``num_runs`` runs, of a dict from `create_base_config`.

        Raises:
            ConfigError: a key that is neither of that function nor a setting of a run.
        """
        for theirs, ours in _RENAMED.items():
            if theirs in base and ours in base:
                raise ConfigError(f"{theirs} and {ours} are the same setting: give one of them")
        config = cls.from_flat({_RENAMED.get(name, name): value for name, value in base.items()})
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
        settings = read_toml(path, "config file")
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
        return {names.get(name, name): value for name, value in self.to_flat().items()}


def setting_names() -> list[str]:
    """The flat names of all settings, as in ``config.json``."""
    return _SETTINGS.names


def names_code(config: RunConfig) -> list[str]:
    """The references to code among the settings, which are imported when envs are built."""
    return [name for name in (config.env, config.cost) if name and ":" in name]


def check_trust(config: RunConfig, trusted: bool) -> None:
    """Refuse to import what only a run folder names: the folder may come from a stranger.

    Raises:
        ConfigError: env or cost is a reference to code, and not ``trusted``.
    """
    code = names_code(config)
    if code and not trusted:
        raise ConfigError(
            f"this run folder names code to be imported: {', '.join(code)}. If you trust it, add --trust."
        )


_SETTINGS = FlatSettings(RunConfig)
