"""Random actions in a peer's vector env: ``python step_vector.py supersuit|agilerl ENVS PROCESSES STEPS`` prints env-steps/s."""

import sys
import time

import numpy as np
from mpe2 import simple_spread_v3

AGENTS = 3


def make():
    return simple_spread_v3.parallel_env(N=AGENTS, max_cycles=25)


def supersuit(envs, processes):
    """A step function over ready-made random actions."""
    import supersuit as ss

    env = ss.pettingzoo_env_to_vec_env_v1(make())
    env = ss.concat_vec_envs_v1(env, envs, num_cpus=processes, base_class="gymnasium")
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 5, (64, envs * AGENTS))
    return lambda t: env.step(actions[t % 64])


def agilerl(envs, processes):
    """The same; one process a copy is what it offers, or all copies in this one."""
    if processes:
        from agilerl.vector.pz_async_vec_env import AsyncPettingZooVecEnv as Vector

        env = Vector([make] * envs)
    else:
        raise SystemExit("AgileRL steps several copies in processes only")
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    actions = [{agent: rng.integers(0, 5, envs) for agent in env.agents} for _ in range(64)]
    return lambda t: env.step(actions[t % 64])


def main(kind, envs, processes, steps):
    step = {"supersuit": supersuit, "agilerl": agilerl}[kind](envs, processes)
    for t in range(20):
        step(t)
    started = time.perf_counter()
    for t in range(steps):
        step(t)
    print(envs * steps / (time.perf_counter() - started), flush=True)
    # SuperSuit's processes and AgileRL's do not always end by themselves.
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
