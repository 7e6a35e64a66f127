"""The audit of a team that is looked at in factors: one of each factor, and of what they say together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.transitions import Key, TransitionTable
from marl_tools.models.world import WorldModel
from marl_tools.safety.decision import Decision
from marl_tools.training.audit import LEVEL, Audit
from marl_tools.training.factored import FactoredTeam
from marl_tools.training.shielding import ShieldedTeam


class _Part:
    """A factor of a team, as its audit sees it."""

    floors = None

    def __init__(self, team: FactoredTeam, factor: int) -> None:
        self._team, self._factor = team, factor
        self.columns = list(team.models.groups.members[factor])
        self.agents = tuple(team.agents[agent] for agent in self.columns)
        self.actions = tuple(team.actions[agent] for agent in self.columns)

    @property
    def world(self) -> WorldModel:
        return self._team.models.parts[self._factor].world

    @property
    def table(self) -> TransitionTable:
        return self._team.tables[self._factor]


class FactoredAudit:
    """An `Audit` of each factor, whose key must be Markov by itself; and costs must be what the factors say."""

    def __init__(self, team: FactoredTeam) -> None:
        self.team = team
        self.start_bounds: list[NDArray[np.float64]] = []
        """(A,) bound of each episode as it started."""
        self._parts = [_Part(team, factor) for factor in range(len(team.models.parts))]
        self._audits = [Audit(part) for part in self._parts]
        self._surprises = 0

    def start(self, bounds: NDArray[np.float64]) -> None:
        """See `Audit.start`."""
        self.start_bounds.append(bounds.copy())
        for part, audit in zip(self._parts, self._audits, strict=True):
            audit.start(bounds[part.columns])

    def add(
        self,
        decision: Decision,
        next_key: Key,
        violated: NDArray[np.bool_],
        terminated: NDArray[np.bool_],
    ) -> None:
        """See `Audit.add`."""
        models = self.team.models
        charged = np.zeros_like(violated)
        ids = models.split(decision.key_ids)
        for factor, (part, audit) in enumerate(zip(self._parts, self._audits, strict=True)):
            own = _columns(decision, ids[:, factor], part.columns)
            if not own.active.any() or own.key_ids[0] < 0:
                continue
            declared = models.factors.parts[factor]
            after, before = declared.project(next_key), part.world.keys[own.key_ids[0]]
            choices = np.where(own.active, own.executed, part.actions)[0]
            harmed = np.array(declared.violated(before, tuple(choices.tolist()), after), bool)
            charged[part.columns] |= harmed
            audit.add(own, after, harmed, terminated[part.columns])
        self._surprises += int((ids >= 0).all() and not np.array_equal(charged, violated))

    def contradictions(self, level: float = LEVEL) -> list[str]:
        """See `Audit.contradictions`."""
        found = []
        if self._surprises:
            found.append(
                f"the costs contradict the factors in {self._surprises} steps: who violates is not what their violated "
                "functions say"
            )
        for part, audit in zip(self._parts, self._audits, strict=True):
            of = f"in the factor of {', '.join(part.agents)} "
            found += [of + one for one in audit.contradictions(level / len(self._parts))]
        return found


def audit_of(team: ShieldedTeam) -> Audit | FactoredAudit:
    """An audit of a frozen team."""
    return FactoredAudit(team) if isinstance(team, FactoredTeam) else Audit(team)


def _columns(decision: Decision, key_ids: NDArray[np.int64], columns: list[int]) -> Decision:
    """What was decided for some agents, at keys of their factor."""
    names = ("active", "proposed", "executed", "overridden", "fallback", "unverified")
    return replace(decision, key_ids=key_ids, **{name: getattr(decision, name)[:, columns] for name in names})
