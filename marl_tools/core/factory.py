"""`EnvFactory`: how to build one env with its wrappers, small enough to be pickled to a worker process."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
from pettingzoo.utils.conversions import aec_to_parallel
from pettingzoo.utils.env import AECEnv, ParallelEnv

from marl_tools.core.checks import at_least, one_of
from marl_tools.core.errors import ConfigError, did_you_mean
from marl_tools.core.history import Clock
from marl_tools.core.types import AgentID, EpisodeLog, Split
from marl_tools.core.wrappers.agent_truncation import AgentTruncation
from marl_tools.core.wrappers.caps import EpisodeCap, TerminationsAtCap
from marl_tools.core.wrappers.cost import AddCost
from marl_tools.core.wrappers.direct import step_directly
from marl_tools.core.wrappers.preprocess import parse_preprocess, preprocess
from marl_tools.core.wrappers.recorder import EpisodeRecorder
from marl_tools.core.wrappers.trajectories import TrajectoryRecorder, check_segment

Reference = str
"""``"package.module:function"``, resolved when an env is built, in whichever process that is."""


@dataclass(frozen=True, kw_only=True)
class EnvFactory:
    """Build the env and wrap it: preprocessing innermost, then cost, cap, agent truncation, recorder and trajectories.

    The order is fixed. A cost function therefore sees preprocessed observations (the raw state is at
    ``step.env.unwrapped``), a cap counts the steps of the preprocessed env, and the log sees what the learner sees.

    Args:
        make_env: a callable or a `Reference`. It may return a parallel env or a parallelizable AEC env.
        kwargs: keyword arguments of ``make_env``.
        env_name: the name in the logs; by default the env's own.
        direct: step mpe2's envs without PettingZoo's turns, where `step_directly` knows the result to be the same.
        preprocess: steps of `marl_tools.core.wrappers.preprocess.parse_preprocess`.
        cost: a cost function of `AddCost`, or a `Reference` to one.
        cap: steps, "infer", or None for no `EpisodeCap`.
        terminations_at_cap: see `EpisodeCap`.
        agent_steps, agent_when, stand_in: see `AgentTruncation`; ``agent_when`` may be a `Reference`.
        save_trajectories: folder for a `TrajectoryRecorder`; copy i of the env is its writer ``env<i>``.
        segment, trajectory_format: see `TrajectoryRecorder`.

    Callables have to be module-level functions for the factory to be pickled; a `Reference` always works.

    Raises:
        ConfigError: at construction, a setting that can never work; when called, a reference that does not
            resolve, a keyword argument that ``make_env`` does not know, or an env that is not a parallel one.
    """

    make_env: Callable[..., Any] | Reference
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    env_name: str | None = None
    direct: bool = True
    preprocess: tuple[str, ...] = ()
    cost: Callable[..., Any] | Reference | None = None
    cap: int | Literal["infer"] | None = None
    terminations_at_cap: TerminationsAtCap = "keep"
    agent_steps: int | Mapping[AgentID, int] | None = None
    agent_when: Callable[..., bool] | Reference | None = None
    stand_in: Any = None
    save_trajectories: str | None = None
    segment: tuple[int, int] = (100, 200)
    trajectory_format: str = "npz"

    def __post_init__(self) -> None:
        for name in ("make_env", "cost", "agent_when"):
            _check_reference(name, getattr(self, name))
        parse_preprocess(self.preprocess)
        check_segment("segment", self.segment)
        if isinstance(self.cap, str):
            one_of("infer")("cap", self.cap)
        elif self.cap is not None:
            at_least(1)("cap", self.cap)
        if self.terminations_at_cap != "keep" and self.cap is None:
            raise ConfigError("terminations_at_cap needs a cap: set cap to a number of steps or 'infer'.")
        truncates = self.agent_steps is not None or self.agent_when is not None
        if truncates != (self.stand_in is not None):
            raise ConfigError(
                "agent_steps or agent_when goes together with stand_in, the action of a retired agent; got "
                f"agent_steps={self.agent_steps!r}, agent_when={self.agent_when!r}, stand_in={self.stand_in!r}."
            )

    def __call__(
        self,
        *,
        render_mode: str | None = None,
        env_index: int = 0,
        split: Split = "train",
        clock: Clock | None = None,
        on_episode: Callable[[EpisodeLog], None] | None = None,
    ) -> EpisodeRecorder:
        """A fresh env. ``render_mode`` reaches ``make_env`` only if given; the rest goes to `EpisodeRecorder`.

        A `TrajectoryRecorder` around it answers for the recorder: ``builder``, ``clock``, ``last_episode``, ``on_episode``.
        """
        kwargs = dict(self.kwargs) if render_mode is None else {**self.kwargs, "render_mode": render_mode}
        make_env = resolve(self.make_env)
        label = self.make_env if isinstance(self.make_env, str) else _label(make_env)
        env = _parallel(_call(label, make_env, kwargs))
        env = preprocess(step_directly(env) if self.direct else env, self.preprocess)
        if self.cost is not None:
            env = AddCost(env, resolve(self.cost))
        if self.cap is not None:
            steps = None if self.cap == "infer" else self.cap
            env = EpisodeCap(env, steps, terminations_at_cap=self.terminations_at_cap)
        if self.stand_in is not None:
            when = None if self.agent_when is None else resolve(self.agent_when)
            env = AgentTruncation(env, steps=self.agent_steps, when=when, stand_in=self.stand_in)
        recorder = EpisodeRecorder(
            env, self.env_name, env_index=env_index, split=split, clock=clock, on_episode=on_episode
        )
        if self.save_trajectories is None:
            return recorder
        saving = TrajectoryRecorder(
            recorder,
            self.save_trajectories,
            self.segment,
            self.trajectory_format,
            writer=f"env{env_index}",
            rng=np.random.default_rng(env_index),
        )
        return cast(EpisodeRecorder, saving)


def resolve(reference: Callable[..., Any] | Reference) -> Callable[..., Any]:
    """The callable that ``"package.module:function"`` names; a callable is returned as it is.

    Raises:
        ConfigError: no such module, no such name in it, or a thing that cannot be called.
    """
    if not isinstance(reference, str):
        return reference
    module_name, _, path = reference.partition(":")
    try:
        target: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{reference!r}: {_why_missing(module_name, str(error.name))}") from error
    for name in path.split("."):
        if not hasattr(target, name):
            known = _callables(target)
            raise ConfigError(f"{reference!r}: {target!r} has no {name!r}.{did_you_mean(name, known)}")
        target = getattr(target, name)
    if not callable(target):
        raise ConfigError(f"{reference!r} is {target!r}, which cannot be called; name a function or a class.")
    return target


def _why_missing(module: str, missing: str) -> str:
    """What to do about a module that was not found while ``module`` was imported."""
    if not f"{module}.".startswith(f"{missing}."):
        return f"no module named {missing!r}, which {module} imports; is it installed?"
    if missing.endswith(".py"):
        return f"no module named {missing!r}: leave out the .py"
    return (
        f"no module named {missing!r}; is it installed? One of your own is found where the command is run: run it where "
        "the module lies, or set PYTHONPATH to that folder"
    )


def _callables(target: Any) -> list[str]:
    """What ``target`` itself defines and can be called; what it has only imported, if it defines nothing."""
    public = {key: value for key, value in vars(target).items() if callable(value) and key[0] != "_"}
    name = getattr(target, "__name__", None)
    return [key for key, value in public.items() if getattr(value, "__module__", None) == name] or list(
        public
    )


def _check_reference(name: str, value: Any) -> None:
    if isinstance(value, str):
        if not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", value):
            raise ConfigError(f"{name} must be written 'package.module:function', got {value!r}.")
    elif not callable(value) and (value is not None or name == "make_env"):
        raise ConfigError(f"{name} must be a callable or 'package.module:function', got {value!r}.")


def _label(function: Callable[..., Any]) -> str:
    return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__name__)}"


def _call(label: str, make_env: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    _check_arguments(label, make_env, kwargs)
    try:
        return make_env(**kwargs)
    except TypeError as error:
        # Most families pass **kwargs on to a class: only the call says that it does not know one.
        unknown = re.search(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'", str(error))
        if unknown is None or unknown[2] not in kwargs:
            raise
        _refuse_unknown(label, _parameters(_callee(error, unknown[1])), [unknown[2]])
        raise ConfigError(f"{label} does not take the keyword argument {unknown[2]!r}.") from error


def _check_arguments(label: str, make_env: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    parameters = _parameters(make_env)
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        _refuse_unknown(label, parameters, kwargs)
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in kwargs
    ]
    if missing:
        raise ConfigError(f"{label} needs the keyword argument {missing[0]!r}; add it to kwargs.")


def _refuse_unknown(label: str, known: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in names:
        if known and name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"{label} does not take the keyword argument {name!r}.{hint}")


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of ``function``; empty where Python cannot tell (builtins, None)."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _callee(error: TypeError, qualified_name: str) -> Any:
    """What refused the argument, as the innermost frame of the traceback knows it; None if it does not."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return None
    name = qualified_name.split(".")[0]
    return {**trace.tb_frame.f_globals, **trace.tb_frame.f_locals}.get(name)


def _parallel(env: Any) -> Any:
    if isinstance(env, AECEnv):
        if not env.metadata.get("is_parallelizable", False):
            raise ConfigError(
                f"{env} is a turn-based AEC env, not a parallel one. Use its parallel_env, or wrap it in "
                "pettingzoo.utils.turn_based_aec_to_parallel if its agents act in strict turns."
            )
        return aec_to_parallel(env)
    if not isinstance(env, ParallelEnv) and not hasattr(env, "possible_agents"):
        raise ConfigError(f"make_env returned {env!r}, not a PettingZoo env; it must return a ParallelEnv.")
    return env
