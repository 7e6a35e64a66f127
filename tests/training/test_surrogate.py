"""PPO's clipped objective against its own formula and autograd."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st

from marl_tools.training.surrogate import clipped_surrogate, normalised

numbers = st.floats(-3, 3, allow_subnormal=False)


@given(
    rows=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20),
    clip=st.sampled_from([0.05, 0.2, 0.5]),
)
def test_loss_and_slope_are_those_of_the_formula_under_autograd(rows, clip):
    log_ratio, advantages = torch.tensor(rows, dtype=torch.float64).T
    log_ratio.requires_grad_()
    ratio = log_ratio.exp()
    loss = -torch.min(advantages * ratio, advantages * ratio.clamp(1 - clip, 1 + clip))
    (slope,) = torch.autograd.grad(loss.sum(), log_ratio)
    ours = clipped_surrogate(log_ratio.detach(), advantages, clip)
    torch.testing.assert_close(ours.loss, loss.detach())
    torch.testing.assert_close(ours.slope, slope)
    assert (ours.kl >= -1e-12).all()
    assert ours.clipped.tolist() == [float(abs(r - 1) > clip) for r in ratio.tolist()]


def test_an_unchanged_policy_has_the_plain_policy_gradient():
    ours = clipped_surrogate(torch.zeros(3), torch.tensor([2.0, 0.0, -1.0]), 0.2)
    assert ours.loss.tolist() == ours.slope.tolist() == [-2.0, 0.0, 1.0]
    assert not ours.kl.any()
    assert not ours.clipped.any()


def test_what_has_gone_far_enough_is_pushed_no_further_but_may_come_back():
    log_ratio = torch.tensor([math.log(1.5), math.log(1.5), math.log(0.5), math.log(0.5)])
    ours = clipped_surrogate(log_ratio, torch.tensor([1.0, -1.0, -1.0, 1.0]), 0.2)
    torch.testing.assert_close(ours.slope, torch.tensor([0.0, 1.5, 0.0, -0.5]))
    torch.testing.assert_close(ours.loss, torch.tensor([-1.2, 1.5, 0.8, -0.5]))


def test_advantages_are_normalised_lane_by_lane_over_the_rows_that_count():
    advantages = torch.tensor([[1.0, 2.0, 3.0, 1e6], [5.0, 5.0, 5.0, 5.0]])
    share = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0.0], [0.25] * 4])
    ours = normalised(advantages, share)
    deviation = math.sqrt(2 / 3)
    assert ours[0, :3].tolist() == pytest.approx([-1 / deviation, 0.0, 1 / deviation], rel=1e-5)
    assert ours[1].tolist() == [0.0] * 4
