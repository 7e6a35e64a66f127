"""Save what a policy plays, then clone it from the files: ``python examples/learn_from_trajectories.py [folder]``."""

import sys

import numpy as np
import torch
from mpe2 import simple_spread_v3

import marl_tools as mt


def expert(observation: np.ndarray) -> int:
    """Run towards the first landmark: left, right, down or up, whichever is further."""
    x, y = observation[4:6]
    return (1 if x < 0 else 2) if abs(x) > abs(y) else (3 if y < 0 else 4)


def save(folder: str, episodes: int = 20) -> None:
    env = mt.TrajectoryRecorder(simple_spread_v3.parallel_env(max_cycles=25), folder)
    for episode in range(episodes):
        observations, _ = env.reset(seed=episode)
        while env.agents:
            observations, *_ = env.step({agent: expert(observations[agent]) for agent in env.agents})
    env.close()


def clone(folder: str, updates: int = 200) -> torch.nn.Module:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(18, 64), torch.nn.Tanh(), torch.nn.Linear(64, 5))
    optimiser = torch.optim.Adam(network.parameters(), 3e-3)
    windows = mt.SegmentWindows(folder, length=10, batch_size=64, seed=0)
    print(f"learning from {windows.transitions} transitions")
    for _, batch in zip(range(updates), windows, strict=False):
        observations, actions = batch.obs[:, :-1][batch.valid], batch.actions[batch.valid]
        loss = torch.nn.functional.cross_entropy(network(observations), actions)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network


def agreement(network: torch.nn.Module, seed: int = 10_000) -> float:
    """How often the clone plays what the expert would, in an episode that neither has seen."""
    env = simple_spread_v3.parallel_env(max_cycles=25)
    observations, _ = env.reset(seed=seed)
    agreed = []
    while env.agents:
        actions = {
            agent: int(network(torch.from_numpy(observations[agent])).argmax()) for agent in env.agents
        }
        agreed += [actions[agent] == expert(observations[agent]) for agent in env.agents]
        observations, *_ = env.step(actions)
    env.close()
    return float(np.mean(agreed))


def main(folder: str = "data") -> None:
    save(folder)
    print(f"the clone agrees with the expert in {agreement(clone(folder)):.0%} of the steps")


if __name__ == "__main__":
    main(*sys.argv[1:2])
