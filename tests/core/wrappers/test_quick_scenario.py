"""Scenarios with quicker expressions: what is exchanged, what is not, and that every length is NumPy's."""

from __future__ import annotations

import ast
import inspect
import traceback
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from mpe2._mpe_utils.scenario import BaseScenario
from mpe2.simple_spread import simple_spread

from marl_tools.core.wrappers import quick_scenario as module
from marl_tools.core.wrappers.quick_scenario import quick_scenario

LENGTHS = [
    (module._length, lambda vector: np.sqrt(np.sum(np.square(vector)))),
    (module._squared_length, lambda vector: np.sum(np.square(vector))),
]


@given(st.floats(), st.floats())
@example(-0.0, -0.0)
@example(5e-324, 1e-160)
@example(1e200, float("inf"))
def test_every_length_of_two_is_numpys_to_the_bit(x: float, y: float):
    vector = np.array([x, y])
    with np.errstate(all="ignore"):
        for quick, numpys in LENGTHS:
            expected, got = numpys(vector), quick(vector)
            assert type(got) is type(expected)
            assert np.isnan(got) if np.isnan(expected) else got.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "vector",
    [[3, 4], np.array([3, 4]), np.arange(4.0), np.float64(2), np.ones((2, 2)), np.ones(2, np.float32)],
)
def test_other_vectors_are_left_to_numpy(vector: Any):
    for quick, numpys in LENGTHS:
        assert quick(vector) == numpys(vector)
        assert np.asarray(quick(vector)).dtype == np.asarray(numpys(vector)).dtype


@pytest.mark.parametrize(
    ("source", "rewritten"),
    [
        ("np.sqrt(np.sum(np.square(a - b)))", "_length(a - b)"),
        ("2 * np.sum(np.square(a.state.c))", "2 * _squared_length(a.state._c)"),
        ("np.sqrt(np.sum(np.square(np.sqrt(np.sum(np.square(x))))))", "_length(_length(x))"),
        ("np.sum(np.square(x), axis=0)", "np.sum(np.square(x), axis=0)"),
        ("np.sum(np.square(x, y))", "np.sum(np.square(x, y))"),
        ("np.sum(np.square(x, out=y))", "np.sum(np.square(x, out=y))"),
        ("np.sqrt(np.sum(x))", "np.sqrt(np.sum(x))"),
        ("math.sqrt(np.sum(np.square(x)))", "math.sqrt(_squared_length(x))"),
        ("a.state.p_pos = b.state.p_vel", "a.state.p_pos = b.state._p_vel"),
        ("a.p_pos", "a.p_pos"),
        ("a.state.other", "a.state.other"),
    ],
)
def test_exactly_these_expressions_are_exchanged(source: str, rewritten: str):
    assert ast.unparse(module._Rewrite().visit(ast.parse(source))) == rewritten


def test_a_quick_scenario_shares_its_state_and_leaves_the_first_alone():
    before = inspect.getsource(simple_spread.Scenario.reward), simple_spread.Scenario.reward
    scenario = simple_spread.Scenario()
    quick = quick_scenario(scenario)
    assert isinstance(quick, simple_spread.Scenario)
    assert type(quick).reward is not simple_spread.Scenario.reward
    assert "_length" in type(quick).is_collision.__code__.co_names
    scenario.terminate_on_success = True
    assert quick.terminate_on_success
    assert (inspect.getsource(simple_spread.Scenario.reward), simple_spread.Scenario.reward) == before
    assert not hasattr(simple_spread, "_length")


def test_an_error_in_a_quick_scenario_points_to_its_line_in_mpe2():
    with pytest.raises(AttributeError) as caught:
        quick_scenario(simple_spread.Scenario()).is_collision(None, None)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert last.filename == simple_spread.__file__
    assert last.line == "delta_pos = agent1.state.p_pos - agent2.state.p_pos"


class Inheriting(simple_spread.Scenario):
    def reward(self, agent: Any, world: Any) -> float:
        return super().reward(agent, world) + 1


def test_a_class_that_asks_its_parent_keeps_that_function():
    assert quick_scenario(Inheriting()).reward.__func__ is Inheriting.reward


def test_a_class_without_source_is_left_as_it_is():
    namespace: dict[str, Any] = {"Base": BaseScenario, "np": np, "__name__": simple_spread.__name__}
    exec(
        "class Made(Base):\n  make_world = reset_world = observation = None\n  reward = lambda *a: 2",
        namespace,
    )
    assert quick_scenario(namespace["Made"]()).reward() == 2
