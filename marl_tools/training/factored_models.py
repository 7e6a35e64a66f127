"""What a team too large to look at as a whole learns: models of each of its factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.transitions import Factor, Factors, Key, TransitionTable, joint_choices, joint_index
from marl_tools.core.types import AgentID
from marl_tools.safety.factor_store import Groups
from marl_tools.training.team_models import Arrays, TeamModels

Support = tuple[Sequence[Key], TransitionTable]


class FactoredModels:
    """A `TeamModels` for each of F factors. An id of a key of the whole stands for the F ids that its factors' keys have.

    Who violates in which factor is worked out from its keys and actions. That it adds up to what the env charges is checked
    at every draw.

    Args:
        factors: the env's declaration.
        agents, actions: the team, and how many actions each has.
        delta: see `TeamModels`; only their guesses are asked for.
        supports: which outcomes are possible in each factor, None where nothing is known.

    Raises:
        ConfigError: a declaration that does not fit the team.
    """

    def __init__(
        self,
        factors: Factors,
        agents: Sequence[AgentID],
        actions: Sequence[int],
        delta: float,
        *,
        env_name: str,
        supports: Sequence[Support | None],
    ) -> None:
        self.factors, self.agents, self.actions, self.env_name = factors, tuple(agents), actions, env_name
        self.groups = _groups(factors, agents, actions, env_name)
        self._sizes = [tuple(actions[agent] for agent in group) for group in self.groups.members]
        self._parts = [
            TeamModels(sizes, delta, mode="worst_case", env_name=f"{env_name}, factor {f}", support=support)
            for f, (sizes, support) in enumerate(zip(self._sizes, supports, strict=True))
        ]
        self._ids: dict[tuple[int, ...], int] = {}
        self._split = np.full((1, len(self._parts)), -1, np.int64)  # the first row is of no key
        self._draws: list[tuple[NDArray[Any], ...]] = []

    @property
    def parts(self) -> list[TeamModels]:
        """The models of each factor, all draws counted.

        Raises:
            ConfigError: the env led to what a factor's declaration excludes.
        """
        if self._draws:
            columns = [np.concatenate(column) for column in zip(*self._draws, strict=True)]
            self._draws.clear()
            self._count(*columns)
        return self._parts

    @property
    def world(self) -> NoReturn:
        raise ConfigError(
            f"{self.env_name} is looked at in factors and has no world model of the whole: a question about all of it "
            "has no answer here; ask the models of its factors"
        )

    opponents = world

    counts_floors = False
    """What an agent does at a factor's key hangs on more than that key: any behaviour of the others is covered."""
    guaranteed = True
    premise = "; the keys are those of the declared factors, each Markov under the actions of its own agents"

    @property
    def num_keys(self) -> int:
        """How many keys the factors have, all together."""
        return sum(part.num_keys for part in self._parts)

    @property
    def num_rows(self) -> int:
        """How many rows the factors have, all together."""
        return sum(part.num_rows for part in self.parts)

    def find_keys(self, keys: Sequence[Key]) -> NDArray[np.int32]:
        """`key_ids` for a frozen shield: no factor learns of a new key, and has none (-1) there."""
        return self.key_ids(keys, create=False)

    def draws(
        self, agent: int, key_ids: NDArray[np.integer], choices: NDArray[np.integer]
    ) -> NDArray[np.int64]:
        """Draws so far (N,) of joint choices (N, A) in the agent's least known factor."""
        groups, ids = self.groups.members, self.split(key_ids).T
        counts = [
            part.draws(0, keys, choices[:, list(group)])
            for part, group, keys in zip(self.parts, groups, ids, strict=True)
            if agent in group
        ]
        return np.min(counts, axis=0)

    def key_ids(self, keys: Sequence[Key], *, create: bool = True) -> NDArray[np.int32]:
        """Ids (N,) of keys; see `TeamModels.key_ids` and `find_keys`."""
        columns = []
        for part, factor in zip(self._parts, self.factors.parts, strict=True):
            projected = [factor.project(key) for key in keys]
            columns.append(part.key_ids(projected) if create else part.find_keys(projected))
        found = np.stack(columns, 1)
        ids = np.array([self._ids.setdefault(tuple(one), len(self._ids)) for one in found.tolist()], np.int32)
        self._number(found, ids)
        return ids

    def split(self, key_ids: NDArray[np.integer]) -> NDArray[np.int64]:
        """Ids (N, F) of the factors' keys."""
        return self._split[np.asarray(key_ids, np.intp) + 1]

    def add_draws(
        self,
        key_ids: NDArray[np.integer],
        choices: NDArray[np.integer],
        next_key_ids: NDArray[np.integer],
        violated: NDArray[np.bool_],
        ended: NDArray[np.bool_],
    ) -> None:
        """Take in N draws; see `TeamModels.add_draws`."""
        self._draws.append((key_ids, choices, next_key_ids, violated, ended))

    def add_proposals(
        self, key_ids: NDArray[np.integer], active: NDArray[np.bool_], proposed: NDArray[np.integer]
    ) -> None:
        """Take in what the agents that act (N, A) proposed at keys (N,)."""
        for part, group, ids in zip(self._parts, self.groups.members, self.split(key_ids).T, strict=True):
            columns = list(group)
            known = active[:, columns] & (ids >= 0)[:, None]
            part.add_proposals(ids, known, proposed[:, columns])

    def violations(
        self,
        factor: int,
        key_ids: NDArray[np.integer],
        choices: NDArray[np.integer],
        next_keys: Sequence[Key],
        next_key_ids: NDArray[np.integer],
    ) -> NDArray[np.bool_]:
        """Which of a factor's group (N, G) violate in it, from ids (N,) of its own keys and choices (N, G).

        ``next_keys`` are what the next ids count in.
        """
        sizes, declared = self._sizes[factor], self.factors.parts[factor]
        keys = self._parts[factor].world.keys
        steps = np.column_stack([key_ids, joint_index(sizes, choices), next_key_ids])
        kinds, kind = np.unique(steps, axis=0, return_inverse=True)
        flags = [
            declared.violated(keys[key], tuple(joint_choices(sizes, joint).tolist()), next_keys[after])
            for key, joint, after in kinds
        ]
        return np.array(flags, bool).reshape(-1, len(sizes))[kind.ravel()]

    def state(self) -> dict[str, Arrays]:
        """All models' states, by name and factor."""
        states = [part.state() for part in self.parts]
        named = {f"{name}_{f}": arrays for f, state in enumerate(states) for name, arrays in state.items()}
        return named | {"factors": {"split": self._split[: len(self._ids) + 1].copy()}}

    def load(self, state: Mapping[str, Arrays]) -> None:
        """Go on from `state`; see `TeamModels.load`.

        Raises:
            ConfigError: it is the state of another env, of one with other factors, or of a team without factors.
        """
        names = {f"{name}_{f}" for f in range(len(self._parts)) for name in ("world", "opponents")}
        if {name for name in state if name.startswith(("world", "opponents"))} != names:
            raise ConfigError(
                f"the saved models are not those of the {len(self._parts)} factors of {self.env_name}: use the settings "
                "that they were saved with (env, env_kwargs), or start new ones"
            )
        parts = [copy(part) for part in self._parts]
        for f, part in enumerate(parts):
            part.load({name: state[f"{name}_{f}"] for name in ("world", "opponents")})
        # As in `TeamModels.load`: nothing is changed that a copy made before may hold.
        self._parts, self._draws = parts, []
        self._split = state["factors"]["split"].copy()
        self._ids = {tuple(row): i for i, row in enumerate(self._split[1:].tolist())}

    def _number(self, found: NDArray[np.int32], ids: NDArray[np.int32]) -> None:
        """Keep what the ids stand for."""
        missing = len(self._ids) + 1 - len(self._split)
        if missing > 0:
            room = np.full((max(missing, len(self._split)), len(self._parts)), -1, np.int64)
            self._split = np.concatenate([self._split, room])
        self._split[ids + 1] = found

    def _count(
        self,
        key_ids: NDArray[np.integer],
        choices: NDArray[np.integer],
        next_key_ids: NDArray[np.integer],
        violated: NDArray[np.bool_],
        ended: NDArray[np.bool_],
    ) -> None:
        charged = np.zeros_like(violated)
        here, there = self.split(key_ids), self.split(next_key_ids)
        draws = []
        for f, group in enumerate(self.groups.members):
            columns = list(group)
            # Where all of a group have ended, its factor is over.
            at = np.flatnonzero((choices[:, columns] < self._sizes[f]).any(1))
            key, chosen, after = here[at, f], choices[at][:, columns], there[at, f]
            harmed = self.violations(f, key, chosen, self._parts[f].world.keys, after)
            charged[at[:, None], columns] |= harmed
            draws.append((key, chosen, after, harmed, ended[at][:, columns]))
        wrong = np.argwhere(charged != violated)
        if len(wrong):
            draw, agent = wrong[0]
            said, was = ("a violation", "none") if charged[draw, agent] else ("no violation", "one")
            raise ConfigError(
                f"the factors of {self.env_name} declare {said} of agent {self.agents[agent]!r} where its cost says "
                f"{was}, after the choices {choices[draw].tolist()}: mend the violated functions of its factors"
            )
        for part, draw in zip(self._parts, draws, strict=True):
            part.add_draws(*draw)


def _groups(factors: Factors, agents: Sequence[AgentID], actions: Sequence[int], env_name: str) -> Groups:
    """The declaration in numbers, checked."""
    places = {agent: place for place, agent in enumerate(agents)}
    for factor in factors.parts:
        _check_group(factor, places, env_name)
    wrong = [a for a, size in zip(agents, actions, strict=True) if not 0 <= factors.backup.get(a, -1) < size]
    if wrong:
        raise ConfigError(
            f"the factors of {env_name} name {factors.backup.get(wrong[0])!r} as the backup action of {wrong[0]!r}: give "
            "one of its actions"
        )
    if not factors.parts:
        raise ConfigError(f"{env_name} declares no factor at all: return None from factors(), or name some")
    return Groups(
        tuple(tuple(places[agent] for agent in factor.agents) for factor in factors.parts),
        tuple(factors.backup[agent] for agent in agents),
    )


def _check_group(factor: Factor, places: Mapping[AgentID, int], env_name: str) -> None:
    known = [agent for agent in factor.agents if agent in places]
    if not known or len(set(known)) != len(factor.agents):
        raise ConfigError(
            f"a factor of {env_name} has the agents {list(factor.agents)}: name agents of {list(places)}, each once"
        )
