"""How the tasks of a family are described: what its environments have in common is written once."""

from __future__ import annotations

from typing import Any

from marl_tools.envs.tasks.task import Task

EXTRA = 'pip install "marl-tools[{}]"'
COSTS = "marl_tools.envs.costs:{}"
MOVES = "5 choices"
_ADAPTERS = "marl_tools.envs.adapters.{}:parallel_env"


def mpe2(module: str, agents: int, observations: str, description: str, **more: Any) -> Task:
    """A particle env: it needs what this package installs anyway, and lasts 25 steps."""
    name, version = module.rsplit("_v", 1)
    settings: dict[str, Any] = {"actions": MOVES, "cap": 25, "packages": ("mpe2", "pygame")}
    return Task(
        name=name,
        id=f"mpe2/{name}-v{version}",
        make_env=f"mpe2.{module}:parallel_env",
        agents=agents,
        observations=f"{observations} numbers",
        description=description,
        **settings | more,
    )


def pettingzoo(id: str, agents: int, description: str, *, adapter: str | None = None, **more: Any) -> Task:
    """An env of PettingZoo's registry, as it is or through an adapter that mends it."""
    family, name = id.rsplit("-v", 1)[0].split("/")
    settings: dict[str, Any] = {
        # Through the registry: since PettingZoo 1.27 the modules' own `parallel_env` warns that it will go.
        "make_env": "pettingzoo:make",
        "kwargs": {"env_type": "parallel", "id": id, **more.pop("kwargs", {})},
        "packages": ("pygame",),
    }
    if adapter:
        settings |= {"make_env": _ADAPTERS.format(adapter), "kwargs": {}}
    # The dependencies of this package bring pygame, all that the classic family needs.
    if family != "classic":
        settings["install"] = EXTRA.format(family)
    return Task(name=name, id=id, agents=agents, description=description, **settings | more)


def adapted(id: str, agents: int, description: str, *, adapter: str, **more: Any) -> Task:
    """An env of another package, made by an adapter."""
    name = id.rsplit("-v", 1)[0].split("/")[1]
    make_env = _ADAPTERS.format(adapter)
    return Task(name=name, id=id, make_env=make_env, agents=agents, description=description, **more)


def mamujoco(
    name: str, body: str, parts: str, spaces: tuple[str, str], limit: float, description: str
) -> Task:
    """A body of MuJoCo, parted among agents, that must not be faster than ``limit``."""
    agents = int(parts.split("x")[0])
    return adapted(
        f"mamujoco/{name}_{parts}-v1",
        agents,
        description,
        adapter="mamujoco",
        kwargs={"scenario": body, "agent_conf": parts},
        observations=f"{spaces[0]} numbers",
        actions=spaces[1],
        cost=COSTS.format(f"{name}_{parts}"),
        violation=f"the body is faster than {limit}",
        cap=1000,
        packages=("gymnasium_robotics", "mujoco"),
        install=EXTRA.format("mamujoco"),
    )


def own(
    module: str, agents: int, observations: int, cap: int, violation: str, description: str, **more: Any
) -> Task:
    """An env of this package: it reports a cost and a Markov key, and its law can be enumerated."""
    name = more.pop("name", module)
    settings: dict[str, Any] = {"actions": MOVES}
    return Task(
        name=name,
        id=f"marl_tools/{name}-v0",
        make_env=f"marl_tools.envs.{module}:parallel_env",
        agents=agents,
        observations=f"{observations} numbers",
        cap=cap,
        violation=violation,
        description=description,
        native=True,
        **settings | more,
    )


def gridmap(map_name: str, observations: int, description: str) -> Task:
    """A map for two robots."""
    name, kwargs = f"gridmap_{map_name}", {"map_name": map_name}
    return own("gridmaps", 2, observations, 500, "a collision", description, name=name, kwargs=kwargs)
