"""Segments: a stretch of one episode as arrays per agent, in one ``.npz`` that anyone can read without pickle."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.npz import MAX_BYTES, NpzReader, pack_npz
from marl_tools.core.space_json import space_from_json
from marl_tools.core.spaces import AgentSpaces
from marl_tools.core.types import AgentID, End

SCHEMA = "marl_tools.segment/1"

_FIELDS = {"rew": np.float64, "cost": np.float64, "term": np.bool_, "trunc": np.bool_, "t": np.int64}
"""What has one number per transition, and its type."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AgentSegment:
    """What one agent saw, did and got in T transitions. Arrays that were read from a file are read-only.

    ``obs[k]`` is what ``act[k]`` was chosen on and ``obs[k + 1]`` what it led to, the true final observation included.
    ``end`` is None where the agent goes on in the next segment (a cut); ``interrupted`` and a cut set neither ``term`` nor
    ``trunc``. ``arrival`` is the reward and the cost (NaN: none) that some envs give an agent in the step in which
    it appears: it has played nothing yet, so they belong to no transition. The spaces are as `space_to_json` writes them.
    """

    obs: NDArray[
        Any
    ]  # (T + 1, ...) as the observation space has it; Dict and Tuple flattened, without the mask
    act: NDArray[Any]  # (T, ...) as the env got it; Dict and Tuple flattened
    rew: NDArray[np.float64]  # (T,)
    cost: NDArray[np.float64]  # (T,), NaN where the env gave none
    term: NDArray[np.bool_]  # (T,)
    trunc: NDArray[np.bool_]  # (T,)
    t: NDArray[np.int64]  # (T,) steps of the episode before this one
    mask: NDArray[np.bool_] | None = None  # (T + 1, choices): allowed actions
    end: End | None = None
    arrival: tuple[float, float] | None = None
    observation_space: Mapping[str, Any] = field(default_factory=dict)
    action_space: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rew)

    @property
    def nbytes(self) -> int:
        """Memory that the arrays take."""
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by their names in the file."""
        named = {name: getattr(self, name) for name in ("obs", "act", *_FIELDS)}
        return named if self.mask is None else {**named, "mask": self.mask}

    @property
    def total_reward(self) -> float:
        """Sum of the rewards, the one of the arrival included: the segment's part of the agent's return."""
        return math.fsum((*self.rew, *(self.arrival or ())[:1]))

    @property
    def total_cost(self) -> float:
        """Sum of the costs, the one of the arrival included; where the env gave none they count as 0."""
        return math.fsum(cost for cost in (*self.cost, *(self.arrival or ())[1:]) if not math.isnan(cost))

    def spaces(self) -> AgentSpaces:
        """The agent's spaces.

        Raises:
            CorruptFileError: what the file says of them makes no space.
        """
        return AgentSpaces(space_from_json(self.observation_space), space_from_json(self.action_space))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """A stretch of one episode. ``final``: the episode is over with it; else the next segment begins where it ends.

    ``t_start`` counts steps of the episode, ``frame`` env steps of the whole run, as `EpisodeLog.t_start` does.
    """

    env: str
    env_index: int = 0
    split: str = "train"
    seed: int | None = None
    episode: int
    segment: int
    t_start: int
    frame: int = 0
    final: bool
    agents: Mapping[AgentID, AgentSegment]

    @property
    def transitions(self) -> int:
        """Agent-steps in it."""
        return sum(map(len, self.agents.values()))

    @property
    def nbytes(self) -> int:
        """Memory that the arrays take."""
        return sum(agent.nbytes for agent in self.agents.values())


@dataclass(frozen=True, slots=True)
class LateSegment:
    """A segment that is put together when it is written, by whoever writes it, and not by the thread that steps the env."""

    make: Callable[[], Segment]
    nbytes: int


def pack_segment(segment: Segment, *, compress: bool = False) -> bytes:
    """The content of a segment's file. Members are called a0.obs, a1.act, ...: an agent's own name is only in the meta."""
    meta = {
        "schema": SCHEMA,
        **{name: getattr(segment, name) for name in _META},
        "agents": [
            {
                "name": str(name),
                "steps": len(agent),
                "end": agent.end,
                "masked": agent.mask is not None,
                "arrival": agent.arrival,
                "observation_space": agent.observation_space,
                "action_space": agent.action_space,
            }
            for name, agent in segment.agents.items()
        ],
    }
    arrays = {"meta": np.array(json.dumps(meta))}
    for index, agent in enumerate(segment.agents.values()):
        for name, array in agent.arrays.items():
            arrays[f"a{index}.{name}"] = array
    return pack_npz(arrays, compress=compress)


def read_meta(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The meta of a segment alone, checked: what `read_segment` makes a `Segment` of, without the arrays.

    Raises:
        FileNotFoundError, CorruptFileError: as `read_segment`.
    """
    with NpzReader(path) as file:
        return _checked_meta(file)


