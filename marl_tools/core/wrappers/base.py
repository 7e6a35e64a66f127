"""What every wrapper of this package shares: safe attribute look-up, pickling and a repr that shows the stack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pettingzoo.utils import BaseParallelWrapper
from pettingzoo.utils.env import ParallelEnv


class ParallelWrapper(BaseParallelWrapper):
    """`BaseParallelWrapper` whose look-up neither recurses before ``env`` is set nor hides ``agents``.

    Subclasses that end agents set ``self.agents`` themselves; for the others it reads through to the env.
    """

    def __getattr__(self, name: str) -> Any:
        # Unpickling, copying and __del__ after a refused constructor all ask before `env` is there.
        if name == "env" or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)

    def __repr__(self) -> str:
        # A foreign env's `str` is its name, its `repr` an address.
        return f"{type(self).__name__}({self.env})"

    def __str__(self) -> str:
        return repr(self)


def env_layers(env: Any) -> Iterator[Any]:
    """The env and every wrapper below it along ``.env``, outermost first."""
    seen: set[int] = set()
    while env is not None and id(env) not in seen:
        seen.add(id(env))
        yield env
        env = vars(env).get("env") if hasattr(env, "__dict__") else None


def env_title(env: ParallelEnv) -> str:
    """The env's own name from its metadata, else the class name of the innermost env."""
    for layer in env_layers(env):
        name = (getattr(layer, "metadata", None) or {}).get("name")
        if name:
            return str(name)
    return type(getattr(env, "unwrapped", env)).__name__


def step_of_nobody() -> tuple[dict, dict, dict, dict, dict]:
    """What a step returns once a wrapper has ended everyone: the env below may still be live, and is left alone."""
    return {}, {}, {}, {}, {}
