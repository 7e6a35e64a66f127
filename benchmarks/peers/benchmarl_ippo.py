"""BenchMARL's IPPO with shared parameters, 8 copies of the env one after the other.

``python benchmarl_ippo.py SEED TIMESTEPS LAST`` prints one JSON line; see `throughput.py`.
"""

import json
import sys
import tempfile
import time
import types
from collections import deque

import numpy as np
import torch
import torchrl.collectors
from mpe2.all_modules import mpe_environments

# BenchMARL 1.5.2 pins torchrl below 0.12, which has no build for this torch; what was renamed since gets its old name.
torchrl.collectors.SyncDataCollector = torchrl.collectors.Collector
# torchrl looks for these environments where PettingZoo kept them before 1.25.
moved = types.ModuleType("pettingzoo.utils.all_modules")
moved.all_environments = mpe_environments
sys.modules[moved.__name__] = moved

from benchmarl.algorithms import IppoConfig  # noqa: E402
from benchmarl.environments import PettingZooTask  # noqa: E402
from benchmarl.experiment import Callback, Experiment, ExperimentConfig  # noqa: E402
from benchmarl.models.mlp import MlpConfig  # noqa: E402

ENVS, STEPS = 8, 128


class Figures(Callback):
    """Returns of finished episodes, and the time from a batch's end to the next one's start."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.returns: deque[float] = deque(maxlen=last)
        self.updating = 0.0

    def on_batch_collected(self, batch):
        self._collected = time.perf_counter()
        done = batch.get(("next", "agent", "done"))[..., 0].any(-1)
        totals = batch.get(("next", "agent", "episode_reward"))[..., 0].mean(-1)
        self.returns.extend(totals[done].tolist())

    def on_train_end(self, training_td, group):
        self.updating += time.perf_counter() - self._collected


def main(seed: int, timesteps: int, last: int) -> None:
    torch.set_num_threads(1)
    settings = ExperimentConfig.get_from_yaml()
    settings.share_policy_params = True
    settings.prefer_continuous_actions = False
    settings.gamma, settings.lr, settings.clip_grad_val = 0.99, 2.5e-4, 0.5
    settings.max_n_frames = timesteps
    settings.on_policy_collected_frames_per_batch = ENVS * STEPS
    settings.on_policy_n_envs_per_worker = ENVS
    settings.on_policy_n_minibatch_iters = 4
    settings.on_policy_minibatch_size = ENVS * STEPS // 4
    settings.evaluation = settings.render = settings.create_json = False
    settings.loggers = []
    settings.save_folder = tempfile.mkdtemp()
    algorithm = IppoConfig.get_from_yaml()
    algorithm.entropy_coef, algorithm.lmbda, algorithm.critic_coef = 0.01, 0.95, 0.5
    model = MlpConfig(num_cells=[64, 64], layer_class=torch.nn.Linear, activation_class=torch.nn.Tanh)
    task = PettingZooTask.SIMPLE_SPREAD.get_from_yaml()
    task.config |= {"max_cycles": 25, "N": 3}
    figures = Figures(last)
    experiment = Experiment(
        task=task,
        algorithm_config=algorithm,
        model_config=model,
        critic_model_config=model,
        seed=seed,
        config=settings,
        callbacks=[figures],
    )
    started = time.perf_counter()
    experiment.run()
    seconds = time.perf_counter() - started
    print(
        json.dumps(
            {
                "return": float(np.mean(figures.returns)),
                "steps_per_second": experiment.total_frames / seconds,
                "update_share": figures.updating / seconds,
            }
        )
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
