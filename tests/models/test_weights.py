"""Weights of all lanes in one matrix: what is written to one side is read on the other."""

from __future__ import annotations

import math

import pytest
import torch
from gymnasium import spaces as gs

from marl_tools.core.spaces import AgentSpaces
from marl_tools.models.networks import ActorCritic, NetworkConfig
from marl_tools.models.weights import LaneWeights

SHAPES = {"mlp": gs.Box(-1, 1, (3,)), "cnn": gs.Box(0, 1, (6, 6, 3))}
networks = pytest.mark.parametrize("lanes", [1, 3])
kinds = pytest.mark.parametrize("kind", SHAPES)


def network(kind, lanes):
    spaces = AgentSpaces(SHAPES[kind], gs.Box(-1, 1, (2,)))
    generator = torch.Generator().manual_seed(0)
    return ActorCritic(spaces, lanes, NetworkConfig(hidden=(4,)), generator=generator)


@kinds
@networks
def test_a_network_keeps_its_weights_and_each_row_of_the_matrix_is_one_lane(kind, lanes):
    net = network(kind, lanes)
    before = [p.detach().clone() for p in net.parameters()]
    weights = LaneWeights(net)
    assert all(map(torch.equal, before, net.parameters()))
    assert weights.matrix.shape == (lanes, sum(p.numel() for p in before) // lanes)
    with torch.no_grad():
        weights.matrix[0] += 1.0
    for old, new in zip(before, net.parameters(), strict=True):
        assert torch.equal(new[0], old[0] + 1)
        assert torch.equal(new[1:], old[1:])


@kinds
@networks
def test_loading_a_state_writes_into_the_matrix(kind, lanes):
    net, other = network(kind, lanes), network(kind, lanes)
    weights = LaneWeights(net)
    other.load_state_dict({name: value + 0.5 for name, value in other.state_dict().items()})
    net.load_state_dict(other.state_dict())
    expected = torch.cat([p.detach().reshape(lanes, -1) for p in other.parameters()], 1)
    assert torch.equal(weights.matrix, expected)


@kinds
@networks
def test_a_matrix_is_split_like_the_parameters_and_joined_again(kind, lanes):
    net = network(kind, lanes)
    weights = LaneWeights(net)
    matrix = torch.arange(weights.matrix.numel(), dtype=torch.float32).view_as(weights.matrix)
    parts = weights.split(matrix)
    assert len(parts) == weights.count
    assert [part.shape for part in parts] == [p.shape for p in net.parameters()]
    assert torch.equal(weights.join(parts), matrix)


def test_each_lanes_gradient_is_clipped_by_itself():
    net = network("mlp", 2)
    weights = LaneWeights(net)
    first = next(net.parameters())
    assert first.grad is not None
    first.grad[0].view(-1)[0] = 0.3
    weights.gradients[1] = 7.0
    sevens = weights.gradients[1].numel()
    norms = weights.clip(0.5)
    assert norms.tolist() == pytest.approx([0.3, 7 * math.sqrt(sevens)], rel=1e-5)
    assert first.grad[0].view(-1)[0].item() == pytest.approx(0.3), "a small gradient beside a large one stays"
    assert weights.gradients[1].norm().item() == pytest.approx(0.5, rel=1e-4)
    weights.forget()
    assert not any(p.grad.any() for p in net.parameters() if p.grad is not None)
