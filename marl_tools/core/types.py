"""The values that pass between the layers: the log of one episode, and the contract of vector envs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import CorruptFileError

if TYPE_CHECKING:
    from marl_tools.core.spaces import AgentGroup

AgentID = str
Split = Literal["train", "eval"]
End = Literal["terminated", "truncated", "capped", "interrupted"]
"""How one agent's episode ended.

``terminated``: the env ended it; nothing comes after. ``truncated``: cut off by the env or by `AgentTruncation`.
``capped``: cut off by `EpisodeCap`. ``interrupted``: abandoned, by a reset or a close in the middle.
"""


_ENDS = get_args(End)
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "Split": (str,),
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (float, int),
    "bool": (bool,),
}
"""What JSON values a field of an `EpisodeLog` may hold, by its annotation; those that are not here are mappings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLog:
    """One finished multi-agent episode, the unit of this package.

    ``t_start`` and ``t_end`` count env steps of the whole run (all copies of the env together). Mappings are
    keyed by agent; ``joined`` holds, for those who came late, the step after which they did. Team figures are properties,
    never stored. ``bound`` and ``slack`` are None without a shield.
    """

    env_name: str
    env_index: int = 0
    episode: int
    split: Split = "train"
    seed: int | None = None
    t_start: int
    t_end: int
    update: int | None = None
    wall_time: float
    length: int
    capped: bool = False
    returns: Mapping[AgentID, float]
    costs: Mapping[AgentID, float]
    lengths: Mapping[AgentID, int]
    ends: Mapping[AgentID, End]
    first_violation: Mapping[AgentID, int | None]
    joined: Mapping[AgentID, int] = field(default_factory=dict)
    overrides: Mapping[AgentID, int] = field(default_factory=dict)
    fallbacks: Mapping[AgentID, int] = field(default_factory=dict)
    unverified: Mapping[AgentID, int] = field(default_factory=dict)
    bound: Mapping[AgentID, float | None] = field(default_factory=dict)
    slack: Mapping[AgentID, float | None] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    agent_metrics: Mapping[AgentID, Mapping[str, float]] = field(default_factory=dict)

    @property
    def interrupted(self) -> bool:
        """Whether any agent was abandoned midway; such episodes are kept out of averages."""
        return "interrupted" in self.ends.values()

    @property
    def team_return(self) -> float:
        """Sum of the agents' returns."""
        return sum(self.returns.values())

    @property
    def mean_return(self) -> float:
        """Mean of the agents' returns, the figure quoted for mpe2 tasks."""
        return self.team_return / max(1, len(self.returns))

    @property
    def team_cost(self) -> float:
        """Sum of the agents' costs."""
        return sum(self.costs.values())

    @property
    def violated(self) -> bool:
        """Whether any agent's cost was above 0 at any step."""
        return any(step is not None for step in self.first_violation.values())

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values: one line of ``episodes.jsonl``."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> EpisodeLog:
        """Inverse of `to_json`; keys that a newer version added are ignored.

        Raises:
            CorruptFileError: a required field is missing or not of its type, or an end is not one of `End`.
        """
        kinds = _kinds_of(cls)
        try:
            log = cls(**{key: value for key, value in row.items() if key in kinds})
        except TypeError as error:
            raise CorruptFileError(f"not an episode log: {error}") from error
        for name, kind in kinds.items():
            value = getattr(log, name)
            if not isinstance(value, kind):
                raise CorruptFileError(
                    f"not an episode log: {name} is {str(value)[:80]!r}, no {kind[0].__name__}"
                )
        for name in ("returns", "costs", "lengths"):
            for agent, value in getattr(log, name).items():
                if not isinstance(value, (int, float)):
                    raise CorruptFileError(
                        f"not an episode log: {name}[{agent!r}] is {str(value)[:80]!r}, no number"
                    )
        for end in log.ends.values():
            if end not in _ENDS:
                raise CorruptFileError(f"episode log with unknown end {str(end)[:80]!r}")
        return log


@cache
def _kinds_of(record: type) -> dict[str, tuple[type, ...]]:
    """The JSON values that each field may hold. Looked up once: logs have many thousands of lines."""
    return {field.name: _KINDS.get(str(field.type), (dict, Mapping)) for field in fields(record)}


