"""A segment to write, read and damage."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from marl_tools.core.segments import AgentSegment, Segment, pack_segment

BOX = {"kind": "Box", "low": -1.0, "high": 1.0, "shape": [2], "dtype": "float32"}
DISCRETE = {"kind": "Discrete", "n": 3, "start": 0}


def agent(steps: int = 4, *, end: Any = "truncated", masked: bool = False, **changes: Any) -> AgentSegment:
    """``steps`` transitions that can be told apart."""
    flags = np.arange(steps) == steps - 1
    values: dict[str, Any] = {
        "obs": np.arange(2 * (steps + 1), dtype=np.float32).reshape(-1, 2),
        "act": np.arange(steps) % 3,
        "rew": np.arange(steps) * 0.5,
        "cost": np.full(steps, np.nan),
        "term": flags & (end == "terminated"),
        "trunc": flags & (end in ("truncated", "capped")),
        "t": np.arange(10, 10 + steps),
        "mask": np.ones((steps + 1, 3), bool) if masked else None,
        "end": end,
        "observation_space": BOX,
        "action_space": DISCRETE,
    }
    return AgentSegment(**{**values, **changes})


def segment(agents: Any = None, **changes: Any) -> Segment:
    values = {"env": "team_v0", "seed": 7, "episode": 3, "segment": 1, "t_start": 10, "final": True}
    return Segment(**{**values, **changes}, agents=agents or {"a": agent(), "b": agent(2, end="terminated")})


def rewritten(content: bytes, change: Any = None, **arrays: Any) -> bytes:
    """The archive with some members replaced (None: dropped), and its meta changed by ``change(dict)``."""
    with np.load(io.BytesIO(content)) as file:
        members = {name: file[name] for name in file.files}
    if change is not None:
        rows = json.loads(members["meta"].item())
        members["meta"] = np.array(json.dumps(change(rows) or rows))
    members.update(arrays)
    out = io.BytesIO()
    np.savez(out, **{name: array for name, array in members.items() if array is not None})
    return out.getvalue()


WHOLE = pack_segment(segment({"a": agent(masked=True, arrival=(1.0, np.nan)), "b": agent(2, end=None)}))
