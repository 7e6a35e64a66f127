"""A trained team as a plain function from observations to actions, in anyone's code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import MultiDiscrete
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError, CorruptFileError
from marl_tools.core.io import PathLike
from marl_tools.core.space_json import space_from_json, space_to_json
from marl_tools.core.spaces import AgentGroup, AgentSpaces
from marl_tools.core.transitions import KeyedView
from marl_tools.core.types import AgentID
from marl_tools.models.distributions import choice_probabilities
from marl_tools.models.networks import ActorCritic, NetworkConfig
from marl_tools.training.batches import from_lanes, to_lanes
from marl_tools.training.checkpoint import load_checkpoint
from marl_tools.training.checkpoint_folder import CheckpointFolder


class TeamPolicy:
    """Frozen policies of all groups. Call it with the observations of the live agents.

    >>> policy = load_policy("runs/demo")                          # doctest: +SKIP
    >>> observations, infos = env.reset(seed=0)                    # doctest: +SKIP
    >>> env.step(policy(observations, infos))                      # doctest: +SKIP

    Args:
        groups: who plays with which spaces.
        networks: one per group name.
        deterministic: play the most likely action in place of a sampled one.
        seed: of the sampling.
    """

    def __init__(
        self,
        groups: tuple[AgentGroup, ...],
        networks: Mapping[str, ActorCritic],
        *,
        deterministic: bool = False,
        seed: int = 0,
    ) -> None:
        self.groups, self.networks, self.deterministic = groups, networks, deterministic
        self._generator = torch.Generator().manual_seed(seed)
        self._row = {agent: (group, row) for group in groups for row, agent in enumerate(group.agents)}

    def seed(self, seed: int) -> None:
        """Start the sampling afresh, so that an episode can be replayed."""
        self._generator.manual_seed(seed)

    @torch.inference_mode()
    def __call__(
        self, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, Mapping[str, Any]] | None = None
    ) -> dict[AgentID, Any]:
        """An action, as the env takes it, for each agent that has an observation.

        ``infos`` is needed only where action masks come in them.

        Raises:
            ConfigError: an agent that this team was not trained for.
        """
        if unknown := observations.keys() - self._row.keys():
            raise ConfigError(
                f"no policy for agent {sorted(unknown)[0]!r}: this team was trained as {', '.join(self._row)}"
            )
        actions: dict[AgentID, Any] = {}
        for group in self.groups:
            agents = [agent for agent in group.agents if agent in observations]
            if agents:
                actions.update(self._act(group, agents, observations, infos or {}))
        return {agent: actions[agent] for agent in observations}

    @torch.inference_mode()
    def probabilities(
        self, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, Mapping[str, Any]] | None = None
    ) -> dict[AgentID, NDArray[np.float32]]:
        """Probabilities (n,) of all actions of each agent that has an observation, for Discrete ones; draws nothing.

        They are the policy's own, also where ``deterministic`` play takes the likeliest.
        """
        found: dict[AgentID, NDArray[np.float32]] = {}
        for group in self.groups:
            agents = [agent for agent in group.agents if agent in observations]
            if agents:
                params = self._params(group, agents, observations, infos or {}).flatten(0, 1)
                law = choice_probabilities(self.networks[group.name].distribution, params).numpy()
                found.update({agent: law[self._row[agent][1]] for agent in agents})
        return found

    @torch.inference_mode()
    def laws(self, view: KeyedView) -> dict[AgentID, NDArray[np.float64]]:
        """Probabilities (K, n) with which each agent plays its actions at K keys; 0 and 1 where play is ``deterministic``."""
        found: dict[AgentID, NDArray[np.float64]] = {}
        for group in self.groups:
            network = self.networks[group.name]
            seen = np.stack([view.observations[agent] for agent in group.agents], 1)
            masks = [view.masks[agent] for agent in group.agents if agent in view.masks]
            mask = to_lanes(np.stack(masks, 1), network.lanes) if masks else None
            params = network.policy(to_lanes(seen, network.lanes), mask)
            law = from_lanes(choice_probabilities(network.distribution, params), len(group.agents))
            for place, agent in enumerate(group.agents):
                own = law[:, place].astype(np.float64)
                own = np.eye(own.shape[1])[own.argmax(1)] if self.deterministic else own
                found[agent] = own / own.sum(1, keepdims=True)
        return found

    def _act(
        self,
        group: AgentGroup,
        agents: list[AgentID],
        observations: Mapping[AgentID, Any],
        infos: Mapping[AgentID, Mapping[str, Any]],
    ) -> dict[AgentID, Any]:
        params = self._params(group, agents, observations, infos)
        distribution = self.networks[group.name].distribution
        played = (
            distribution.mode(params) if self.deterministic else distribution.sample(params, self._generator)
        )
        flat = played.reshape(len(group.agents), *group.spaces.action_shape).numpy()
        rows = [self._row[agent][1] for agent in agents]
        return dict(zip(agents, group.spaces.to_env(flat[rows]), strict=True))

    def _params(
        self,
        group: AgentGroup,
        agents: list[AgentID],
        observations: Mapping[AgentID, Any],
        infos: Mapping[AgentID, Mapping[str, Any]],
    ) -> torch.Tensor:
        """Parameters of the group's action distributions, (1, A, params) or (A, 1, params)."""
        spaces, network = group.spaces, self.networks[group.name]
        rows = [self._row[agent][1] for agent in agents]
        obs = np.zeros((len(group.agents), *spaces.obs_shape), spaces.obs_dtype)
        mask = None
        for agent, row in zip(agents, rows, strict=True):
            obs[row] = spaces.encode(observations[agent])
            allowed = (
                observations[agent]["action_mask"]
                if spaces.masked
                else infos.get(agent, {}).get("action_mask")
            )
            if allowed is not None:
                mask = np.ones((len(group.agents), spaces.action_dim), bool) if mask is None else mask
                mask[row] = allowed
        columns = (1, -1) if network.lanes == 1 else (-1, 1)
        tensor = torch.from_numpy(obs).reshape(*columns, *spaces.obs_shape)
        return network.policy(
            tensor, None if mask is None else torch.from_numpy(mask).reshape(*columns, mask.shape[1])
        )