@dataclass(slots=True, kw_only=True)
class GroupStep:
    """What one step of E envs means for the A agents of one group. Arrays are reused: copy what you keep.

    ``obs`` is what to act on next, after autoreset, and ``active`` says who acts. ``rewards``, ``costs`` (NaN where the env
    gave none), ``terminated`` and ``truncated`` belong to the action just played; rows of agents that did not act are 0.
    The true last observation of the n agents that ended in this step is ``final_obs``, row k being
    that of agent ``final_agent[k]`` in env ``final_env[k]``.
    """

    obs: NDArray[Any]  # (E, A, *obs_shape)
    active: NDArray[np.bool_]  # (E, A)
    action_mask: NDArray[np.bool_] | None  # (E, A, choices); None: every action is allowed
    rewards: NDArray[np.float64]  # (E, A)
    costs: NDArray[np.float64]  # (E, A)
    terminated: NDArray[np.bool_]  # (E, A)
    truncated: NDArray[np.bool_]  # (E, A)
    final_obs: NDArray[Any]  # (n, *obs_shape)
    final_env: NDArray[np.intp]  # (n,)
    final_agent: NDArray[np.intp]  # (n,)


@dataclass(slots=True, kw_only=True)
class VectorStep:
    """One step of all envs: arrays per group, the episodes that it closed, and the infos as the envs gave them.

    Worker processes keep the infos to themselves, and leave those dicts empty, unless they are asked for them.
    """

    groups: dict[str, GroupStep]
    episodes: list[EpisodeLog]
    infos: list[dict[AgentID, dict[str, Any]]]  # per env: of the observation to act on
    # Per env, of the last step where an episode ended:
    final_infos: list[dict[AgentID, dict[str, Any]] | None]
    # Per env that has a Markov ``state_key()``: of the state to act on, and of the last one where an episode ended.
    keys: list[bytes] | None = None
    final_keys: list[bytes | None] | None = None
    # (E,) Copies that had to start afresh, cut off as truncated: their process died, or their episode was not to be rebuilt.
    # Nothing is learned from the step itself.
    lost: NDArray[np.bool_] | None = None


class EnvCopies(Protocol):
    """Many copies of one env, wherever and however they are played."""

    num_envs: int
    env_name: str
    groups: tuple[AgentGroup, ...]

    @property
    def frames(self) -> int:
        """Env steps so far, all copies together."""
        ...

    def state(self) -> dict[str, Any]:
        """All from which they can go on later, as plain values and arrays; between two steps."""
        ...

    def close(self) -> list[EpisodeLog]:
        """Close every copy; returns the episodes that this interrupted. Safe to call twice."""
        ...


class VectorEnv(EnvCopies, Protocol):
    """Many copies of one env side by side, with same-step autoreset. `marl_tools.vector` implements it."""

    episodes_started: int

    def resume(self, *, frames: int, episodes_started: int) -> None:
        """Count on from an earlier run's figures; call it before `reset`."""
        ...

    def reset(self, seed: int) -> VectorStep:
        """Start every copy afresh; all later episodes' seeds follow from ``seed``."""
        ...

    def restore(self, seed: int, state: Mapping[str, Any]) -> VectorStep:
        """Stand where `state` was taken, in place of `reset`; what comes then is what would have come there.

        A copy whose running episode cannot be rebuilt exactly starts a fresh one: it is among the ``lost``, its old episode
        among the ``episodes``, interrupted, and the log says so.
        """
        ...

    def step(
        self, actions: Mapping[str, NDArray[Any]], notes: Sequence[Mapping[str, Any]] | None = None
    ) -> VectorStep:
        """Play ``actions[group]``, shape (E, A, *action_shape). ``notes[env]`` maps a note's name to {agent: value}."""
        ...


class SplitVectorEnv(VectorEnv, Protocol):
    """A vector env whose parts can be stepped each at its own pace: one plays while another's actions are computed."""

    @property
    def parts(self) -> tuple[slice, ...]:
        """The copies of each part; together all copies, in order."""
        ...

    def send(
        self,
        part: int,
        actions: Mapping[str, NDArray[Any]],
        notes: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Begin a step of one part, with ``actions`` and ``notes`` of its copies alone."""
        ...

    def receive(self, part: int) -> VectorStep:
        """The result of the step begun last, of that part's copies alone; copy 0 of it is the part's first."""
        ...
