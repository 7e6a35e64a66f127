"""Stable-Baselines3's PPO with shared parameters through SuperSuit, as their tutorials do it.

``python sb3.py SEED TIMESTEPS LAST`` prints one JSON line: the mean over agents of the return over the last LAST
episodes, env-steps/s and the share of the update.
"""

import json
import sys
import time
from collections import deque

import numpy as np
import supersuit
import torch
from mpe2 import simple_spread_v3
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecMonitor

AGENTS, ENVS, STEPS = 3, 8, 128


class Clock(BaseCallback):
    """Time spent between a rollout's end and the next one's start, and the returns of finished episodes."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.returns: deque[float] = deque(maxlen=last * AGENTS)
        self.update_seconds = 0.0
        self._end = None

    def _on_rollout_start(self) -> None:
        if self._end is not None:
            self.update_seconds += time.perf_counter() - self._end

    def _on_rollout_end(self) -> None:
        self._end = time.perf_counter()

    def _on_training_end(self) -> None:
        self._on_rollout_start()

    def _on_step(self) -> bool:
        self.returns.extend(info["episode"]["r"] for info in self.locals["infos"] if "episode" in info)
        return True


def main(seed: int, timesteps: int, last: int) -> None:
    torch.set_num_threads(1)
    env = simple_spread_v3.parallel_env(N=AGENTS, max_cycles=25)
    env.reset(seed=seed)
    env = supersuit.pettingzoo_env_to_vec_env_v1(env)
    env = supersuit.concat_vec_envs_v1(env, ENVS, num_cpus=0, base_class="stable_baselines3")
    env = VecMonitor(env)
    model = PPO(
        "MlpPolicy",
        env,
        learning_rate=2.5e-4,
        n_steps=STEPS,
        batch_size=STEPS * ENVS * AGENTS // 4,
        n_epochs=4,
        gamma=0.99,
        gae_lambda=0.95,
        clip_range=0.2,
        ent_coef=0.01,
        policy_kwargs={"net_arch": [64, 64], "activation_fn": torch.nn.Tanh},
        seed=None,
        device="cpu",
    )
    # Its own `seed=` reaches for `env.seed`, which SuperSuit's vector env lacks; torch's and NumPy's are set instead.
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    clock = Clock(last)
    started = time.perf_counter()
    # Stable-Baselines3 counts every agent's step.
    model.learn(timesteps * AGENTS, callback=clock)
    seconds = time.perf_counter() - started
    print(
        json.dumps(
            {
                "return": float(np.mean(clock.returns)),
                "steps_per_second": model.num_timesteps / AGENTS / seconds,
                "update_share": clock.update_seconds / seconds,
            }
        )
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
