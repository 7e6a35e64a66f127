"""Multipliers against torch's Adam and against a written-out PID loop."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from marl_tools.core.errors import ConfigError
from marl_tools.safety.lagrange import LagrangeConfig, Multiplier

COSTS = [3.0, 0.0, 5.5, 1.0, 1.0, 0.2, 8.0, 0.0, 0.0]


def test_adam_follows_torch_s_adam_ascending_with_projection() -> None:
    config = LagrangeConfig(cost_limit=1.0)
    multiplier = Multiplier(config)
    lam = torch.nn.Parameter(torch.tensor(config.initial, dtype=torch.float64))
    optimiser = torch.optim.Adam([lam], lr=config.learning_rate)
    for cost in COSTS:
        optimiser.zero_grad()
        (-lam * (cost - config.cost_limit)).backward()
        optimiser.step()
        lam.data.clamp_(min=0.0)
        assert multiplier.update(cost) == pytest.approx(lam.item(), abs=1e-9)


def test_pid_is_proportional_integral_and_rising_derivative() -> None:
    config = LagrangeConfig(cost_limit=1.0, dual="pid", initial=0.0, gains=(0.5, 0.1, 0.2), smoothing=0.5)
    multiplier = Multiplier(config)
    integral, smooth = 0.0, COSTS[0]
    for cost in COSTS:
        integral = max(0.0, integral + 0.1 * (cost - 1.0))
        earlier, smooth = smooth, 0.5 * smooth + 0.5 * cost
        expected = max(0.0, 0.5 * (cost - 1.0) + integral + 0.2 * max(0.0, smooth - earlier))
        assert multiplier.update(cost) == pytest.approx(expected)


@pytest.mark.parametrize("dual", ["adam", "pid"])
@pytest.mark.parametrize("nothing", [None, math.nan])
def test_without_finished_episodes_the_step_is_skipped_and_the_state_stays(dual, nothing) -> None:
    multiplier = Multiplier(LagrangeConfig(dual=dual))
    multiplier.update(2.0)
    before = multiplier.state()
    multiplier.update(nothing)
    assert multiplier.state() == before


@pytest.mark.parametrize("dual", ["adam", "pid"])
@given(costs=st.lists(st.floats(0, 50), max_size=30), limit=st.floats(0, 5))
def test_a_multiplier_never_falls_below_0_and_rises_while_the_limit_is_broken(dual, costs, limit) -> None:
    multiplier = Multiplier(LagrangeConfig(dual=dual, cost_limit=limit))
    assert all(multiplier.update(cost) >= 0.0 for cost in costs)
    fresh = Multiplier(LagrangeConfig(dual=dual, cost_limit=limit))
    values = [fresh.update(limit + 1.0) for _ in range(20)]
    assert values == sorted(values)
    assert values[-1] > values[0]


@pytest.mark.parametrize("dual", ["adam", "pid"])
def test_a_saved_multiplier_goes_on_exactly(dual) -> None:
    whole, first = Multiplier(LagrangeConfig(dual=dual)), Multiplier(LagrangeConfig(dual=dual))
    for cost in COSTS[:4]:
        whole.update(cost)
        first.update(cost)
    second = Multiplier(LagrangeConfig(dual=dual))
    second.load(first.state())
    for cost in COSTS[4:]:
        assert second.update(cost) == whole.update(cost)


def test_the_penalised_advantage_weighs_cost_against_reward() -> None:
    multiplier = Multiplier(LagrangeConfig(initial=3.0))
    reward, cost = np.array([1.0, 2.0]), np.array([0.5, -1.0])
    np.testing.assert_allclose(multiplier.penalise(reward, cost), [-0.125, 1.25])


@pytest.mark.parametrize(
    "wrong",
    [
        {"cost_limit": -1.0},
        {"cost_limit": math.inf},
        {"initial": -0.1},
        {"learning_rate": 0.0},
        {"gains": (0.1, -1.0, 0.0)},
        {"smoothing": 1.0},
    ],
)
def test_settings_that_cannot_work_are_named(wrong) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LagrangeConfig(**wrong)
