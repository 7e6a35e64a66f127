"""One agent's record: what it earned, episode by episode, and how its learner stood then, as a table."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from marl_tools.core.averages import MovingAverage
from marl_tools.core.errors import ConfigError, did_you_mean
from marl_tools.core.io import PathLike
from marl_tools.core.run_logs import (
    EPISODES,
    UPDATES,
    UpdateLog,
    check_run_folder,
    read_episodes,
    read_updates,
)
from marl_tools.core.types import AgentID, EpisodeLog, Split

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "epi": "int64",
    "t": "int64",
    "wall_t": "float64",
    "opt_step": "float64",
    "frame": "int64",
    "fps": "float64",
    "total_reward": "float64",
    "total_reward_ma": "float64",
    "loss": "float64",
    "lr": "float64",
    "explore_var": "float64",
    "entropy_coef": "float64",
    "entropy": "float64",
    "grad_norm": "float64",
    "agent": "object",
    "split": "object",
    "env_name": "object",
}
"""The columns of `AgentRecord.frame` and their types."""

_SCALARS = ("opt_step", "loss", "lr", "explore_var", "entropy_coef", "mean_entropy", "mean_grad_norm")
_OF_FIGURES = {
    "loss": "loss",
    "lr": "learning_rate",
    "entropy_coef": "entropy_coef",
    "mean_entropy": "entropy",
    "mean_grad_norm": "grad_norm",
}
"""Our scalars by the names that they have in a line of updates."""


class AgentRecord:
    """The history of one agent: a row an episode, training and evaluation apart.

    >>> record = AgentRecord("agent_0")                      # doctest: +SKIP
    >>> record.set(loss=0.3, lr=2.5e-4)                      # doctest: +SKIP
    >>> record.add(env.last_episode)                         # doctest: +SKIP
    >>> record.frame("train")["total_reward"].mean()         # doctest: +SKIP

    ``explore_var``, ``entropy_coef``, ``loss``, ``lr``, ``mean_entropy``, ``mean_grad_norm`` and ``opt_step`` are those of the
    latest update, NaN until `set` gives them; every row keeps what they were when it came.

    Args:
        agent: whose record it is.
        env_index: which copy of the env it plays in; None: any. Evaluations have envs of their own and count always.
        window: episodes in the moving averages.
    """

    def __init__(self, agent: AgentID, env_index: int | None = None, *, window: int = 100) -> None:
        self.agent, self.env_index, self.window = agent, env_index, window
        self.opt_step = self.loss = self.lr = self.explore_var = math.nan
        self.entropy_coef = self.mean_entropy = self.mean_grad_norm = math.nan
        self.total_reward = math.nan
        self._rows: dict[Split, list[tuple[Any, ...]]] = {"train": [], "eval": []}
        self._averages: dict[Split, MovingAverage] = {
            "train": MovingAverage(window),
            "eval": MovingAverage(window),
        }
        self._started = time.monotonic()

    @property
    def total_reward_ma(self) -> float:
        """Mean return of the last ``window`` training episodes; NaN before the first."""
        return self._averages["train"].value

    @property
    def eval_reward_ma(self) -> float:
        """The same of evaluation episodes."""
        return self._averages["eval"].value

    def set(self, **scalars: float) -> None:
        """Keep scalars of the latest update.

        Raises:
            ConfigError: an unknown name, with the nearest known one.
        """
        for name, value in scalars.items():
            if name not in _SCALARS:
                raise ConfigError(
                    f"{name}={value!r}: a record has no such scalar.{did_you_mean(name, _SCALARS)}"
                )
            setattr(self, name, float(value))

    def add(self, log: EpisodeLog, *, wall_t: float | None = None) -> bool:
        """Take in an episode; False if it is none of this agent's, or was interrupted.

        ``wall_t`` is when it ended, in seconds since the run began; None: since this record was made.
        """
        elsewhere = self.env_index not in (None, log.env_index) and log.split == "train"
        if self.agent not in log.returns or log.interrupted or elsewhere:
            return False
        if wall_t is None:
            wall_t = time.monotonic() - self._started
        rows, average, earned = self._rows[log.split], self._averages[log.split], log.returns[self.agent]
        average.add(earned)
        if log.split == "train":
            self.total_reward = earned
        rows.append(
            (
                len(rows) + 1,
                log.lengths[self.agent],
                wall_t,
                self.opt_step,
                log.t_end,
                log.t_end / wall_t if wall_t > 0 else math.nan,
                earned,
                average.value,
                self.loss,
                self.lr,
                self.explore_var,
                self.entropy_coef,
                self.mean_entropy,
                self.mean_grad_norm,
                self.agent,
                log.split,
                log.env_name,
            )
        )
        return True

    def frame(self, split: Split = "train") -> pd.DataFrame:
        """The rows of one split as a table with the columns `COLUMNS`.

        ``epi`` counts the agent's episodes from 1, ``t`` its steps in that one, ``wall_t`` seconds and ``frame`` env steps of
        the whole run, ``opt_step`` gradient steps; ``fps`` is frame over wall_t.

        Raises:
            ConfigError: a split that is neither "train" nor "eval".
        """
        import pandas as pd

        if split not in self._rows:
            raise ConfigError(f"split={split!r}: give 'train' or 'eval'")
        return pd.DataFrame(self._rows[split], columns=list(COLUMNS)).astype(COLUMNS)

    @classmethod
    def from_run(
        cls, folder: PathLike, agent: AgentID, env_index: int | None = None, *, window: int = 100
    ) -> Self:
        """The record of an agent in a run folder, from its logs; also while the run goes on.

        Each episode is joined with the update that learned from it, or after which it was evaluated. An episode whose
        update is still to come has no scalars.

        Raises:
            FileNotFoundError: the folder has no such logs.
            CorruptFileError: a line of them is damaged; names the file and the row.
            ConfigError: the folder is no run, or has no episode of such an agent; those that it has are named.
        """
        folder = Path(folder)
        check_run_folder(folder)
        updates = {log.update: log for log in read_updates(folder / UPDATES)}
        group = _group_of(folder, agent, updates)
        record, agents = cls(agent, env_index, window=window), dict[AgentID, None]()
        for log in read_episodes(folder / EPISODES):
            agents.update(dict.fromkeys(log.returns))
            update = updates.get(-1 if log.update is None else log.update)
            record.set(**_scalars(update, group))
            if update is None:
                wall_t = math.nan
            else:
                wall_t = update.seconds_at(log.t_end) if log.split == "train" else update.done_at
            record.add(log, wall_t=wall_t)
        if agents and agent not in agents:
            raise ConfigError(f"{folder} has no episode of agent {agent!r}.{did_you_mean(agent, agents)}")
        return record


def _scalars(update: UpdateLog | None, group: str | None) -> dict[str, float]:
    if update is None or group is None or group not in update.groups:
        return dict.fromkeys(_SCALARS, math.nan)
    figures = update.groups[group]
    return {
        "opt_step": update.optimiser_steps[group],
        "explore_var": figures.get("explore_var", math.nan),
        **{ours: figures.get(theirs, math.nan) for ours, theirs in _OF_FIGURES.items()},
    }


def _group_of(folder: Path, agent: AgentID, updates: dict[int, UpdateLog]) -> str | None:
    """The group that an agent learns in: the only one, or the one that the checkpoint puts it in."""
    names = list(dict.fromkeys(name for log in updates.values() for name in log.groups))
    if len(names) < 2:
        return names[0] if names else None
    from marl_tools.training.policy import load_policy

    return next((group.name for group in load_policy(folder).groups if agent in group.agents), None)
