"""A plain single-file PPO over SuperSuit's vector env, in the manner of CleanRL's PettingZoo script.

``python plain_ppo.py SEED TIMESTEPS LAST`` prints one JSON line; see `throughput.py`. As in that script an episode that
was cut off by time counts as one that ended: no bootstrap.
"""

import json
import sys
import time
from collections import deque

import numpy as np
import supersuit
import torch
from mpe2 import simple_spread_v3
from torch import nn
from torch.distributions import Categorical

AGENTS, ENVS, STEPS, EPOCHS, MINIBATCHES = 3, 8, 128, 4, 4
ROWS = ENVS * AGENTS
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2


def linear(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    return nn.Sequential(linear(inputs, 64), nn.Tanh(), linear(64, 64), nn.Tanh(), linear(64, outputs, gain))


def main(seed: int, timesteps: int, last: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    env = supersuit.pettingzoo_env_to_vec_env_v1(simple_spread_v3.parallel_env(N=AGENTS, max_cycles=25))
    env = supersuit.concat_vec_envs_v1(env, ENVS, num_cpus=0, base_class="gymnasium")
    size, choices = env.observation_space.shape[0], int(env.action_space.n)
    actor, critic = mlp(size, choices, 0.01), mlp(size, 1, 1.0)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=2.5e-4, eps=1e-5)
    obs = torch.zeros(STEPS, ROWS, size)
    actions = torch.zeros(STEPS, ROWS, dtype=torch.long)
    log_probs, rewards, dones, values = (torch.zeros(STEPS, ROWS) for _ in range(4))
    first, _ = env.reset(seed=seed)
    now, done = torch.tensor(first), torch.zeros(ROWS)
    running, returns = np.zeros(ROWS), deque(maxlen=last * AGENTS)
    collecting = updating = 0.0
    updates = -(-timesteps // (ENVS * STEPS))
    for _ in range(updates):
        started = time.perf_counter()
        for t in range(STEPS):
            obs[t], dones[t] = now, done
            with torch.no_grad():
                choice = Categorical(logits=actor(now))
                actions[t] = choice.sample()
                log_probs[t], values[t] = choice.log_prob(actions[t]), critic(now)[:, 0]
            after, reward, terminated, truncated, _ = env.step(actions[t].numpy())
            now, rewards[t] = torch.tensor(after), torch.tensor(reward)
            over = np.logical_or(terminated, truncated)
            done = torch.tensor(over, dtype=torch.float32)
            running += reward
            returns.extend(running[over])
            running[over] = 0.0
        collected = time.perf_counter()
        with torch.no_grad():
            following, advantages, trace = critic(now)[:, 0], torch.zeros_like(rewards), 0.0
            for t in reversed(range(STEPS)):
                going = 1.0 - (done if t == STEPS - 1 else dones[t + 1])
                ahead = following if t == STEPS - 1 else values[t + 1]
                trace = rewards[t] + GAMMA * going * ahead - values[t] + GAMMA * LAMBDA * going * trace
                advantages[t] = trace
            targets = advantages + values
        rows = [x.reshape(STEPS * ROWS, *x.shape[2:]) for x in (obs, actions, log_probs, advantages, targets)]
        for _ in range(EPOCHS):
            order = torch.from_numpy(rng.permutation(STEPS * ROWS))
            for index in order.chunk(MINIBATCHES):
                o, a, old, advantage, target = (x[index] for x in rows)
                choice = Categorical(logits=actor(o))
                ratio = (choice.log_prob(a) - old).exp()
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
                error = 0.5 * (critic(o)[:, 0] - target).square().mean()
                loss = 0.5 * error - gain - 0.01 * choice.entropy().mean()
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimiser.step()
        ended = time.perf_counter()
        collecting, updating = collecting + collected - started, updating + ended - collected
    print(
        json.dumps(
            {
                "return": float(np.mean(returns)),
                "steps_per_second": updates * ENVS * STEPS / (collecting + updating),
                "update_share": updating / (collecting + updating),
            }
        )
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
