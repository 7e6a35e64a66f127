"""skrl's IPPO on its own PettingZoo wrapper, which plays a single copy of the env.

``python skrl_ippo.py SEED TIMESTEPS LAST`` prints one JSON line; see `throughput.py`. A rollout has 1024 steps of the one
copy, in place of 128 of 8, and the agents share one network, which each of them updates in turn, as skrl does it.
"""

import json
import logging
import sys
import time
from collections import deque
from typing import Any

import numpy as np
import torch
from mpe2 import simple_spread_v3
from pettingzoo.utils import BaseParallelWrapper
from skrl import logger
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.multi_agents.torch.ippo import IPPO
from skrl.trainers.torch import SequentialTrainer
from torch import nn

AGENTS, STEPS = 3, 1024


class Returns(BaseParallelWrapper):
    """Returns of finished episodes, mean over agents."""

    def __init__(self, env: Any, last: int) -> None:
        super().__init__(env)
        self.finished: deque[float] = deque(maxlen=last)
        self._sum = 0.0

    def step(self, actions: Any) -> Any:
        result = self.env.step(actions)
        self._sum += float(np.mean(list(result[1].values())))
        if not self.env.agents:
            self.finished.append(self._sum)
            self._sum = 0.0
        return result


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


class Policy(CategoricalMixin, Model):
    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces, device="cpu")
        CategoricalMixin.__init__(self, unnormalized_log_prob=True)
        self.net = mlp(self.num_observations, self.num_actions)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[torch.Tensor, dict[str, Any]]:
        return self.net(inputs["observations"]), {}


class Value(DeterministicMixin, Model):
    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces, device="cpu")
        DeterministicMixin.__init__(self)
        self.net = mlp(self.num_observations, 1)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[torch.Tensor, dict[str, Any]]:
        return self.net(inputs["observations"]), {}


class TimedIPPO(IPPO):
    """IPPO, and how long its updates took."""

    seconds = 0.0

    def update(self, **kwargs: Any) -> None:
        started = time.perf_counter()
        super().update(**kwargs)
        self.seconds += time.perf_counter() - started


def main(seed: int, timesteps: int, last: int) -> None:
    logger.setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    returns = Returns(simple_spread_v3.parallel_env(N=AGENTS, max_cycles=25), last)
    env = wrap_env(returns, wrapper="pettingzoo", verbose=False)
    agents = env.possible_agents
    spaces = {
        "observation_space": env.observation_space(agents[0]),
        "state_space": None,
        "action_space": env.action_space(agents[0]),
    }
    # skrl wants an entry for each agent in every setting that is a dict.
    nothing = {agent: {} for agent in agents}
    shared = {"policy": Policy(**spaces), "value": Value(**spaces)}
    trainer = TimedIPPO(
        possible_agents=agents,
        models=dict.fromkeys(agents, shared),
        memories={agent: RandomMemory(memory_size=STEPS, num_envs=1) for agent in agents},
        observation_spaces=env.observation_spaces,
        state_spaces=dict.fromkeys(agents),
        action_spaces=env.action_spaces,
        device="cpu",
        cfg={
            "rollouts": STEPS,
            "learning_epochs": 4,
            "mini_batches": 4,
            "discount_factor": 0.99,
            "gae_lambda": 0.95,
            "learning_rate": 2.5e-4,
            "grad_norm_clip": 0.5,
            "ratio_clip": 0.2,
            "value_clip": 0.0,
            "entropy_loss_scale": 0.01,
            "value_loss_scale": 0.5,
            "learning_rate_scheduler_kwargs": nothing,
            "observation_preprocessor_kwargs": nothing,
            "state_preprocessor_kwargs": nothing,
            "value_preprocessor_kwargs": nothing,
            "experiment": {"directory": ".", "write_interval": 0, "checkpoint_interval": 0},
        },
    )
    steps = -(-timesteps // STEPS) * STEPS
    loop = SequentialTrainer(
        env=env,
        agents=trainer,
        cfg={
            "timesteps": steps,
            "headless": True,
            "disable_progressbar": True,
            "close_environment_at_exit": False,
        },
    )
    started = time.perf_counter()
    loop.train()
    seconds = time.perf_counter() - started
    print(
        json.dumps(
            {
                "return": float(np.mean(returns.finished)),
                "steps_per_second": steps / seconds,
                "update_share": trainer.seconds / seconds,
            }
        )
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
