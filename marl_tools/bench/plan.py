"""`Plan`: methods x tasks x seeds as one value or one TOML file, and the runs that it comes to."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marl_tools.bench.fingerprint import fingerprint
from marl_tools.core.checks import at_least
from marl_tools.core.durable import plain
from marl_tools.core.errors import ConfigError, MarlToolsError, did_you_mean
from marl_tools.core.io import read_toml
from marl_tools.experiment.config import RunConfig, setting_names

Settings = Mapping[str, Any]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}")
_OWNED = {
    "seed": "seeds are the plan's: seeds = [0, 1, 2], or --seeds N",
    "num_runs": "seeds are the plan's: seeds = [0, 1, 2], or --seeds N",
    "out": "each run has a folder of its own in that of the plan, --out",
    "wandb_id": "each run gets an id of its own",
}
_SEEDS = 2**63
_PARTS = ("name", "settings", "methods", "tasks", "seeds", "except")


@dataclass(frozen=True, kw_only=True)
class Excluded:
    """A combination that makes no sense, and why; it is shown with the results."""

    method: str
    task: str
    why: str


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a plan; ``id`` is ``<method>-<task>-s<seed>-<8 digits of the settings>`` and a safe folder name."""

    id: str
    method: str
    task: str
    seed: int
    config: RunConfig


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Methods x tasks x seeds.

    The settings of a run are those of `RunConfig`, in one level. ``settings`` hold for all; a task's win over them, and a method's
    over both. Values are replaced whole: ``env_kwargs`` of a task are not merged with those of ``settings``.

    Args:
        name: of the plan.
        methods: settings by name.
        tasks: settings by name; the environment is the name, unless they hold ``env``.
        settings: what all runs have in common.
        seeds: one run each.
        excluded: combinations that are left out; "except" in a file.

    Raises:
        ConfigError: a name that is unknown or cannot be a folder's, or settings that some run cannot have; names method and task.
    """

    name: str
    methods: Mapping[str, Settings]
    tasks: Mapping[str, Settings]
    settings: Settings = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    excluded: tuple[Excluded, ...] = ()

    def __post_init__(self) -> None:
        _check_name("plan", self.name)
        for kind, parts in (("method", self.methods), ("task", self.tasks)):
            if not parts:
                raise ConfigError(f"plan {self.name!r} has no {kind}s: give at least one")
            for name in parts:
                _check_name(kind, name)
        for seed in self.seeds:
            at_least(0)("seeds", seed)
            if seed >= _SEEDS:
                raise ConfigError(f"seeds: one has {len(str(seed))} digits; give seeds below 2**63")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds={list(self.seeds)}: give at least one, and each once")
        for excluded in self.excluded:
            _check_known("method", excluded.method, self.methods)
            _check_known("task", excluded.task, self.tasks)
        self._check_settings()
        # Settings that do not go together are refused here, not in the middle of the plan.
        if not list(self._pairs()):
            raise ConfigError(f"plan {self.name!r} excepts every combination: nothing is left to run")

    def runs(self) -> list[PlannedRun]:
        """All runs in the order in which they tell most: every method on every task with the first seed, then with the next."""
        pairs = list(self._pairs())
        runs = [
            _planned(method, task, dataclasses.replace(config, seed=seed))
            for seed in self.seeds
            for method, task, config in pairs
        ]
        ids = [run.id for run in runs]
        if twice := sorted(id for id, count in Counter(ids).items() if count > 1):
            raise ConfigError(
                f"two runs are called {twice[0]!r}: rename a method or a task, so that names joined by '-' differ"
            )
        return runs

    def with_seeds(self, count: int) -> Plan:
        """The same with ``count`` seeds, counted on from the plan's first.

        Raises:
            ConfigError: ``count`` is below 1.
        """
        at_least(1)("--seeds", count)
        return dataclasses.replace(self, seeds=tuple(range(self.seeds[0], self.seeds[0] + count)))

    def definition(self) -> dict[str, Any]:
        """The plan as plain values under the names of a TOML file; `from_definition` reads it back."""
        parts = {
            "name": self.name,
            "settings": self.settings,
            "methods": self.methods,
            "tasks": self.tasks,
            "seeds": self.seeds,
            "except": self.excluded,
        }
        return json.loads(json.dumps(parts, default=plain))

    @classmethod
    def from_definition(cls, definition: Mapping[str, Any]) -> Plan:
        """A plan from what `definition` returned, or from the content of a TOML file.

        Raises:
            ConfigError: an unknown or missing part, one of the wrong kind, or what the class itself refuses.
        """
        for part in definition:
            if part not in _PARTS:
                raise ConfigError(
                    f"unknown part {part!r} of a plan.{did_you_mean(part, _PARTS)} What all runs have in common belongs "
                    "under [settings]"
                )
        for part in ("methods", "tasks"):
            if part not in definition:
                raise ConfigError(f"the plan has no {part}: give at least one, as [{part}.NAME]")
        name = definition.get("name", "plan")
        if not isinstance(name, str):
            raise ConfigError(f"name={name!r}: must be a string")
        tables = {part: _table(part, definition.get(part, {})) for part in ("settings", "methods", "tasks")}
        return cls(
            name=name,
            settings=tables["settings"],
            methods={name: _table(f"methods.{name}", own) for name, own in tables["methods"].items()},
            tasks={name: _table(f"tasks.{name}", own) for name, own in tables["tasks"].items()},
            excluded=tuple(map(_excluded, _list("except", definition.get("except", [])))),
            **({"seeds": _seeds(definition["seeds"])} if "seeds" in definition else {}),
        )

    @classmethod
    def from_toml(cls, path: Path) -> Plan:
        """A plan from a TOML file; without a ``name`` it is called like the file.

        Raises:
            ConfigError: no such file, or what `from_definition` refuses.
            CorruptFileError: the file is no TOML.
        """
        definition = read_toml(path, "plan")
        try:
            return cls.from_definition({"name": path.stem, **definition})
        except MarlToolsError as error:
            raise type(error)(f"{path}: {error}") from error

    def _check_settings(self) -> None:
        """Names of settings, table by table, so that a slip is answered with where it is."""
        tables = {
            "settings": self.settings,
            **{f"methods.{name}": own for name, own in self.methods.items()},
            **{f"tasks.{name}": own for name, own in self.tasks.items()},
        }
        known = setting_names()
        for where, table in tables.items():
            for name in table:
                if name in _OWNED:
                    raise ConfigError(f"{where}: {name} cannot be set here: {_OWNED[name]}")
                if name not in known:
                    raise ConfigError(f"{where}: unknown setting {name!r}.{did_you_mean(name, known)}")
                if name == "env" and not where.startswith("tasks."):
                    raise ConfigError(f"{where}: env cannot be set here: it belongs to a task, [tasks.NAME]")

    def _pairs(self) -> Iterator[tuple[str, str, RunConfig]]:
        """Methods and tasks that go together, with the settings of their first run."""
        left_out = {(excluded.method, excluded.task) for excluded in self.excluded}
        for task, own in self.tasks.items():
            for method, theirs in self.methods.items():
                if (method, task) in left_out:
                    continue
                settings = {"env": task, **self.settings, **own, **theirs, "seed": self.seeds[0]}
                try:
                    yield method, task, RunConfig.from_flat(settings)
                except ConfigError as error:
                    raise ConfigError(f"method {method!r} on task {task!r}: {error}") from error


def _planned(method: str, task: str, config: RunConfig) -> PlannedRun:
    run_id = f"{method}-{task}-s{config.seed}-{fingerprint(config)}"
    return PlannedRun(id=run_id, method=method, task=task, seed=config.seed, config=config)


def _check_name(kind: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        remedy = f"; call it otherwise and set env = {name!r} in it" if kind == "task" else ""
        raise ConfigError(
            f"{kind} {name!r}: a name becomes part of folders, so it begins with a letter or a digit and holds up to 64 "
            f"letters, digits and . _ + -{remedy}"
        )


def _check_known(kind: str, name: str, known: Mapping[str, Any]) -> None:
    if name not in known:
        raise ConfigError(f"except: no {kind} {name!r} in the plan.{did_you_mean(name, known)}")


def _table(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}={value!r}: must be a table, [{where}]")
    return value


def _list(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{where}={value!r}: must be a list, [[{where}]]")
    return value


def _seeds(value: Any) -> tuple[int, ...]:
    """A list of seeds, or how many."""
    if isinstance(value, list):
        return tuple(value)
    return tuple(range(at_least(1)("seeds", value)))


def _excluded(value: Any) -> Excluded:
    parts = _table("except", value)
    if set(parts) != {"method", "task", "why"} or not all(isinstance(part, str) for part in parts.values()):
        raise ConfigError(f"except={dict(parts)!r}: needs method, task and why, each a string")
    return Excluded(**parts)