def read_segment(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> Segment:
    """Read one segment. Runs no code that the file holds, and believes nothing in it.

    Args:
        path: the file.
        max_bytes: refuse a file whose arrays claim more memory than this.

    Raises:
        FileNotFoundError: there is no such file (`prune` may have been quicker).
        CorruptFileError: whatever is wrong with it, by file and field; the file is left as it was.
    """
    with NpzReader(path, max_bytes=max_bytes) as file:
        meta = _checked_meta(file)
        rows = meta["agents"]
        agents = {row["name"]: _read_agent(file, f"a{index}", row, meta) for index, row in enumerate(rows)}
        return Segment(**{name: meta[name] for name in _META}, agents=agents)


_META: dict[str, tuple[type, ...]] = {
    "env": (str,),
    "env_index": (int,),
    "split": (str,),
    "seed": (int, type(None)),
    "episode": (int,),
    "segment": (int,),
    "t_start": (int,),
    "frame": (int,),
    "final": (bool,),
}
_AGENT_META: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "steps": (int,),
    "end": (str, type(None)),
    "masked": (bool,),
    "arrival": (list, type(None)),
    "observation_space": (dict,),
    "action_space": (dict,),
}


def _checked_meta(file: NpzReader) -> dict[str, Any]:
    text = file.read("meta")
    if text.shape or text.dtype.kind != "U":
        raise file.corrupt("meta", "it is no string")
    try:
        meta = json.loads(text.item())
    except (ValueError, RecursionError) as error:
        raise file.corrupt("meta", f"it is no JSON ({error})") from error
    if not isinstance(meta, dict) or meta.get("schema") != SCHEMA:
        found = meta.get("schema") if isinstance(meta, dict) else meta
        raise file.corrupt("meta.schema", f"it is {str(found)[:80]!r}; this version reads {SCHEMA!r}")
    _check_types(file, "meta", meta, _META)
    agents = meta.get("agents")
    if not isinstance(agents, list) or not all(isinstance(row, dict) for row in agents):
        raise file.corrupt("meta.agents", "it is no list of objects")
    for index, row in enumerate(agents):
        where = f"meta.agents[{index}]"
        _check_types(file, where, row, _AGENT_META)
        if row["end"] not in (None, *get_args(End)):
            raise file.corrupt(f"{where}.end", f"{row['end'][:80]!r} is no end")
        if row["arrival"] is not None:
            figures = row["arrival"]
            if len(figures) != 2 or not all(type(value) in (int, float) for value in figures):
                raise file.corrupt(f"{where}.arrival", "it is no pair of numbers")
            row["arrival"] = tuple(map(float, figures))
    if len({row["name"] for row in agents}) < len(agents):
        raise file.corrupt("meta.agents", "two agents have the same name")
    return meta


def _check_types(
    file: NpzReader, where: str, row: dict[str, Any], known: Mapping[str, tuple[type, ...]]
) -> None:
    for name, types in known.items():
        value = row.get(name)
        # `type` and not isinstance: True is no step, and a missing key no null.
        if name not in row or type(value) not in types:
            wanted = " or ".join(kind.__name__ for kind in types)
            raise file.corrupt(f"{where}.{name}", f"it is {str(value)[:80]!r}, not of type {wanted}")
        if type(value) is int and value < 0 and name != "seed":
            raise file.corrupt(f"{where}.{name}", f"it is {value}, below 0")


def _read_agent(file: NpzReader, prefix: str, row: dict[str, Any], meta: dict[str, Any]) -> AgentSegment:
    steps = row["steps"]
    lengths = {"obs": steps + 1, "act": steps, **dict.fromkeys(_FIELDS, steps)}
    if row["masked"]:
        lengths["mask"] = steps + 1
    arrays = {}
    for name, length in lengths.items():
        array = arrays[name] = file.read(f"{prefix}.{name}")
        if array.dtype.kind == "U":
            raise file.corrupt(f"{prefix}.{name}", "it holds strings")
        if array.ndim == 0 or len(array) != length:
            raise file.corrupt(f"{prefix}.{name}", f"its shape is {array.shape}, but it has {length} rows")
        if name in _FIELDS and (array.ndim != 1 or array.dtype != _FIELDS[name]):
            wanted = np.dtype(_FIELDS[name])
            raise file.corrupt(
                f"{prefix}.{name}", f"it is {array.dtype} {array.shape}, not {wanted} ({length},)"
            )
    if row["masked"] and (arrays["mask"].ndim != 2 or arrays["mask"].dtype != np.bool_):
        raise file.corrupt(f"{prefix}.mask", "it is no table of bools")
    _check_ends(file, prefix, row["end"], arrays)
    t = arrays["t"]
    if steps and (t[0] < meta["t_start"] or (np.diff(t) <= 0).any()):
        raise file.corrupt(f"{prefix}.t", f"it does not rise from t_start={meta['t_start']} on")
    kept = ("end", "arrival", "observation_space", "action_space")
    return AgentSegment(**arrays, **{name: row[name] for name in kept})


def _check_ends(file: NpzReader, prefix: str, end: str | None, arrays: Mapping[str, NDArray[Any]]) -> None:
    """The flags are set where the meta says that the agent ended, and nowhere else."""
    for name, ends in (("term", ("terminated",)), ("trunc", ("truncated", "capped"))):
        flags = arrays[name]
        if flags[:-1].any():
            raise file.corrupt(f"{prefix}.{name}", "it is set before the last step")
        if len(flags) and bool(flags[-1]) != (end in ends):
            raise file.corrupt(
                f"{prefix}.{name}", f"it is {bool(flags[-1])} at the end, but the meta says {end!r}"
            )
