"""EpisodeLog: derived figures and its JSON form."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from marl_tools.core.errors import CorruptFileError
from marl_tools.core.types import EpisodeLog


def episode(**changes: Any) -> EpisodeLog:
    fields: dict[str, Any] = {
        "env_name": "team_v0",
        "episode": 0,
        "t_start": 0,
        "t_end": 3,
        "wall_time": 0.5,
        "length": 3,
        "returns": {"a": 1.0, "b": 4.0},
        "costs": {"a": 0.0, "b": 2.0},
        "lengths": {"a": 3, "b": 2},
        "ends": {"a": "truncated", "b": "terminated"},
        "first_violation": {"a": None, "b": 2},
    }
    return EpisodeLog(**{**fields, **changes})


def test_team_figures_are_derived_from_the_agents():
    log = episode()
    assert (log.team_return, log.mean_return, log.team_cost) == (5.0, 2.5, 2.0)
    assert log.violated
    assert not log.interrupted
    assert not episode(first_violation={"a": None, "b": None}).violated
    assert episode(ends={"a": "interrupted", "b": "terminated"}).interrupted
    assert episode(returns={}).mean_return == 0.0


@settings(deadline=None, max_examples=40)
@given(
    returns=st.dictionaries(st.text(), st.floats(allow_nan=False)),
    seed=st.none() | st.integers(0, 2**64),
    bound=st.dictionaries(st.text(), st.none() | st.floats(allow_nan=False)),
    metrics=st.dictionaries(st.text(), st.dictionaries(st.text(), st.floats(allow_nan=False))),
)
def test_a_log_survives_one_line_of_json(returns, seed, bound, metrics):
    log = episode(returns=returns, seed=seed, bound=bound, agent_metrics=metrics)
    assert EpisodeLog.from_json(json.loads(json.dumps(log.to_json()))) == log


def test_keys_of_a_newer_version_are_ignored():
    assert EpisodeLog.from_json({**episode().to_json(), "mood": "good"}) == episode()


@pytest.mark.parametrize("field", ["returns", "ends", "t_end"])
def test_a_line_without_a_required_field_is_corrupt(field):
    row = episode().to_json()
    del row[field]
    with pytest.raises(CorruptFileError, match=field):
        EpisodeLog.from_json(row)


def test_a_line_with_an_unknown_end_is_corrupt():
    with pytest.raises(CorruptFileError, match="unknown end 'bored'"):
        EpisodeLog.from_json({**episode().to_json(), "ends": {"a": "bored"}})
    with pytest.raises(CorruptFileError, match="not an episode log"):
        EpisodeLog.from_json({**episode().to_json(), "ends": None})


def test_a_log_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        episode().length = 4
