"""`EpisodeRecorder`: closes each episode of the env below it into an `EpisodeLog`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from marl_tools.core.history import Clock, EpisodeBuilder
from marl_tools.core.types import EpisodeLog, Split
from marl_tools.core.wrappers.base import ParallelWrapper, env_title


class EpisodeRecorder(ParallelWrapper):
    """Log every episode per agent; changes nothing that it passes on.

    Args:
        env: any parallel env; put the recorder outside cost, cap and agent truncation, inside the video.
        env_name: a string, or a callable read at each reset and frozen for that episode (multi-task sets).
            By default the env's own name.
        env_index: which copy of the env this is, noted in each log.
        split: "train" or "eval".
        on_episode: called with each finished log, also with interrupted ones.
        clock: counts env steps; its own by default.

    `last_episode` is the latest log, or None. An agent that dies early is closed at its own end and one that
    joins late starts at its first observation. A reset or close in the middle logs ``interrupted``.
    """

    def __init__(
        self,
        env: Any,
        env_name: str | Callable[[], str] | None = None,
        *,
        env_index: int = 0,
        split: Split = "train",
        on_episode: Callable[[EpisodeLog], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(env)
        self._name = env_title(env) if env_name is None else env_name
        self.builder = EpisodeBuilder(env_index=env_index, split=split)
        self.on_episode = on_episode
        self.clock = clock or Clock()
        self.last_episode: EpisodeLog | None = None
        self.env_name = self._name if isinstance(self._name, str) else ""

    @property
    def step_count(self) -> int:
        """Env steps of this copy so far."""
        return self.clock.frames // self.clock.stride

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observations, infos = self.env.reset(seed=seed, options=options)
        if callable(self._name):
            self.env_name = str(self._name())
        # An env made by `aec_to_parallel` hands out its own list and empties it: the builder copies.
        interrupted = self.builder.start(self.env_name, self.env.agents, seed=seed, t=self.clock.frames)
        if interrupted:
            self._finish(interrupted)
        return observations, infos

    def step(self, actions: dict[str, Any]) -> Any:
        result = self.env.step(actions)
        if self.builder.open:
            _, rewards, terminations, truncations, infos = result
            self.clock.tick(self.env_name)
            log = self.builder.step(
                rewards, terminations, truncations, infos, self.env.agents, t=self.clock.frames
            )
            if log:
                self._finish(log)
        return result

    def close(self) -> None:
        interrupted = self.builder.interrupt(self.clock.frames)
        if interrupted:
            self._finish(interrupted)
        self.env.close()

    def _finish(self, log: EpisodeLog) -> None:
        self.last_episode = log
        if self.on_episode:
            self.on_episode(log)
