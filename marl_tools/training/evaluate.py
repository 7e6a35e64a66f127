"""Evaluation of a frozen team on envs of its own: episodes, returns by horizon, confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from marl_tools.core.errors import ConfigError
from marl_tools.core.logging import log
from marl_tools.core.types import AgentID, EpisodeLog
from marl_tools.core.wrappers.recorder import EpisodeRecorder

_LONG = 10_000
"""Steps after which an episode may well be one that never ends: waiting for it looks like a hang."""


class Policy(Protocol):
    """Anything that plays: a `TeamPolicy`, a `RandomPolicy`, a user's own function with a ``seed`` method.

    A policy that has to know its env has a ``begin(env)`` as well, called after each reset, and an
    ``observe(terminations, infos)``, called after each step. One that has a ``probabilities(observations, infos)``, (n,) an
    agent, is asked for them by a shield that has equally good actions to choose from.
    """

    def seed(self, seed: int) -> None: ...

    def __call__(
        self, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, Mapping[str, Any]] | None = None
    ) -> dict[AgentID, Any]: ...


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Finished episodes, and per horizon h each agent's return over the first h steps of each episode.

    ``costed`` says whether the env gave costs at all.
    """

    episodes: list[EpisodeLog] = field(default_factory=list)
    horizon_returns: dict[int, list[dict[AgentID, float]]] = field(default_factory=dict)
    costed: bool = False

    def mean_returns(self) -> dict[str, float]:
        """Mean return over the episodes: of the mean over agents, under that name, then of each agent."""
        table = _table([episode.returns for episode in self.episodes], 0.95)
        agents = {agent: row["mean"] for agent, row in table["agents"].items()}
        return {"mean over agents": table["mean_over_agents"]["mean"], **agents}

    def summary(self, confidence: float = 0.95) -> dict[str, Any]:
        """Mean returns with their Student-t intervals: per agent, mean over agents, and per horizon.

        The interval assumes independent episodes and is None for fewer than two.
        """
        return {
            "episodes": len(self.episodes),
            "confidence": confidence,
            "returns": _table([episode.returns for episode in self.episodes], confidence),
            "costs": _table([episode.costs for episode in self.episodes], confidence),
            "length": mean_interval([episode.length for episode in self.episodes], confidence),
            "horizons": {str(h): _table(rows, confidence) for h, rows in self.horizon_returns.items()},
        }


def evaluate(
    make_env: Callable[..., EpisodeRecorder],
    policy: Policy,
    *,
    episodes: int,
    seed: int,
    horizons: Sequence[int] = (),
    on_episode: Callable[[EpisodeLog], None] | None = None,
) -> Evaluation:
    """Play ``episodes`` whole episodes, the i-th with env and policy seed ``seed + i``; the env is made and closed here.

    Raises:
        ConfigError: fewer than one episode.
    """
    if episodes < 1:
        raise ConfigError(f"episodes={episodes}: evaluate at least one")
    result = Evaluation(horizon_returns={h: [] for h in horizons})
    env = make_env(split="eval")
    try:
        for number in range(episodes):
            reached = play_episode(env, policy, seed + number, horizons)
            assert env.last_episode is not None
            result.episodes.append(env.last_episode)
            for h in horizons:
                # An episode that was over before h steps earned all that it could.
                result.horizon_returns[h].append(reached.get(h, dict(env.last_episode.returns)))
            if on_episode:
                on_episode(env.last_episode)
        return replace(result, costed=env.builder.costed)
    finally:
        env.close()


def play_episode(
    env: Any, policy: Policy, seed: int, horizons: Sequence[int] = ()
) -> dict[int, dict[AgentID, float]]:
    """One episode from reset to the last agent's end. Returns the running returns at each horizon it reached.

    What env or policy raise passes through, with a note of the episode's seed and step.
    """
    step, reached = 0, {}
    try:
        policy.seed(seed)
        observations, infos = env.reset(seed=seed)
        if begin := getattr(policy, "begin", None):
            begin(env)
        observe = getattr(policy, "observe", None)
        while env.builder.open:
            step += 1
            live = {agent: observations[agent] for agent in env.agents}
            observations, _, terminations, _, infos = env.step(policy(live, infos))
            if observe:
                observe(terminations, infos)
            if step == _LONG:
                log(
                    f"an episode of {env.env_name} is still running after {_LONG} steps. An env that never ends needs a cap "
                    "(--cap N)",
                    type="evaluate",
                    priority="WARNING",
                )
            if step in horizons:
                reached[step] = dict(env.builder.returns)
    except Exception as error:
        error.add_note(
            f"in {env.env_name}, episode seed {seed}, {f'step {step}' if step else 'at its reset'}"
        )
        raise
    return reached


def mean_interval(values: Sequence[float], confidence: float) -> dict[str, Any]:
    """Mean and two-sided Student-t interval of the mean."""
    from scipy import stats

    array = np.asarray(values, float)
    mean = float(array.mean()) if len(array) else math.nan
    if len(array) < 2:
        return {"mean": mean, "interval": None}
    half = float(
        stats.t.ppf(0.5 + confidence / 2, len(array) - 1) * array.std(ddof=1) / math.sqrt(len(array))
    )
    return {"mean": mean, "interval": [mean - half, mean + half]}


def _table(rows: Sequence[Mapping[AgentID, float]], confidence: float) -> dict[str, Any]:
    agents = list(dict.fromkeys(agent for row in rows for agent in row))
    means = [math.fsum(row.values()) / max(1, len(row)) for row in rows]
    return {
        "mean_over_agents": mean_interval(means, confidence),
        "agents": {
            agent: mean_interval([row[agent] for row in rows if agent in row], confidence) for agent in agents
        },
    }
