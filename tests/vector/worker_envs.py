"""Envs for worker processes: each copy with a life of its own, and copies that get into trouble on cue."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.process import parent_process
from pathlib import Path
from typing import Any

from marl_tools.core.errors import EnvError
from marl_tools.core.logging import log
from marl_tools.core.wrappers import EpisodeRecorder
from tests.envs_for_tests import Team

LIVES: list[dict[str, Any]] = [
    {"max_cycles": 4},
    {"max_cycles": 6, "deaths": {"agent_0": 2, "agent_2": 4}},
    {"deaths": {"agent_0": 1, "agent_1": 2, "agent_2": 3}, "faults": ("one_list", "reuse")},
    {"max_cycles": 5, "births": {"agent_1": 2, "agent_2": 4}},
    {
        "max_cycles": 5,
        "deaths": {"agent_0": 2, "agent_1": 2},
        "births": {"agent_2": 2},
        "faults": ("keep_agents",),
    },
    {"max_cycles": 1},
    {"max_cycles": 7, "deaths": {"agent_1": 7}},
]


class Unpaid(Team):
    """A `Team` in which nobody is paid for being born."""

    def step(self, actions: Any) -> Any:
        obs, rewards, *rest = super().step(actions)
        return obs, {agent: reward for agent, reward in rewards.items() if agent in actions}, *rest


def lives(env_index: int) -> EpisodeRecorder:
    """A `Team` whose agents come and go in another way in each copy."""
    return EpisodeRecorder(Unpaid(**LIVES[env_index % len(LIVES)]), env_index=env_index)


class OddError(Exception):
    """Cannot be made from its own arguments, hence not be unpickled."""

    def __init__(self, what: str, *, really: bool) -> None:
        super().__init__(f"{what}, really: {really}")


class Costly(Team):
    """A `Team` in which agent_1 violates at every third step."""

    def _info(self, agents: list[str]) -> dict[str, dict[str, Any]]:
        return {agent: {"cost": float(agent == "agent_1" and self.t % 3 == 0)} for agent in agents}


class Troubled(Costly):
    """Gets into ``trouble`` at its ``at``-th step in all; 0 is its construction, -1 its closing."""

    def __init__(self, trouble: str, at: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.trouble, self.at, self.steps = trouble, at, 0
        if at == 0:
            self.get_into_trouble()

    def step(self, actions: Any) -> Any:
        self.steps += 1
        if self.steps == self.at:
            self.get_into_trouble()
        return super().step(actions)

    def close(self) -> None:
        if self.at == -1:
            self.get_into_trouble()

    def get_into_trouble(self) -> None:
        match self.trouble:
            case "raise":
                raise ZeroDivisionError("the wheel came off")
            case "odd":
                raise OddError("the wheel came off", really=True)
            case "quit":
                sys.exit("enough")
            case "exit":
                os._exit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(3600)
            case "log":
                log(f"step {self.steps} in process {os.getpid()}")


def troubled(
    env_index: int, trouble: str, *, at: int = 5, copies: tuple[int, ...] = (3,), max_cycles: int = 4
) -> EpisodeRecorder:
    """Copies of which some get into trouble, once they are in a worker."""
    sound = env_index not in copies or parent_process() is None
    env = Costly(2, max_cycles=max_cycles) if sound else Troubled(trouble, at, n=2, max_cycles=max_cycles)
    return EpisodeRecorder(env, env_index=env_index)


class Threaded(Team):
    """Pays what the process says of its threads."""

    def step(self, actions: Any) -> Any:
        obs, rewards, *rest = super().step(actions)
        return obs, dict.fromkeys(rewards, float(os.environ.get("OMP_NUM_THREADS", "nan"))), *rest


class Employer(Team):
    """Has a program or a forked process of its own, which it ends when it is closed, and waits for that."""

    def __init__(self, kind: str, told: Path) -> None:
        super().__init__()
        if kind == "program":
            program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
            self.end, self.wait, pid = program.terminate, program.wait, program.pid
        else:
            fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
            fork.start()
            self.end, self.wait, pid = fork.terminate, fork.join, fork.pid
        told.write_text(str(pid))

    def close(self) -> None:
        self.end()
        self.wait()


def employer(env_index: int, kind: str, folder: Path) -> EpisodeRecorder:
    if parent_process() is None:
        return lives(env_index)
    return EpisodeRecorder(Employer(kind, folder / f"{env_index}"), env_index=env_index)


def threaded(env_index: int) -> EpisodeRecorder:
    return EpisodeRecorder(Threaded(), env_index=env_index)


def unlike(env_index: int) -> EpisodeRecorder:
    if parent_process() is not None:
        raise EnvError("no licence in this process")
    return lives(env_index)
