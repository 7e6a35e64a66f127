"""A shielded team: world model, opponent model and shield joined to the rollout and to frozen play.

During training it decides, counts what happened, and keeps the shield's tables up to date; frozen, it is part of a policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.spaces import AgentGroup
from marl_tools.core.transitions import Key, TransitionTable
from marl_tools.core.types import AgentID, VectorStep
from marl_tools.models.opponent import OpponentModel
from marl_tools.models.world import WorldModel
from marl_tools.safety.config import ShieldConfig
from marl_tools.safety.decision import Decision
from marl_tools.safety.notes import Note
from marl_tools.safety.shield import TeamShield
from marl_tools.safety.store import by_cell
from marl_tools.training.contracts import Probabilities
from marl_tools.training.factored_models import FactoredModels
from marl_tools.training.layout import TeamLayout
from marl_tools.training.team_models import Arrays, TeamModels, require_costs, require_keys, team_actions


class ShieldedTeam:
    """What stands between the policies' proposals and the envs.

    Args:
        groups: the agents as the vector env groups them; all actions must be Discrete.
        agents: their order in keys and joint actions, that of ``possible_agents``.
        config: the shield's settings.
        num_envs: copies of the env.
        env_name: kept with the models, so that those of another env are refused.
        support: which outcomes are possible, ``(keys, table)`` of all rows, where the env declares it; see `WorldModel`.
        law: the true law over the same keys, for an oracle that learns no world model.
        gamma: discount of the trainer, for potential-based shaping.

    Raises:
        ConfigError: an agent whose actions are not Discrete.
    """

    def __init__(
        self,
        groups: Sequence[AgentGroup],
        agents: Sequence[AgentID],
        config: ShieldConfig,
        *,
        num_envs: int,
        env_name: str,
        support: tuple[Sequence[Key], TransitionTable] | None = None,
        law: TransitionTable | None = None,
        gamma: float = 0.99,
    ) -> None:
        self.groups, self.agents, self.config = tuple(groups), tuple(agents), config
        self.env_name, self.gamma = env_name, gamma
        self.actions = team_actions(groups, agents)
        # Half of delta for each model; where the others' floors rest on nothing learned, all is the world's. It is not
        # split over agents: one table of credible sets serves them all, and it is right for all of them at once.
        half = config.credible_delta / 2
        self._world_delta = half if config.opponent_mode == "monotone_floor" else config.credible_delta
        self._law, self._support = law, support
        self.floors: list[NDArray[np.float64]] | None
        if config.opponent_mode == "oracle":
            raise ConfigError(
                f"opponent_mode='oracle' for {env_name}: policies that play here change, and are not known at every key; "
                "use 'monotone_floor', or OpponentModel.set_policy in code of your own"
            )
        if law is not None and support is None:
            raise ConfigError("a known law comes with its keys: pass support=(keys, table) as well")
        self.models = self._make_models(half)
        self.shield = self._make_shield(num_envs)
        self._layout = TeamLayout(groups, agents)
        self._ended = np.zeros((num_envs, len(self.agents)), bool)
        self._decision: Decision | None = None
        # With the keys that each step led to and who terminated: shaping costs less for a whole rollout at once.
        self._played: list[tuple[Decision, NDArray[np.int32], NDArray[np.bool_]]] = []
        self.false_blocks = self.blocks = 0
        self.refresh()

    def _make_models(self, delta: float) -> TeamModels | FactoredModels:
        mode = self.config.opponent_mode
        return TeamModels(self.actions, delta, mode=mode, env_name=self.env_name, support=self._support)

    def _make_shield(self, num_envs: int) -> TeamShield:
        return TeamShield(self.agents, self.actions, self.config, num_envs=num_envs)

    @property
    def world(self) -> WorldModel:
        """The world model, with all that was seen so far."""
        return self.models.world

    @property
    def opponents(self) -> OpponentModel:
        """The opponent model, with all that was proposed so far."""
        return self.models.opponents

    @property
    def masks_actions(self) -> bool:
        """Whether policies sample from what the shield admits, in place of being overridden."""
        return self.config.action == "mask"

    def begin(self, step: VectorStep, copies: NDArray[np.bool_] | None = None) -> None:
        """Take in the first step of a vector env, or of those of its ``copies`` (E,) that start afresh.

        Raises:
            ConfigError: the env has no ``state_key()``.
        """
        fresh = np.ones(len(self._ended), bool) if copies is None else copies
        self._ended[fresh] = False
        self.shield.begin(fresh, self.models.key_ids(require_keys(self.env_name, step.keys)))

    def masks(self, step: VectorStep, probabilities: Probabilities) -> dict[str, NDArray[np.bool_]]:
        """What each group may sample from, (E, A, n), within what the env itself allows."""
        layout = self._layout
        admitted = self.shield.masks(layout.legal(step), partial(layout.likely, probabilities))
        of = dict(zip(self.agents, admitted, strict=True))
        return {group.name: np.stack([of[agent] for agent in group.agents], 1) for group in self.groups}

    def execute(
        self, step: VectorStep, proposals: Mapping[str, NDArray[Any]], probabilities: Probabilities
    ) -> tuple[dict[str, NDArray[np.int64]], list[Note]]:
        """Decide on the proposals (E, A) of each group: what is played, and notes for the episode logs."""
        layout = self._layout
        proposed = layout.team(proposals, np.int64)
        active = layout.team({name: group.active for name, group in step.groups.items()}, bool)
        if self.masks_actions:
            decision = self.shield.play(proposed, active)
        else:
            likely = partial(layout.likely, probabilities)
            decision = self.shield.decide(proposed, active, likely, layout.legal(step))
        self._decision = decision
        self.count_proposals(decision)
        return layout.groups(decision.executed), self.shield.notes(decision)

    def count_proposals(self, decision: Decision) -> None:
        """Count what each policy proposed at keys that the world model knows.

        What is sampled under the shield's mask is not what the policy would have proposed: there nothing is counted.
        """
        if not self.masks_actions:
            known = decision.active & (decision.key_ids >= 0)[:, None]
            self.models.add_proposals(decision.key_ids, known, decision.proposed)

    def forget_floors(self) -> None:
        """Count proposals afresh; the tables keep the floors that they have until the next `refresh`."""
        for agent in range(len(self.agents)):
            self.opponents.new_stream(agent)

    def count_draws(
        self,
        decision: Decision,
        next_key_ids: NDArray[np.integer],
        violated: NDArray[np.bool_],
        ended: NDArray[np.bool_],
    ) -> None:
        """Count what the actions of a decision led to: keys (E,) and flags (E, A), ``ended`` now or before."""
        choices = np.where(decision.active, decision.executed, self.actions)
        self.models.add_draws(decision.key_ids, choices, next_key_ids, violated, ended)

    def violations(self, costs: NDArray[np.float64], active: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of the agents (E, A) that acted violate at these costs; see `require_costs`."""
        require_costs(self.env_name, self.agents, costs, active)
        return active & (costs > 0)

    def observe(self, step: VectorStep) -> None:
        """Count the draws of a step.

        Raises:
            ConfigError: the env gave an agent no cost.
        """
        decision = self._decision
        assert decision is not None, "execute() comes before observe()"
        keys = require_keys(self.env_name, step.keys)
        final = step.final_keys or [None] * len(keys)
        over = {env: key for env, key in enumerate(final) if key is not None}
        done = np.zeros(len(keys), bool)
        done[list(over)] = True
        after = now = self.models.key_ids([over.get(env, key) for env, key in enumerate(keys)])
        if over:
            now = after.copy()
            now[done] = self.models.key_ids([keys[env] for env in over])
        costs = self._layout.team({name: group.costs for name, group in step.groups.items()}, np.float64)
        terminated = self._layout.team({name: group.terminated for name, group in step.groups.items()}, bool)
        ended = self._ended | terminated
        self.count_draws(decision, after, self.violations(costs, decision.active), ended)
        self._played.append((decision, after, terminated))
        self._ended = np.where(done[:, None], False, ended)
        self.shield.observe(now, done)

    def shaping(self, steps: int) -> dict[str, NDArray[np.float64]]:
        """What the reward mode adds to the rewards of the last ``steps`` steps, (T, E, A) per group.

        Call it before `policies_changed`: it reads the tables with which these steps were decided.
        """
        decisions, after, terminated = zip(*self._played[-steps:], strict=True)
        self._played.clear()
        decision = Decision.join(decisions)
        self._count_blocks(decision)
        added = self.shield.shaping(
            decision, np.concatenate(after), np.concatenate(terminated), gamma=self.gamma
        )
        return self._layout.groups(added.reshape(steps, -1, len(self.agents)))

    def policies_changed(self) -> None:
        """After an update of the policies: floors start afresh, and tables and potential take in what was counted.

        The potential thus holds still within an update, where it changes no preference between policies.
        """
        self.forget_floors()
        self.refresh()
        if self.config.reward_mode == "bayesian_potential":
            self.shield.freeze_potential()

    def refresh(self) -> None:
        """Bring the tables up to date with both models; ``table`` and ``floors`` are what they rest on then."""
        table, opponents = self._law, self.opponents
        if table is None:
            table = self.world.table(self._world_delta, schedule=self.config.credible_schedule)
        # Keys that were met since the table was made are not in it yet: to the shield they are unknown.
        size, count = table.num_keys, range(len(self.agents))
        floors = None
        if self.config.opponent_mode != "worst_case":
            floors = [opponents.floors(agent, size) for agent in count]
        self.shield.refresh(table, floors, [opponents.guess(agent, size) for agent in count])
        self.table, self.floors = table, floors

    def settle_floors(self) -> None:
        """Take in floors that were counted while all policies held still, and make them hold for the tables they lead to.

        A floor under an agent's action is worth something only if its own shield always lets that action pass. New
        tables may change which those are, so the set is shrunk until the tables made with it admit all of it.
        """
        allowed = self.shield.always_admitted()
        while True:
            for agent, mask in enumerate(allowed):
                self.opponents.restrict(agent, mask)
            self.refresh()
            now = self.shield.always_admitted()
            kept = [mask & admitted[: len(mask)] for mask, admitted in zip(allowed, now, strict=True)]
            if all(np.array_equal(a, b) for a, b in zip(allowed, kept, strict=True)):
                return
            allowed = kept

    def least_risk(self) -> NDArray[np.float64]:
        """(A, K) V over the whole horizon at the K keys at which somebody acts; 1 for one key if none is known yet."""
        live, store = np.unique(self.table.row_key), self.shield.rule.store
        return store.value[:, -1, store.rows(live if len(live) else np.array([-1]))]

    def figures(self) -> dict[str, Any]:
        """How many keys and rows are known, and ``false_block_rate`` of the steps since the last call.

        That is the share of overrides that were needless by the best guess: those whose proposal has, by the posterior
        mean, at most ``max_risk`` of a violation in the rest of the horizon. None without overrides, hence under a mask.
        """
        rate = self.false_blocks / self.blocks if self.blocks else None
        self.blocks = self.false_blocks = 0
        return {"keys": self.models.num_keys, "rows": self.models.num_rows, "false_block_rate": rate}

    def state(self) -> dict[str, Arrays]:
        """Models and shield, exactly, as named arrays."""
        own = {"ended": self._ended.copy()}
        return {**self.models.state(), "shield": self.shield.state(), "team": own}

    def load(self, state: Mapping[str, Arrays]) -> None:
        """Go on from `state`.

        Raises:
            ConfigError: it is the state of another env, of the same one with other settings, or of other agents.
        """
        self.models.load(state)
        self.shield = self._make_shield(len(state["shield"]["key_ids"]))
        self.shield.load(state["shield"])
        self._ended = state["team"]["ended"].copy()
        self.refresh()

    def restored(self, state: Mapping[str, Arrays]) -> Self:
        """Another team of the same env, at a `state` as in `load`; this one stays, and what was enumerated for it is shared."""
        team = copy(self)
        team.models, team._decision, team._played = copy(self.models), None, []
        team.false_blocks = team.blocks = 0
        team.load(state)
        return team

    def _count_blocks(self, decision: Decision) -> None:
        """See `figures`."""
        env, agent = np.nonzero(decision.overridden)
        if len(env):
            rule, k_left = self.shield.rule, decision.k_left[env]
            store, cells = rule.store.read(agent, rule.steps_ahead(k_left), decision.key_ids[env])
            mean = by_cell(store.mean)[cells, decision.proposed[env, agent]]
            self.blocks += len(env)
            self.false_blocks += int(np.count_nonzero(mean <= self.config.max_risk))
