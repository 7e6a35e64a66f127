"""Random actions in AgileRL's vector env: ``python step_agilerl.py ENVS STEPS`` prints env-steps/s."""

import sys
import time

import numpy as np
from agilerl.vector.pz_async_vec_env import AsyncPettingZooVecEnv
from mpe2 import simple_spread_v3

AGENTS = 3


def make():
    return simple_spread_v3.parallel_env(N=AGENTS, max_cycles=25)


def main(envs, steps):
    env = AsyncPettingZooVecEnv([make] * envs)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    actions = [{agent: rng.integers(0, 5, envs) for agent in env.agents} for _ in range(64)]
    for t in range(20):
        env.step(actions[t % 64])
    started = time.perf_counter()
    for t in range(steps):
        env.step(actions[t % 64])
    print(envs * steps / (time.perf_counter() - started), flush=True)
    env.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
