"""Multi-agent MuJoCo: a body whose joints belong to different agents, stepped quietly and drawn without a screen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from marl_tools.core.errors import ConfigError, EnvError, MissingExtraError
from marl_tools.core.types import AgentID
from marl_tools.core.wrappers.base import ParallelWrapper
from marl_tools.envs.adapters.packages import imported

INSTALL = 'pip install "marl-tools[mamujoco]"'
_SCREENS = ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY")


class SharedBody(ParallelWrapper):
    """Its own list of agents, rewards that are plain floats, an info dict for each agent, and a picture or a remedy.

    The env hands out one info dict to all and its list of possible agents as the list of live ones, so that a change of
    either is a change of all.
    """

    def __init__(self, env: Any, name: str, render_mode: str | None) -> None:
        super().__init__(env)
        self.render_mode = render_mode
        fps = env.single_agent_env.metadata["render_fps"]
        self.metadata = {**env.metadata, "name": name, "render_fps": fps}
        self.agents: list[AgentID] = []

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observations, infos = self.env.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return observations, {agent: dict(info) for agent, info in infos.items()}

    def step(self, actions: dict[AgentID, Any]) -> Any:
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        if not self.env.agents:
            self.agents = []
        return (
            observations,
            {agent: float(reward) for agent, reward in rewards.items()},
            {agent: bool(ended) for agent, ended in terminations.items()},
            {agent: bool(ended) for agent, ended in truncations.items()},
            {agent: dict(info) for agent, info in infos.items()},
        )

    def render(self) -> Any:
        # Gymnasium would take GLFW, which without a screen fails only once it has been chosen.
        if not any(name in os.environ for name in _SCREENS):
            os.environ["MUJOCO_GL"] = "egl"
        try:
            return self.env.render()
        except Exception as error:
            raise EnvError(f"{self.metadata['name']} cannot be drawn{_remedy(error)}") from error


def parallel_env(
    scenario: str = "HalfCheetah", agent_conf: str = "2x3", render_mode: str | None = None, **kwargs: Any
) -> SharedBody:
    """A body of Gymnasium's MuJoCo envs, parted among agents (Peng et al., "FACMAC", NeurIPS 2021).

    Args:
        scenario, agent_conf: which body, and how many agents with how many joints each.
        kwargs: those of MaMuJoCo and of the body's own env, such as ``max_episode_steps``.

    Raises:
        MissingExtraError: Gymnasium-Robotics or MuJoCo is not installed.
        ConfigError: MuJoCo does not start, since MUJOCO_GL asks for what is not there.
    """
    _start()
    module = imported("gymnasium_robotics.envs.multiagent_mujoco.mamujoco_v1", INSTALL)
    with _no_log_file():
        env = module.parallel_env(scenario, agent_conf, render_mode=render_mode, **kwargs)
    return SharedBody(env, f"{scenario}_{agent_conf}", render_mode)


def _start() -> Any:
    """MuJoCo itself, which looks for the library that MUJOCO_GL asks for as soon as it is imported."""
    try:
        return imported("mujoco", INSTALL)
    except MissingExtraError:
        raise
    except Exception as error:
        raise ConfigError(f"MuJoCo does not start{_remedy(error)}: unset MUJOCO_GL for that") from error


def _remedy(error: Exception) -> str:
    return (
        f" with MUJOCO_GL={os.environ.get('MUJOCO_GL', 'glfw')}: {error!r}. Without a screen it takes MUJOCO_GL=egl (Debian, Ubuntu: "
        "apt install libegl1 libgl1) or MUJOCO_GL=osmesa (apt install libosmesa6); training needs neither"
    )


@contextmanager
def _no_log_file() -> Iterator[None]:
    """MuJoCo warns of old words in Gymnasium's models, each time, in a file that it leaves in the working directory."""
    mujoco = _start()
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
