"""RLlib's PPO with one shared policy, 8 copies of the env in the driver's own process.

``python rllib_ppo.py SEED TIMESTEPS LAST`` prints one JSON line; see `throughput.py`.
"""

import json
import logging
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import ray  # noqa: E402
import torch  # noqa: E402
from mpe2 import simple_spread_v3  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv  # noqa: E402
from ray.tune.registry import register_env  # noqa: E402

AGENTS, ENVS, STEPS = 3, 8, 128


def main(seed: int, timesteps: int, last: int) -> None:
    torch.set_num_threads(1)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    register_env(
        "spread",
        lambda _: ParallelPettingZooEnv(simple_spread_v3.parallel_env(N=AGENTS, max_cycles=25)),
    )
    config = (
        PPOConfig()
        .environment("spread")
        .debugging(seed=seed, log_level="ERROR")
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=ENVS,
            rollout_fragment_length=STEPS,
            batch_mode="truncate_episodes",
        )
        .multi_agent(
            policies={"shared"}, policy_mapping_fn=lambda *_, **__: "shared", count_steps_by="env_steps"
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .learners(num_learners=0)
        .training(
            lr=2.5e-4,
            gamma=0.99,
            lambda_=0.95,
            train_batch_size_per_learner=ENVS * STEPS,
            minibatch_size=ENVS * STEPS * AGENTS // 4,
            num_epochs=4,
            clip_param=0.2,
            entropy_coeff=0.01,
            vf_loss_coeff=0.5,
            use_kl_loss=False,
            grad_clip=0.5,
        )
        .reporting(metrics_num_episodes_for_smoothing=last, min_sample_timesteps_per_iteration=0)
    )
    algorithm = config.build_algo()
    steps, updating, result = 0, 0.0, {}
    started = time.perf_counter()
    while steps < timesteps:
        result = algorithm.train()
        steps = int(result["env_runners"]["num_env_steps_sampled_lifetime"])
        updating += result["timers"]["learner_update_timer"]
    seconds = time.perf_counter() - started
    print(
        json.dumps(
            {
                "return": float(result["env_runners"]["episode_return_mean"]) / AGENTS,
                "steps_per_second": steps / seconds,
                "update_share": updating / seconds,
            }
        ),
        flush=True,
    )
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
