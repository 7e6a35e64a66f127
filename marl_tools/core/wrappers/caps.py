"""Episode caps: where environments hide theirs, what firing one means, and the wrapper that does it.

An env that never reports its cap, or reports it as a termination, teaches a learner that the future is worth
nothing there. A cap is a truncation; see Pardo et al., "Time Limits in Reinforcement Learning" (ICML 2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any, Literal, get_args

from pettingzoo.utils.wrappers import MultiEpisodeEnv, MultiEpisodeParallelEnv

from marl_tools.core.checks import at_least, one_of
from marl_tools.core.errors import ConfigError
from marl_tools.core.types import AgentID
from marl_tools.core.wrappers.base import ParallelWrapper, step_of_nobody

TerminationsAtCap = Literal["keep", "truncate"]

_CAP_NAMES = ("max_cycles", "max_episode_steps", "max_steps", "num_timesteps")
# Set by Gymnasium's TimeLimit, which cuts whatever lies below it: of these the least counts.
_LIMIT_NAME = "_max_episode_steps"
_KWARGS_NAMES = ("_ezpickle_kwargs", "_kwargs")
# `unwrapped` comes last: it skips the layers in between, some of which change the length of a step.
_INNER_NAMES = ("env", "aec_env", "par_env", "single_agent_env", "_env", "pogema", "grid_config")
_FRAME_SKIPS = ("frame_skip_par", "frame_skip_aec")


def infer_episode_cap(env: Any) -> int | None:
    """The number of steps of ``env`` after which it, or something inside it, ends the episode; None if unknown.

    Looks through wrappers and conversions of PettingZoo, SuperSuit, Gymnasium and this package. The innermost
    cap counts, and of several time limits the least. A cap below a frame skip is divided (rounded up), one below
    a multi-episode wrapper multiplied.
    """
    return _cap_of(env, {})


def apply_hidden_episode_cap(
    *,
    active_agents: Iterable[AgentID],
    terminations: Mapping[AgentID, bool],
    truncations: Mapping[AgentID, bool],
    episode_steps: int,
    episode_cap: int | None,
) -> tuple[dict[AgentID, bool], bool]:
    """The truncations once the cap is applied, and whether it fired.

    It fires if ``episode_steps >= episode_cap`` and some active agent is neither terminated nor truncated; then
    exactly those agents are truncated. The arguments are left as they are; a missing flag reads as False.
    """
    new_truncations = dict(truncations)
    if episode_cap is None or episode_steps < episode_cap:
        return new_truncations, False
    cut = [
        agent
        for agent in active_agents
        if not (terminations.get(agent, False) or truncations.get(agent, False))
    ]
    new_truncations.update(dict.fromkeys(cut, True))
    return new_truncations, bool(cut)


class EpisodeCap(ParallelWrapper):
    """Truncate every live agent after ``steps`` steps; observations never show the clock.

    Args:
        env: any parallel env.
        steps: the cap, in steps of ``env``. None takes the env's own cap, read again at each reset.
        terminations_at_cap: some envs (multiwalker, rware, lbforaging) report their own cap as a termination.
            "keep" passes that on; "truncate" turns every termination in the very step of the env's own cap into
            a truncation. The two cannot be told apart there: a real death in that one step is rewritten as well.

    Agents cut off by this wrapper have ``infos[agent]["capped"] = True``; those that the env ended itself in the
    same step have not. `cap` is the number of steps. Stepping on after the cap returns five empty dicts.

    Raises:
        ConfigError: ``steps`` is not a whole number above 0, or no cap was given and none found.
    """

    def __init__(
        self, env: Any, steps: int | None = None, *, terminations_at_cap: TerminationsAtCap = "keep"
    ) -> None:
        super().__init__(env)
        one_of(*get_args(TerminationsAtCap))("terminations_at_cap", terminations_at_cap)
        self._rewrite = terminations_at_cap == "truncate"
        # Either is 0 when nobody asked for it.
        self._fixed = 0 if steps is None else at_least(1)("steps", steps)
        self._inferred = _require_cap(env) if steps is None or self._rewrite else 0
        self.cap = self._fixed or self._inferred
        self._steps = 0
        self._fired = False

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        result = self.env.reset(seed=seed, options=options)
        if self._inferred:
            # A reset may rebuild what is inside, with another cap (cooperative_pong, sets of tasks).
            self._inferred = infer_episode_cap(self.env) or self._inferred
            self.cap = self._fixed or self._inferred
        self._steps = 0
        self._fired = False
        self.agents = list(self.env.agents)
        return result

    def step(self, actions: dict[AgentID, Any]) -> Any:
        if self._fired:
            return step_of_nobody()
        env = self.env
        before = self.agents
        observations, rewards, terminations, truncations, infos = env.step(actions)
        self._steps += 1
        if self._rewrite and self._steps == self._inferred:
            cut = [agent for agent in before if terminations.get(agent, False)]
            terminations = {**terminations, **dict.fromkeys(cut, False)}
            truncations = {**truncations, **dict.fromkeys(cut, True)}
        # Some envs (Atari) leave agents that they ended in `agents`.
        agents = [
            agent
            for agent in env.agents
            if not (terminations.get(agent, False) or truncations.get(agent, False))
        ]
        if self._steps >= self.cap:
            truncations, self._fired = apply_hidden_episode_cap(
                active_agents=agents,
                terminations=terminations,
                truncations=truncations,
                episode_steps=self._steps,
                episode_cap=self.cap,
            )
            if self._fired:
                infos = {**infos, **{agent: {**infos.get(agent, {}), "capped": True} for agent in agents}}
                agents = []
        self.agents = agents
        return observations, rewards, terminations, truncations, infos


def _require_cap(env: Any) -> int:
    seen: dict[int, Any] = {}
    cap = _cap_of(env, seen)
    if cap is None:
        layers = ", ".join(dict.fromkeys(type(layer).__name__ for layer in seen.values()))
        names = ", ".join((*_CAP_NAMES, _LIMIT_NAME))
        raise ConfigError(
            f"no episode cap found in {env}: looked for {names} and the keyword arguments kept for pickling on "
            f"{layers}. Say how many steps an episode may last: EpisodeCap(env, steps=...)."
        )
    return cap


def _cap_of(layer: Any, seen: dict[int, Any]) -> int | None:
    """The cap below and on ``layer``, in steps of ``layer``. ``seen`` maps ids to objects, kept alive meanwhile."""
    if id(layer) in seen or not hasattr(layer, "__dict__"):
        return None
    seen[id(layer)] = layer
    attributes = vars(layer)
    inner = [attributes[name] for name in _INNER_NAMES if name in attributes]
    inner_caps = [cap for each in inner for cap in _as_cap(_cap_of(each, seen))]
    inner_caps = inner_caps or _as_cap(_cap_of(_unwrapped(layer), seen))
    caps = [_scaled(min(inner_caps), layer)] if inner_caps else _own_caps(attributes)[:1]
    limit = _as_cap(attributes.get("cap" if isinstance(layer, EpisodeCap) else _LIMIT_NAME))
    return min(caps + limit, default=None)


def _unwrapped(layer: Any) -> Any:
    # A conversion may raise anything here, an AssertionError for one; then there is nothing to see.
    try:
        return getattr(layer, "unwrapped", None)
    except Exception:
        return None


def _own_caps(attributes: Mapping[str, Any]) -> list[int]:
    sources = [attributes, *(attributes.get(name) or {} for name in _KWARGS_NAMES)]
    return [cap for source in sources for name in _CAP_NAMES for cap in _as_cap(source.get(name))]


def _as_cap(value: Any) -> list[int]:
    """``[value]`` if that can be a cap, else nothing: None, infinity, booleans and 0 all mean "no cap" somewhere."""
    return (
        [int(value)] if isinstance(value, Integral) and not isinstance(value, bool) and int(value) > 0 else []
    )


def _scaled(cap: int, layer: Any) -> int:
    attributes = vars(layer)
    if type(layer).__name__ in _FRAME_SKIPS:
        skip = attributes["num_frames"]
        # With a random skip the smallest one lasts longest: never cut before the env would.
        return math.ceil(cap / (skip[0] if isinstance(skip, tuple) else skip))
    if isinstance(layer, MultiEpisodeEnv | MultiEpisodeParallelEnv):
        return cap * attributes["_num_episodes"]
    return cap
