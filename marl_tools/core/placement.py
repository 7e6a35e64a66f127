"""What a task or an actor on a cluster needs, and the nodes that may have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from marl_tools.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a task or an actor takes from its node while it lives.

    Attributes:
        cpus, gpus: shares of them; a fraction is allowed.
        memory: bytes, by which Ray places tasks; it limits nothing.
        custom: amounts of what nodes were started with, as in ``ray start --resources``.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    memory: int = 0
    custom: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, amount in self.amounts().items():
            if not 0 <= amount < float("inf"):
                raise ConfigError(f"a task cannot take {amount} of {name}: give 0 or more")

    def __str__(self) -> str:
        taken = [f"{amount:g} {name}" for name, amount in self.amounts().items() if amount]
        return ", ".join(taken) or "nothing"

    def amounts(self) -> dict[str, float]:
        """By Ray's names for them."""
        return {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory, **self.custom}

    def options(self) -> dict[str, Any]:
        return {
            "num_cpus": self.cpus,
            "num_gpus": self.gpus,
            **({"memory": self.memory} if self.memory else {}),
            "resources": dict(self.custom),
        }


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine of the cluster, or what poses as one: its total ``resources`` by name (CPU, GPU, memory in bytes, ...)."""

    id: str
    host: str
    alive: bool
    resources: Mapping[str, float]

    def fits(self, wanted: Resources) -> bool:
        return self.alive and all(
            self.resources.get(name, 0.0) >= amount for name, amount in wanted.amounts().items()
        )
