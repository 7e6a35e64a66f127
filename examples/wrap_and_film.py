"""Wrap an environment, film it, and read the episode logs: ``python examples/wrap_and_film.py [folder]``."""

import sys

import pettingzoo

import marl_tools as mt


def idle(step):
    """A cost of 1 for every agent that earns nothing in a step."""
    return {agent: float(reward <= 0) for agent, reward in step.rewards.items()}


def main(folder: str = "clips") -> None:
    env = pettingzoo.make("parallel", "butterfly/knights_archers_zombies-v11", render_mode="rgb_array")
    print("hidden episode cap:", mt.infer_episode_cap(env))
    env = mt.AddCost(env, idle)
    env = mt.EpisodeCap(env, steps=60)
    env = mt.EpisodeRecorder(
        env, on_episode=lambda log: print(log.episode, dict(log.returns), dict(log.ends))
    )
    env = mt.RecordVideo(env, folder, episode_trigger=lambda n: n == 0, overlay=True)
    for episode in range(2):
        env.reset(seed=episode)
        while env.agents:
            env.step({agent: env.action_space(agent).sample() for agent in env.agents})
    env.close()
    print("clips in", folder)


if __name__ == "__main__":
    main(*sys.argv[1:2])
