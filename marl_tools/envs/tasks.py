"""Short task names for this package's own environments and the parallel ones of mpe2 and PettingZoo.

A task says how its environment is made and what it needs; nothing of it is imported before that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from marl_tools.core.errors import ConfigError, MissingExtraError, did_you_mean

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_INSTALL = "pip install marl-tools"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A named environment.

    Attributes:
        name: the short name, or the reference itself for an environment of one's own.
        id: family, name and version, as in ``butterfly/pistonball-v6``; empty for a reference.
        make_env: ``"package.module:function"``; called with `kwargs` it returns a parallel env.
        agents: how many agents the env has by default; None when that is not known beforehand.
        n_agents_kwarg: the env's argument that is exactly the number of agents, None if there is none.
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
    preprocess: tuple[str, ...] = ()
    description: str = ""
    native: bool = False
    packages: tuple[str, ...] = ()
    install: str = _INSTALL

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


def _mpe2(
    module: str, agents: int, description: str, n_agents_kwarg: str | None = None, *, native: bool = False
) -> Task:
    name, version = module.rsplit("_v", 1)
    return Task(
        name=name,
        id=f"mpe2/{name}-v{version}",
        make_env=f"mpe2.{module}:parallel_env",
        agents=agents,
        n_agents_kwarg=n_agents_kwarg,
        description=description,
        native=native,
        packages=("mpe2", "pygame"),
    )


def _pettingzoo(
    id: str, agents: int, description: str, *, kwargs: Mapping[str, Any] | None = None, **more: Any
) -> Task:
    family, name = id.rsplit("-v", 1)[0].split("/")
    return Task(
        name=name,
        id=id,
        # Through the registry: since PettingZoo 1.27 the modules' own `parallel_env` warns that it will go.
        make_env="pettingzoo:make",
        kwargs={"env_type": "parallel", "id": id, **(kwargs or {})},
        agents=agents,
        description=description,
        # The dependencies of this package bring pygame, all that the classic family needs.
        install=_INSTALL if family == "classic" else f'pip install "marl-tools[{family}]"',
        **more,
    )


def _own(
    module: str,
    agents: int,
    description: str,
    *,
    name: str = "",
    kwargs: Mapping[str, Any] | None = None,
    n_agents_kwarg: str | None = None,
) -> Task:
    """An environment of this package: it reports a cost and a Markov key, and its law can be enumerated."""
    return Task(
        name=name or module,
        id=f"marl_tools/{name or module}-v0",
        make_env=f"marl_tools.envs.{module}:parallel_env",
        kwargs=kwargs or {},
        agents=agents,
        n_agents_kwarg=n_agents_kwarg,
        description=description,
        native=True,
    )


def _gridmap(map_name: str, description: str) -> Task:
    return _own("gridmaps", 2, description, name=f"gridmap_{map_name}", kwargs={"map_name": map_name})


# Where the screen is the observation, PettingZoo draws nothing on it without a render mode: no ball, no pistons.
_DRAWN = {"render_mode": "rgb_array"}

_ALL = (
    _mpe2("simple_v3", 1, "one agent walks to a landmark"),
    _mpe2("simple_spread_v3", 3, "cover all landmarks without colliding", "N", native=True),
    _mpe2("simple_tag_v3", 4, "three slow predators chase a fast prey", native=True),
    _mpe2("simple_adversary_v3", 3, "two agents hide their target from an adversary", native=True),
    _mpe2("simple_reference_v3", 2, "each knows where the other should go, and says so", native=True),
    _mpe2("simple_speaker_listener_v4", 2, "one knows the target, the other can move", native=True),
    _mpe2("simple_push_v3", 2, "an adversary keeps an agent from its landmark", native=True),
    _mpe2("simple_crypto_v3", 3, "alice writes to bob, eve listens"),
    _mpe2("simple_world_comm_v3", 6, "a chase with food, forests and a leader who speaks"),
    _mpe2("simple_formation_v1", 4, "form a circle around a landmark", "N"),
    _mpe2("simple_line_v1", 4, "spread evenly on the line between two landmarks", "N"),
    _mpe2("collect_treasure_v1", 8, "six collectors bring treasures to the deposit of their colour"),
    _pettingzoo(
        "butterfly/pistonball-v6",
        20,
        "pistons roll a ball to the left wall; images, continuous actions",
        kwargs=_DRAWN,
        n_agents_kwarg="n_pistons",
        preprocess=("color_reduction=full", "resize=36x84", "frame_stack=4"),
        packages=("pygame", "pymunk"),
    ),
    _pettingzoo(
        "butterfly/cooperative_pong-v6",
        2,
        "two paddles keep one ball in play; images",
        kwargs=_DRAWN,
        preprocess=("color_reduction=full", "resize=72x42", "frame_stack=4"),
        packages=("pygame",),
    ),
    _pettingzoo(
        "butterfly/knights_archers_zombies-v11",
        4,
        "knights and archers hold off zombies; agents die on the way",
        packages=("pygame",),
    ),
    _pettingzoo(
        "sisl/pursuit-v5",
        8,
        "pursuers surround evaders on a grid; small images",
        n_agents_kwarg="n_pursuers",
        packages=("pygame", "scipy"),
    ),
    _pettingzoo(
        "sisl/multiwalker-v9",
        3,
        "bipeds carry a package together; continuous actions",
        n_agents_kwarg="n_walkers",
        packages=("pygame", "Box2D"),
    ),
    _pettingzoo("classic/rps-v2", 2, "rock, paper, scissors, repeated", packages=("pygame",)),
    _own("crossing", 2, "cars cross an intersection; cost: a crash", n_agents_kwarg="n_agents"),
    _own("corridor", 2, "walkers on a windy ledge; cost: a fall", n_agents_kwarg="n_agents"),
    _own("drones", 4, "a fleet crosses one airspace; cost: two come too close", n_agents_kwarg="n_agents"),
    _own("stag_hunt", 2, "two hunters, plants and a stag; cost: mauled alone"),
    _gridmap("rooms", "two robots swap places between two rooms; cost: a collision"),
    _gridmap("streets", "two robots swap places in narrow streets; cost: a collision"),
    _gridmap("warehouse", "two robots swap places among shelves; cost: a collision"),
    _gridmap("bridges", "two robots swap places over two bridges; cost: a collision"),
)
_TASKS = {task.name: task for task in _ALL}


def _spellings(task: Task) -> tuple[str, ...]:
    family, versioned = task.id.split("/")
    # mpe2's environments were PettingZoo's `mpe` family until they moved out.
    prefixes = ("", f"{family}/", *(["mpe/"] if family == "mpe2" else []))
    return tuple(prefix + name for prefix in prefixes for name in (task.name, versioned))


_SPELLED = {spelling: task for task in _ALL for spelling in _spellings(task)}
_SPELLED["kaz"] = _TASKS["knights_archers_zombies"]


def task_names() -> list[str]:
    """The short names, sorted."""
    return sorted(_TASKS)


def find_task(name: str) -> Task:
    """The task of that name.

    Besides the short name, the names used by the packages themselves are understood (``simple_spread_v3``,
    ``mpe2.simple_spread_v3``, ``butterfly/pistonball-v6``), ``kaz``, and ``package.module:function`` for any
    other environment. Another version than the one known here is refused: its results would not compare.

    Raises:
        ConfigError: no such task; the message holds the nearest name.
    """
    if _REFERENCE.fullmatch(name):
        return Task(name=name, make_env=name, description="an environment of your own")
    if ":" in name:
        raise ConfigError(f"{name!r} is no reference to a function. Write package.module:function.")
    spelling = re.sub(r"_v(\d+)$", r"-v\1", name.replace(".", "/")).removeprefix("pettingzoo/")
    if spelling in _SPELLED:
        return _SPELLED[spelling]
    stem = re.sub(r"-v\d+$", "", spelling.rsplit("/", 1)[-1])
    raise ConfigError(
        f"No task is named {name!r}.{did_you_mean(stem, _TASKS)} "
        "An environment of your own is given as package.module:function."
    )


def require(task: Task) -> None:
    """Check that the packages behind ``task`` are installed, without importing them.

    Raises:
        MissingExtraError: with the command that installs what is missing.
    """
    missing = [package for package in task.packages if find_spec(package) is None]
    if missing:
        raise MissingExtraError(
            f"{task.name!r} needs {' and '.join(missing)}, not installed here. Run: {task.install}"
        )
