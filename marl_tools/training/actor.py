"""How one group's policy acts: its network over lanes, for the rows of all agents and copies at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from marl_tools.core.spaces import AgentGroup
from marl_tools.models.backprop import passes_of
from marl_tools.models.distributions import choice_probabilities
from marl_tools.models.networks import ActorCritic
from marl_tools.training.batches import from_lanes, to_lanes


class LaneActor:
    """What a rollout asks of a policy (`training.contracts.Actor`): a lane shared by all agents, or a lane an agent."""

    def __init__(self, group: AgentGroup, network: ActorCritic, generator: torch.Generator) -> None:
        self.group, self.network, self.generator = group, network, generator
        self.lanes, self.passes = network.lanes, passes_of(network)

    def noise(self, steps: int, envs: int) -> NDArray[np.float32] | None:
        """Chance for `act` over ``steps`` steps, (T, E, A, ...); None where `act` draws for itself."""
        noise = self.passes.noise((steps, envs, len(self.group.agents)), self.generator)
        return None if noise is None else noise.numpy()

    @torch.inference_mode()
    def act(
        self,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None,
        noise: NDArray[np.float32] | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Sampled actions (E, A, ...) and their log-probabilities (E, A)."""
        lanes, agents = self.lanes, len(self.group.agents)
        actions, log_probs = self.passes.act(
            self.passes.prepare(to_lanes(obs, lanes)),
            None if mask is None else to_lanes(mask, lanes),
            None if noise is None else to_lanes(noise, lanes),
            self.generator,
        )
        return from_lanes(actions, agents), from_lanes(log_probs, agents)

    @torch.inference_mode()
    def probabilities(
        self, obs: NDArray[Any], agents: NDArray[np.intp], mask: NDArray[np.bool_] | None
    ) -> NDArray[np.float32]:
        """Probabilities (m, n) of all choices at single observations (m, ...) of the agents with these indices."""
        rows = torch.from_numpy(obs)
        # Every lane sees every row and the agent's own is picked, as in `LaneCritic.values_of`.
        every = self.network.policy(
            rows.expand(self.lanes, *rows.shape), None if mask is None else torch.from_numpy(mask)
        )
        lane = torch.from_numpy(agents) if self.lanes > 1 else 0
        own = every[lane, torch.arange(len(rows))]
        return choice_probabilities(self.network.distribution, own).numpy()
