"""The costs of third-party environments: 1.0 in a step in which an agent does what it must not, else 0.0.

Each is a `CostFunction` of `marl_tools.core.wrappers.cost.AddCost` and names every agent of the step. They read the hidden
state, not the observations, so that preprocessing and optional observations change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import hypot, sqrt

import numpy as np

from marl_tools.core.types import AgentID
from marl_tools.core.wrappers.cost import StepResult

Costs = dict[AgentID, float]

SPREAD_GAP = 0.30
"""simple_spread: agents whose centres are nearer than this touch."""
CATCH_GAP, PREDATOR_GAP = 0.125, 0.15
"""simple_tag: distances at which a predator touches a prey, and another predator."""
ARENA = 1.0
"""simple_tag: prey stays within this absolute value of both coordinates."""
DRONE_GAP = 0.1
"""CrazyRL: nearer than this, drones have crashed into each other, the target or the ground."""


def spread(step: StepResult) -> Costs:
    """mpe2's simple_spread: another agent is nearer than `SPREAD_GAP`."""
    costs = dict.fromkeys(step.terminations, 0.0)
    agents = step.env.unwrapped.world.agents
    places = [(agent.name, *agent.state.p_pos.tolist()) for agent in agents]
    for (one, x, y), (other, other_x, other_y) in combinations(places, 2):
        dx, dy = other_x - x, other_y - y
        if sqrt(dx * dx + dy * dy) < SPREAD_GAP:
            costs[one] = costs[other] = 1.0
    return costs


def tag(step: StepResult) -> Costs:
    """mpe2's simple_tag: a prey is caught or outside the `ARENA`; a predator touches another predator."""
    costs = dict.fromkeys(step.terminations, 0.0)
    agents = step.env.unwrapped.world.agents
    places = [(agent.name, agent.adversary, *agent.state.p_pos.tolist()) for agent in agents]
    for name, predator, x, y in places:
        if not predator and (abs(x) > ARENA or abs(y) > ARENA):
            costs[name] = 1.0
    for (one, hunts, x, y), (other, other_hunts, other_x, other_y) in combinations(places, 2):
        if not (hunts or other_hunts):
            continue
        dx, dy = other_x - x, other_y - y
        gap = sqrt(dx * dx + dy * dy)
        if hunts and other_hunts:
            if gap < PREDATOR_GAP:
                costs[one] = costs[other] = 1.0
        elif gap < CATCH_GAP:
            costs[other if hunts else one] = 1.0
    return costs


def zombies(step: StepResult) -> Costs:
    """PettingZoo's knights_archers_zombies: the agent dies in this step."""
    players = step.env.unwrapped.agent_map
    return {agent: float(not players[agent].is_alive) for agent in step.terminations}


def multiwalker(step: StepResult) -> Costs:
    """PettingZoo's multiwalker: the walker falls; every walker when the package does."""
    raw = step.env.unwrapped
    fallen, package_fell = raw.env.fallen_walkers, raw.env.game_over
    return {
        agent: float(package_fell or fallen[raw.agent_name_mapping[agent]]) for agent in step.terminations
    }


def surround(step: StepResult) -> Costs:
    """MOMAland's CrazyRL surround: another drone, the target or the ground is nearer than `DRONE_GAP`."""
    raw = step.env.unwrapped
    costs = {}
    for agent in step.terminations:
        place = raw.agent_location[agent]
        others = [where for name, where in raw.agent_location.items() if name != agent]
        gaps = np.linalg.norm(np.array([raw.target_location, *others]) - place, axis=1)
        costs[agent] = float(place[2] < DRONE_GAP or gaps.min() < DRONE_GAP)
    return costs


def adversarial_pursuit(step: StepResult) -> Costs:
    """MAgent2's adversarial_pursuit: a prey is tagged, which is all that its reward can be negative for."""
    return {agent: float(agent.startswith("prey") and step.rewards[agent] < 0) for agent in step.terminations}


@dataclass(frozen=True)
class SpeedLimit:
    """MaMuJoCo: the body, hence every agent, moves faster than ``limit`` (units of length a second).

    What counts is the speed in the plane, without ``sideways`` along the x axis alone. Limits and rule are those of
    Safety-Gymnasium's multi-agent velocity tasks (Ji et al., NeurIPS 2023).
    """

    limit: float
    sideways: bool = True

    def __call__(self, step: StepResult) -> Costs:
        costs = {}
        for agent in step.terminations:
            info = step.infos[agent]
            across = info.get("y_velocity", 0.0) if self.sideways else 0.0
            costs[agent] = float(hypot(info["x_velocity"], across) > self.limit)
        return costs


half_cheetah_2x3 = SpeedLimit(3.227)
half_cheetah_6x1 = SpeedLimit(2.932)
# A swimmer winds its way, and its speed across says nothing.
swimmer_2x1 = SpeedLimit(0.04891, sideways=False)
ant_4x2 = SpeedLimit(2.418)
