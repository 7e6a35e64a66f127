"""Multipliers against torch's Adam and against a written-out PID loop."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from marl_tools.core.errors import ConfigError
from marl_tools.core.types import EpisodeLog
from marl_tools.safety.lagrange import LagrangeConfig, LagrangeConstraint, Multiplier

COSTS = [3.0, 0.0, 5.5, 1.0, 1.0, 0.2, 8.0, 0.0, 0.0]


def test_adam_follows_torch_s_adam_ascending_with_projection() -> None:
    config = LagrangeConfig(cost_limit=1.0)
    multiplier = Multiplier(config)
    lam = torch.nn.Parameter(torch.tensor(config.multiplier_init, dtype=torch.float64))
    optimiser = torch.optim.Adam([lam], lr=config.multiplier_lr)
    for cost in COSTS:
        optimiser.zero_grad()
        (-lam * (cost - config.cost_limit)).backward()
        optimiser.step()
        lam.data.clamp_(min=0.0)
        assert multiplier.update(cost) == pytest.approx(lam.item(), abs=1e-9)


def test_pid_is_proportional_integral_and_rising_derivative() -> None:
    config = LagrangeConfig(cost_limit=1.0, multiplier_init=0.0, pid_gains=(0.5, 0.1, 0.2), pid_smoothing=0.5)
    multiplier = Multiplier(config, "pid")
    integral, smooth = 0.0, COSTS[0]
    for cost in COSTS:
        integral = max(0.0, integral + 0.1 * (cost - 1.0))
        earlier, smooth = smooth, 0.5 * smooth + 0.5 * cost
        expected = max(0.0, 0.5 * (cost - 1.0) + integral + 0.2 * max(0.0, smooth - earlier))
        assert multiplier.update(cost) == pytest.approx(expected)


@pytest.mark.parametrize("dual", ["adam", "pid"])
@pytest.mark.parametrize("nothing", [None, math.nan])
def test_without_finished_episodes_the_step_is_skipped_and_the_state_stays(dual, nothing) -> None:
    multiplier = Multiplier(LagrangeConfig(), dual)
    multiplier.update(2.0)
    before = multiplier.state()
    multiplier.update(nothing)
    assert multiplier.state() == before


@pytest.mark.parametrize("dual", ["adam", "pid"])
@given(costs=st.lists(st.floats(0, 50), max_size=30), limit=st.floats(0, 5))
def test_a_multiplier_never_falls_below_0_and_rises_while_the_limit_is_broken(dual, costs, limit) -> None:
    multiplier = Multiplier(LagrangeConfig(cost_limit=limit), dual)
    assert all(multiplier.update(cost) >= 0.0 for cost in costs)
    fresh = Multiplier(LagrangeConfig(cost_limit=limit), dual)
    values = [fresh.update(limit + 1.0) for _ in range(20)]
    assert values == sorted(values)
    assert values[-1] > values[0]


@pytest.mark.parametrize("dual", ["adam", "pid"])
def test_a_saved_multiplier_goes_on_exactly(dual) -> None:
    whole, first = Multiplier(LagrangeConfig(), dual), Multiplier(LagrangeConfig(), dual)
    for cost in COSTS[:4]:
        whole.update(cost)
        first.update(cost)
    second = Multiplier(LagrangeConfig(), dual)
    second.load(first.state())
    for cost in COSTS[4:]:
        assert second.update(cost) == whole.update(cost)


def log(costs: dict[str, float], end: str = "truncated") -> EpisodeLog:
    return EpisodeLog(
        env_name="fake",
        episode=0,
        t_start=0,
        t_end=1,
        wall_time=0.0,
        length=1,
        returns=dict.fromkeys(costs, 0.0),
        costs=costs,
        lengths=dict.fromkeys(costs, 1),
        ends=dict.fromkeys(costs, end),
        first_violation=dict.fromkeys(costs),
    )


def test_each_agent_s_advantage_is_weighed_by_its_own_multiplier() -> None:
    constraint = LagrangeConstraint(["a", "b"], LagrangeConfig())
    constraint.multipliers["a"].value, constraint.multipliers["b"].value = 3.0, 0.0
    reward, cost = np.full((1, 1, 2), 1.0, np.float32), np.full((1, 1, 2), 0.5, np.float32)
    np.testing.assert_allclose(constraint.penalise(["b", "a"], reward, cost), [[[1.0, -0.125]]])


def test_a_dual_step_looks_at_the_last_ten_episodes_or_all_new_ones() -> None:
    constraint = LagrangeConstraint(["a"], LagrangeConfig())
    constraint.update([log({"a": float(cost)}) for cost in range(4)])
    assert constraint.figures()["costs"]["a"] == 1.5
    constraint.update([log({"a": 10.0}) for _ in range(7)])
    assert constraint.figures()["costs"]["a"] == pytest.approx((1 + 2 + 3 + 70) / 10)
    reference = Multiplier(LagrangeConfig())
    for cost in (1.5, 7.6, 5.0):
        reference.update(cost)
    constraint.update([log({"a": 10.0 * (i % 2)}) for i in range(40)])
    assert constraint.multipliers["a"].value == pytest.approx(reference.value)


def test_interrupted_episodes_and_unknown_agents_do_not_count() -> None:
    constraint = LagrangeConstraint(["a"], LagrangeConfig())
    before = constraint.state()
    constraint.update([log({"a": 9.0}, "interrupted"), log({"b": 9.0})])
    assert constraint.state() == before


def test_a_saved_constraint_goes_on_exactly() -> None:
    whole, part = (LagrangeConstraint(["a", "b"], LagrangeConfig(), "pid") for _ in range(2))
    for constraint in (whole, part):
        constraint.update([log({"a": 3.0, "b": 0.0})])
    resumed = LagrangeConstraint(["a", "b"], LagrangeConfig(), "pid")
    resumed.load(json.loads(json.dumps(part.state())))
    for constraint in (whole, resumed):
        constraint.update([log({"a": 1.0, "b": 2.0})])
    assert resumed.state() == whole.state()


@pytest.mark.parametrize(
    "wrong",
    [
        {"cost_limit": -1.0},
        {"cost_limit": math.inf},
        {"multiplier_init": -0.1},
        {"multiplier_lr": 0.0},
        {"pid_gains": (0.1, -1.0, 0.0)},
        {"pid_smoothing": 1.0},
    ],
)
def test_settings_that_cannot_work_are_named(wrong) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LagrangeConfig(**wrong)
