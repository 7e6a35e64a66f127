"""`Task`: what is known of an environment before anything of it is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from marl_tools.core.errors import ConfigError, MissingExtraError


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A named environment.

    Attributes:
        name: the short name, or the reference itself for an environment of one's own.
        id: family, name and version, as in ``butterfly/pistonball-v6``; empty for a reference.
        make_env: ``"package.module:function"``; called with `kwargs` it returns a parallel env.
        agents: how many agents the env has by default; None when that is not known beforehand.
        n_agents_kwarg: the env's argument that is exactly the number of agents, None if there is none.
        observations, actions: the spaces in words, by default those of a team that is as the env makes it.
        cost: ``"package.module:function"`` of a cost for `AddCost`; None where the env reports its own, or has none.
        violation: what an agent is charged for, in a few words; empty if there is no cost.
        cap: steps after which the env truncates an episode, None if it never does.
        preprocess: what images need before a network sees them, for `core.wrappers.preprocess.parse_preprocess`.
        native: whether many copies can be stepped in arrays (``--native``).
        packages: what must be importable; see `require`.
        install: the command that installs them.
    """

    name: str
    id: str = ""
    make_env: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    agents: int | None = None
    n_agents_kwarg: str | None = None
    observations: str = ""
    actions: str = ""
    cost: str | None = None
    violation: str = ""
    cap: int | None = None
    preprocess: tuple[str, ...] = ()
    description: str = ""
    native: bool = False
    packages: tuple[str, ...] = ()
    install: str = "pip install marl-tools"

    def kwargs_for(self, n_agents: int | None = None) -> dict[str, Any]:
        """The arguments of ``make_env``, for a team of ``n_agents`` if one is asked for.

        Raises:
            ConfigError: the team size is below 1, or this env cannot have it.
        """
        if n_agents is None or n_agents == self.agents:
            return dict(self.kwargs)
        if n_agents < 1:
            raise ConfigError(f"n_agents is {n_agents}: a team has at least one agent.")
        if self.n_agents_kwarg is None:
            has = "has a size of its own" if self.agents is None else f"has {self.agents} agents"
            raise ConfigError(
                f"n_agents is {n_agents}, but {self.name!r} {has} and no argument for their number. "
                "Leave n_agents out, or set the env's own arguments."
            )
        return {**self.kwargs, self.n_agents_kwarg: n_agents}

    def cost_for(self, asked: str | None, *, needed: bool) -> str | None:
        """The reference of the cost function to add to the env; None for none, or where the env reports its own.

        Args:
            asked: such a reference, which comes before the task's own; "default" for the task's own; or None.
            needed: whether the task's own is wanted without being asked for.

        Raises:
            ConfigError: "default", and the task is known to have no cost.
        """
        if asked not in (None, "default"):
            return asked
        if asked and self.id and not self.violation:
            raise ConfigError(
                f"cost='default', but {self.name} has no cost of its own: name a function of yours, package.module:function"
            )
        return self.cost if asked or needed else None

    def counts_costs(self, asked: str | None, *, needed: bool) -> bool | None:
        """Whether an env made with `cost_for` of the same arguments tells costs; None where only its steps can show it."""
        if needed or self.cost_for(asked, needed=False):
            return True
        if not self.id:
            return None
        return bool(self.violation) and self.cost is None

    def missing(self) -> list[str]:
        """Those of `packages` that are not installed; nothing is imported."""
        return [package for package in self.packages if find_spec(package) is None]


def require(task: Task) -> None:
    """Check that the packages behind ``task`` are installed, without importing them.

    Raises:
        MissingExtraError: with the command that installs what is missing.
    """
    if missing := task.missing():
        raise MissingExtraError(
            f"{task.name!r} needs {' and '.join(missing)}, not installed here. Run: {task.install}"
        )
