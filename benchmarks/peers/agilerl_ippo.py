"""AgileRL's IPPO with one network for the homogeneous agents, each of 8 copies of the env in a process of its own.

``python agilerl_ippo.py SEED TIMESTEPS LAST`` prints one JSON line; see `throughput.py`. Its own training loop is used,
without mutations; it evaluates once, at the end, which is not counted.
"""

import contextlib
import io
import json
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from agilerl.algorithms import IPPO  # noqa: E402
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy  # noqa: E402
from agilerl.vector.pz_async_vec_env import AsyncPettingZooVecEnv  # noqa: E402
from mpe2 import simple_spread_v3  # noqa: E402

AGENTS, ENVS, STEPS = 3, 8, 128


class Timed(IPPO):
    """IPPO, how long its updates took, and the scores of all episodes."""

    def learn(self, *args, **kwargs):
        started = time.perf_counter()
        result = super().learn(*args, **kwargs)
        Timed.updating += time.perf_counter() - started
        return result

    def add_scores(self, scores):
        Timed.trained = time.perf_counter()
        Timed.returns += [float(np.sum(score)) / AGENTS for score in scores]
        return super().add_scores(scores)


Timed.updating, Timed.trained, Timed.returns = 0.0, 0.0, []


def main(seed: int, timesteps: int, last: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    env = AsyncPettingZooVecEnv([lambda: simple_spread_v3.parallel_env(N=AGENTS, max_cycles=25)] * ENVS)
    env.reset(seed=seed)
    agents = env.agents
    agent = Timed(
        observation_spaces=[env.single_observation_space(agent) for agent in agents],
        action_spaces=[env.single_action_space(agent) for agent in agents],
        agent_ids=agents,
        net_config={
            "latent_dim": 64,
            "encoder_config": {"hidden_size": [64], "activation": "Tanh", "output_activation": "Tanh"},
            "head_config": {"hidden_size": [64], "activation": "Tanh"},
        },
        batch_size=ENVS * STEPS * AGENTS // 4,
        lr=2.5e-4,
        learn_step=ENVS * STEPS,
        gamma=0.99,
        gae_lambda=0.95,
        clip_coef=0.2,
        ent_coef=0.01,
        update_epochs=4,
    )
    steps = -(-timesteps // (ENVS * STEPS)) * ENVS * STEPS
    started = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        train_multi_agent_on_policy(
            env, "simple_spread", "IPPO", [agent], max_steps=steps, evo_steps=steps, verbose=False
        )
    seconds = Timed.trained - started
    print(
        json.dumps(
            {
                "return": float(np.mean(Timed.returns[-last:])),
                "steps_per_second": steps / seconds,
                "update_share": Timed.updating / seconds,
            }
        )
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
