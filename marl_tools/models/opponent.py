"""Opponent model v0: how likely each action of the others is at least, learned by counting their proposals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from marl_tools.core.checks import between, one_of
from marl_tools.core.errors import ConfigError
from marl_tools.models._floors import FLOOR_ARRAYS, Floors, first
from marl_tools.models._state import check_origin, origin

OpponentMode = Literal["oracle", "uniform", "empirical", "worst_case", "monotone_floor"]
Floats = NDArray[np.float64]


class OpponentModel:
    """Floors under the probability of each action of each agent at each key, as the others' bounds need them.

    ============== ================================================ =====================================
    mode           behaviours that the floors cover                 guarantee
    ============== ================================================ =====================================
    oracle         the policy that was handed in                    yes, if it is the true one
    uniform        one guess: all actions alike                     none
    empirical      one guess: the posterior mean                    none
    worst_case     every distribution                               yes
    monotone_floor every distribution above the floors              yes, while the opponents hold still
    ============== ================================================ =====================================

    ``monotone_floor`` takes the greatest lower end so far of a prior-posterior-ratio sequence, which is right at every
    number of draws at once. All floors of all agents hold at once with probability at least 1 - delta: delta is split
    over the agents evenly, over an agent's keys by order of discovery, over the streams at a key whose floors were ever
    asked for (6 delta / (pi^2 v^2) for the v-th of them), and over the actions evenly. When floors are asked for must not
    hang on the draws: after so many episodes, say.

    Draws are *proposed* actions, each drawn from the policy at that key alone: actions that a shield replaced, or
    sampled from what it admits, say something else. Policies must see the key only, neither slack nor time.

    Args:
        actions: number of actions of each agent. An agent is named by its place here.
        delta: the probability that any floor may be wrong, in (0, 1).
        mode: see above.
        env_name: kept with the counts, so that another env's are refused.
    """

    def __init__(
        self,
        actions: Sequence[int],
        delta: float,
        *,
        mode: OpponentMode = "monotone_floor",
        env_name: str = "",
    ) -> None:
        one_of("oracle", "uniform", "empirical", "worst_case", "monotone_floor")("opponent mode", mode)
        self.actions = tuple(map(int, actions))
        self.delta = between(0, 1)("delta", delta)
        self.mode: OpponentMode = mode
        self.env_name = env_name
        self._agents = [Floors(n, self.delta / len(self.actions) / n) for n in self.actions]
        self._policies: dict[int, Floats] = {}
        self._allowed: dict[int, NDArray[np.bool_]] = {}

    @property
    def guaranteed(self) -> bool:
        """Whether bounds that rest on these floors are more than a guess."""
        return self.mode in ("oracle", "worst_case", "monotone_floor")

    def add(self, keys: ArrayLike, agent: int, proposed: ArrayLike) -> None:
        """Count N actions that ``agent`` proposed, in order, at keys given by their ids (N,) in the world model.

        Raises:
            ConfigError: a key id below 0 or an action out of range; nothing is counted then.
        """
        key, action = np.asarray(keys, np.int64).ravel(), np.asarray(proposed, np.int64).ravel()
        for name, values, limit in (("key id", key, np.inf), ("action", action, self.actions[agent])):
            wrong = (values < 0) | (values >= limit)
            if wrong.any():
                raise ConfigError(
                    f"{name} {values[wrong][0]} of agent {agent} in env {self.env_name!r}: must be at least 0 and below "
                    f"{limit}. Count only what living agents propose at keys that the world model knows."
                )
        self._agents[agent].add(key, action)

    def floors(self, agent: int, num_keys: int) -> Floats:
        """Lower bounds (K, n) on the probability of each action of ``agent`` at the first K keys.

        Rows sum to 1 in the modes that know or guess the distribution, and to 0 where nothing is known. Actions outside of
        `restrict` have floor 0 in every mode.

        Raises:
            ConfigError: mode ``oracle`` without a policy of this agent.
        """
        if self.mode == "worst_case":
            return np.zeros((num_keys, self.actions[agent]))
        if self.mode == "monotone_floor":
            floors = self._agents[agent].rely(num_keys)
        elif self.mode == "oracle":
            floors = first(self._policy(agent), num_keys)
        else:
            floors = self.guess(agent, num_keys)
        if agent in self._allowed:
            floors = floors * first(self._allowed[agent], num_keys)
        return floors

    def guess(self, agent: int, num_keys: int) -> Floats:
        """One distribution (K, n) at each of the first K keys.

        ``oracle``: the policy handed in; ``uniform``: all alike; other modes: the posterior mean over all streams under a
        uniform prior. All alike at keys beyond what is known.
        """
        n = self.actions[agent]
        if self.mode == "oracle":
            return first(self._policy(agent), num_keys, 1 / n)
        if self.mode == "uniform":
            return np.full((num_keys, n), 1 / n)
        self._agents[agent].count()
        total = first(self._agents[agent].total, num_keys)
        return (total + 1) / (total.sum(1, keepdims=True) + n)

    def set_policy(self, agent: int, probabilities: Floats) -> None:
        """Hand in the true policy (K, n) of an agent, for mode ``oracle``.

        Raises:
            ConfigError: the rows are no distributions over the agent's actions.
        """
        policy = np.array(probabilities, np.float64)
        n = self.actions[agent]
        if (
            policy.ndim != 2
            or policy.shape[1] != n
            or (policy < 0).any()
            or not np.allclose(policy.sum(1), 1)
        ):
            raise ConfigError(
                f"policy of agent {agent}, shape {policy.shape}: must be distributions over {n} actions."
            )
        self._policies[agent] = policy

    def restrict(self, agent: int, allowed: NDArray[np.bool_]) -> None:
        """Keep floors only where ``allowed`` (K, n); at later keys nowhere.

        A shielded agent executes a proposal for sure only if its own frozen shield admits that action at zero slack with
        any number of steps left: pass exactly those. What it plays in place of the others is anybody's guess.

        Raises:
            ConfigError: the shape does not fit the agent's actions.
        """
        if allowed.ndim != 2 or allowed.shape[1] != self.actions[agent]:
            raise ConfigError(
                f"allowed of agent {agent} has shape {allowed.shape}: must be (K, {self.actions[agent]})."
            )
        self._allowed[agent] = np.array(allowed, np.bool_)

    def new_stream(self, agent: int, drift: ArrayLike | None = None) -> None:
        """The agent's policy or tables have changed: count afresh.

        Floors fall by ``drift``, a bound on the total-variation distance between old and new proposals at every key or
        per key (K,), and from there new draws may raise them; where it is None, NaN or missing they are reset to 0.
        Mode ``oracle`` forgets the agent's policy, which was the old one.

        Raises:
            ConfigError: a negative drift.
        """
        bound = np.asarray(np.nan if drift is None else drift, np.float64)
        if (bound < 0).any():
            raise ConfigError(
                f"drift {bound.min()} of agent {agent}: a total-variation distance is at least 0."
            )
        self._policies.pop(agent, None)
        self._agents[agent].new_stream(bound)

    def merge(self, other: OpponentModel, key_ids: NDArray[np.integer]) -> None:
        """Append the draws of another model of the same env; its key i is ``key_ids[i]`` here (see `WorldModel.merge`).

        They must be other draws than ours, and the agents' policies the same ones since each model's last `new_stream`.

        Raises:
            ConfigError: the model is of another env.
        """
        check_origin(self._origin(), other._origin())
        for ours, theirs in zip(self._agents, other._agents, strict=True):
            ours.absorb(theirs, key_ids)

    def state(self) -> dict[str, NDArray[Any]]:
        """All that was learned and the restrictions, as arrays; not the policies that were handed in."""
        state = self._origin()
        for agent, seen in enumerate(self._agents):
            seen.count()
            state |= {f"{name}_{agent}": getattr(seen, name).copy() for name in FLOOR_ARRAYS}
        return state | {f"allowed_{agent}": allowed.copy() for agent, allowed in self._allowed.items()}

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, NDArray[Any]],
        actions: Sequence[int],
        delta: float,
        *,
        mode: OpponentMode = "monotone_floor",
        env_name: str = "",
    ) -> OpponentModel:
        """The model that `state` describes, exactly, in any mode.

        Raises:
            ConfigError: the state belongs to another env, was learned with another delta, or is none of this kind.
        """
        model = cls(actions, delta, mode=mode, env_name=env_name)
        check_origin(model._origin(), state)
        for agent, seen in enumerate(model._agents):
            for name in FLOOR_ARRAYS:
                setattr(seen, name, np.array(state[f"{name}_{agent}"]))
            if f"allowed_{agent}" in state:
                model._allowed[agent] = np.array(state[f"allowed_{agent}"])
        return model

    def _policy(self, agent: int) -> Floats:
        if agent not in self._policies:
            raise ConfigError(
                f"opponent mode 'oracle' has no policy of agent {agent} in env {self.env_name!r}: call set_policy()."
            )
        return self._policies[agent]

    def _origin(self) -> dict[str, NDArray[Any]]:
        return origin("opponent model", self.env_name, self.actions) | {"delta": np.array(self.delta)}