class RandomPolicy:
    """Uniform actions from each agent's action space, masks respected: the baseline of every table."""

    def __init__(self, groups: tuple[AgentGroup, ...], *, seed: int = 0) -> None:
        self._spaces = {agent: group.spaces for group in groups for agent in group.agents}
        self._rng = np.random.default_rng(seed)

    def seed(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(
        self, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, Mapping[str, Any]] | None = None
    ) -> dict[AgentID, Any]:
        return {
            agent: self._sample(agent, obs, (infos or {}).get(agent, {}))
            for agent, obs in observations.items()
        }

    def probabilities(
        self, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, Mapping[str, Any]] | None = None
    ) -> dict[AgentID, NDArray[np.float64]]:
        """Equal probabilities (n,) of what each agent's mask allows, for Discrete actions."""
        laws: dict[AgentID, NDArray[np.float64]] = {}
        for agent, obs in observations.items():
            spaces = self._spaces[agent]
            mask = obs["action_mask"] if spaces.masked else (infos or {}).get(agent, {}).get("action_mask")
            allowed = np.ones(spaces.action_dim) if mask is None else np.asarray(mask, np.float64)
            laws[agent] = allowed / allowed.sum()
        return laws

    def _sample(self, agent: AgentID, observation: Any, info: Mapping[str, Any]) -> Any:
        spaces = self._spaces[agent]
        mask = observation["action_mask"] if spaces.masked else info.get("action_mask")
        space = spaces.action_space
        if mask is not None:
            sizes = space.nvec.reshape(-1) if isinstance(space, MultiDiscrete) else [spaces.action_dim]
            parts = np.split(np.asarray(mask), np.cumsum(sizes)[:-1])
            chosen = np.array([self._rng.choice(np.flatnonzero(part)) for part in parts])
            return spaces.to_env(chosen.reshape(1, *spaces.action_shape))[0]
        space.seed(int(self._rng.integers(2**31)))
        return space.sample()


def load_policy(
    run: PathLike, *, checkpoint: str = "latest", deterministic: bool = False, seed: int = 0
) -> TeamPolicy:
    """The trained team of a run folder, or of a checkpoint file. Neither the env nor any code in the run is loaded.

    Raises:
        FileNotFoundError: the run has no such checkpoint.
        CorruptFileError: the checkpoint is damaged.
    """
    path = Path(run)
    loaded = (
        load_checkpoint(path) if path.suffix == ".safetensors" else CheckpointFolder(path).load(checkpoint)
    )
    return team_policy(*loaded, where=path, deterministic=deterministic, seed=seed)


def team_policy(
    tensors: Mapping[str, torch.Tensor],
    state: Mapping[str, Any],
    *,
    where: Path,
    deterministic: bool = False,
    seed: int = 0,
) -> TeamPolicy:
    """The team in a loaded checkpoint; ``where`` it came from is for the error.

    Raises:
        CorruptFileError: it does not hold a team.
    """
    try:
        network_config = NetworkConfig(**{**state["network"], "hidden": tuple(state["network"]["hidden"])})
        groups = tuple(group_from_json(row) for row in state["groups"])
        if not groups:
            raise ValueError("field 'groups' names no agents")
        networks = {}
        for group in groups:
            network = ActorCritic(
                group.spaces,
                state["lanes"][group.name],
                network_config,
                critics=state["critics"],
                normalise_observations=state["normalise_observations"],
                # Checkpoints from before there was a choice name none.
                action_pdtype=state.get("distributions", {}).get(group.name),
                generator=torch.Generator(),
            )
            network.load_state_dict(strip_prefix(tensors, f"{group.name}/network/"))
            networks[group.name] = network.eval()
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise CorruptFileError(f"the checkpoint at {where} does not hold a team: {error!r}") from error
    return TeamPolicy(groups, networks, deterministic=deterministic, seed=seed)


def describe_team(
    groups: tuple[AgentGroup, ...], networks: Mapping[str, ActorCritic], config: NetworkConfig
) -> dict[str, Any]:
    """What `load_policy` needs beside the weights, as plain values."""
    return {
        "groups": [group_to_json(group) for group in groups],
        "lanes": {name: network.lanes for name, network in networks.items()},
        "network": {**asdict(config), "hidden": list(config.hidden)},
        "distributions": {name: type(network.distribution).__name__ for name, network in networks.items()},
        "critics": list(next(iter(networks.values())).value_heads),
        "normalise_observations": any(network.obs_norm is not None for network in networks.values()),
    }


def group_to_json(group: AgentGroup) -> dict[str, Any]:
    return {
        "name": group.name,
        "agents": list(group.agents),
        "observation_space": space_to_json(group.spaces.observation_space),
        "action_space": space_to_json(group.spaces.action_space),
    }


def group_from_json(row: Mapping[str, Any]) -> AgentGroup:
    spaces = AgentSpaces(space_from_json(row["observation_space"]), space_from_json(row["action_space"]))
    return AgentGroup(row["name"], tuple(row["agents"]), spaces)


def strip_prefix(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The entries whose name starts with ``prefix``, without it."""
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
