"""Saved experience as torch batches: windows that tell the truth, drawn as asked, and good to learn from."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from marl_tools.core.errors import ConfigError, CorruptFileError
from marl_tools.core.segment_files import SegmentWriter, segment_files
from marl_tools.core.wrappers import TrajectoryRecorder
from marl_tools.training.segments import SegmentWindows
from tests.core.segments import agent, segment
from tests.envs_for_tests import Team


def write(folder, *segments, writer="w"):
    files = SegmentWriter(folder, writer)
    for each in segments:
        files.put(each)
    files.flush()
    return folder


def numbered(first, steps, **changes):
    """An agent whose rewards count from ``first`` on, and whose observation k is reward k."""
    rewards = np.arange(first, first + steps, dtype=float)
    obs = np.arange(first, first + steps + 1, dtype=np.float32)[:, None]
    return agent(steps, rew=rewards, obs=obs, **changes)


def test_a_window_holds_what_was_saved_and_zeros_after_it(tmp_path):
    write(tmp_path, segment({"a": numbered(1, 3, end="terminated", masked=True)}))
    (batch,) = SegmentWindows(tmp_path, length=5, batch_size=2).once()
    assert batch.obs.shape == (1, 6, 1)
    assert batch.obs[0, :, 0].tolist() == [1, 2, 3, 4, 0, 0]
    assert batch.next_obs[0, :, 0].tolist() == [2, 3, 4, 0, 0]
    assert batch.rewards.tolist() == [[1, 2, 3, 0, 0]]
    assert batch.actions.tolist() == [[0, 1, 2, 0, 0]]
    assert batch.valid.tolist() == [[True, True, True, False, False]]
    assert batch.terminated.tolist() == [[False, False, True, False, False]]
    assert batch.bootstrap.tolist() == [[True, True, False, False, False]]
    assert batch.t.tolist() == [[10, 11, 12, 0, 0]]
    assert batch.costs[0, :3].isnan().all()
    assert not batch.truncated.any()
    assert not batch.cut.any()
    assert batch.action_mask is not None
    assert batch.action_mask.sum(-1).tolist() == [[3, 3, 3, 3, 0, 0]]
    assert batch.agents == ("a",)
    assert batch.rewards.dtype == torch.float32
    assert batch.to("meta").obs.device.type == "meta"


def test_death_truncation_cut_and_a_windows_own_end_are_told_apart(tmp_path):
    ends = {"dead": "terminated", "late": "truncated", "capped": "capped", "cut": None, "left": "interrupted"}
    write(tmp_path, segment({name: numbered(0, 4, end=end) for name, end in ends.items()}))
    batches = list(SegmentWindows(tmp_path, length=3, batch_size=10).once())
    last = {}
    for batch in batches:
        for row, name in enumerate(batch.agents):
            at = int(batch.valid[row].sum()) - 1
            flags = (batch.terminated, batch.truncated, batch.cut, batch.bootstrap)
            last[name, int(batch.t[row, at])] = tuple(bool(flag[row, at]) for flag in flags)
    for name in ends:
        # The first window ends because it is full: the file goes on.
        assert last[name, 12] == (False, False, False, True)
    assert last["dead", 13] == (True, False, False, False)
    assert last["late", 13] == last["capped", 13] == (False, True, False, True)
    assert last["cut", 13] == last["left", 13] == (False, False, True, True)


def test_one_pass_brings_every_transition_exactly_once(tmp_path):
    steps, first = [1, 7, 2, 5, 3, 12], 0
    for number, count in enumerate(steps):
        write(
            tmp_path / f"env{number % 2}",
            segment({"a": numbered(first, count), "b": numbered(first + count, 2)}),
        )
        first += count + 2
    folders = [tmp_path / "env0", tmp_path / "env1"]
    windows = SegmentWindows(folders, length=3, batch_size=4, cache_bytes=0)
    assert windows.transitions == first
    for _ in range(2):
        batches = list(windows.once())
        rewards = torch.cat([batch.rewards[batch.valid] for batch in batches])
        assert sorted(rewards.tolist()) == list(range(first))
        assert {len(batch.agents) for batch in batches[:-1]} == {4}


def test_draws_follow_the_seed_and_every_transition_is_as_likely_as_any_other(tmp_path):
    write(tmp_path, segment({"a": numbered(0, 2), "b": numbered(2, 6)}), segment({"a": numbered(8, 12)}))

    def firsts(seed, batches=30):
        drawn = iter(SegmentWindows(tmp_path, length=2, batch_size=100, seed=seed))
        return torch.cat([next(drawn).rewards[:, 0] for _ in range(batches)])

    assert torch.equal(firsts(0), firsts(0))
    assert not torch.equal(firsts(0), firsts(1))
    counts = torch.bincount(firsts(0).long(), minlength=20)
    # 3000 draws from 20: 150 each, give or take five standard deviations.
    assert len(counts) == 20
    assert (counts - 150).abs().max() < 60


def test_weights_are_the_shares_of_the_folders(tmp_path):
    write(tmp_path / "small", segment({"a": numbered(0, 2)}))
    write(tmp_path / "large", segment({"a": numbered(100, 50)}))
    folders = {tmp_path / "small": 3.0, tmp_path / "large": 1.0}
    drawn = iter(SegmentWindows(folders, length=1, batch_size=2000))
    share = float((next(drawn).rewards < 50).float().mean())
    assert abs(share - 0.75) < 0.05
    unweighted = iter(SegmentWindows(list(folders), length=1, batch_size=2000))
    assert float((next(unweighted).rewards < 50).float().mean()) < 0.1
    never = iter(SegmentWindows({tmp_path / "small": 0.0, tmp_path / "large": 1.0}, length=1, batch_size=500))
    assert (next(never).rewards >= 100).all()


@pytest.mark.parametrize("weights", [(0.0, 0.0), (-1.0, 1.0), (float("nan"), 1.0), (float("inf"), 1.0)])
def test_weights_that_are_none_are_refused(tmp_path, weights):
    with pytest.raises(ConfigError, match="weights are finite"):
        SegmentWindows(dict(zip(("x", "y"), weights, strict=True)), length=1)
    write(tmp_path / "a", segment())
    (tmp_path / "b").mkdir()
    with pytest.raises(ConfigError, match="has a weight of 1 but no transitions"):
        SegmentWindows({tmp_path / "a": 1.0, tmp_path / "b": 1.0}, length=1)


def test_a_folder_without_transitions_says_what_is_expected(tmp_path):
    write(tmp_path, segment({"a": agent(0, end="interrupted", arrival=(1.0, 0.0))}))
    with pytest.raises(ConfigError, match=r"no transitions in .*a TrajectoryRecorder saved to"):
        SegmentWindows(tmp_path, length=1)
    (tmp_path / "run" / "trajectories" / "env").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"saved to, such as .*run/trajectories$"):
        SegmentWindows(tmp_path / "run", length=1)


def test_agents_can_be_chosen_and_unlike_ones_do_not_fit_into_one_batch(tmp_path):
    write(tmp_path, segment({"a": numbered(0, 9), "wide": agent(9, obs=np.zeros((10, 7), np.float32))}))
    with pytest.raises(ConfigError, match=r"have unlike observations, actions or masks.*agents="):
        next(iter(SegmentWindows(tmp_path, length=1)))
    for agents in (["a"], lambda name: name != "wide"):
        assert set(next(iter(SegmentWindows(tmp_path, length=1, agents=agents))).agents) == {"a"}


def test_only_a_bounded_part_of_the_files_is_in_memory(tmp_path):
    write(tmp_path, *[segment({"a": numbered(0, 100)}) for _ in range(10)])
    size = segment({"a": numbered(0, 100)}).nbytes
    windows = SegmentWindows(tmp_path, length=2, batch_size=8, cache_bytes=3 * size)
    drawn = iter(windows)
    for _ in range(20):
        next(drawn)
        assert 1 <= len(windows._open) <= 3
        assert windows._open_bytes == size * len(windows._open)


def test_files_may_come_and_go_while_batches_are_drawn(tmp_path):
    write(tmp_path, segment({"a": numbered(0, 5)}), segment({"a": numbered(50, 5)}))
    windows = SegmentWindows(tmp_path, length=1, batch_size=50)
    segment_files(tmp_path)[0].unlink()
    assert next(iter(windows)).rewards.min() >= 50
    assert torch.cat([batch.rewards for batch in windows.once()]).min() >= 50
    write(tmp_path, segment({"a": numbered(900, 5)}))
    windows.refresh()
    assert windows.transitions == 10
    assert next(iter(windows)).rewards.max() >= 900


def test_a_damaged_file_is_told_by_name(tmp_path):
    write(tmp_path, segment())
    (path,) = segment_files(tmp_path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CorruptFileError, match=path.name):
        SegmentWindows(tmp_path, length=1)


def test_workers_of_a_data_loader_draw_different_windows(tmp_path):
    write(tmp_path, segment({"a": numbered(0, 1000)}))
    windows = SegmentWindows(tmp_path, length=1, batch_size=20)
    loader = iter(DataLoader(windows, batch_size=None, num_workers=2))
    first, second = (next(loader).rewards for _ in range(2))
    assert not torch.equal(first, second)
    alone = iter(pickle.loads(pickle.dumps(windows)))
    assert torch.equal(next(alone).rewards, first)


def test_a_policy_is_recovered_from_what_it_played(tmp_path):
    # Which of three actions depends on the second number of the observation alone.
    env = TrajectoryRecorder(Team(2, max_cycles=40), tmp_path, (10, 30))
    for episode in range(10):
        observations, _ = env.reset(seed=episode)
        while env.agents:
            actions = {name: int(observations[name][1] * 3) for name in env.agents}
            observations, *_ = env.step(actions)
    env.close()
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))
    optimiser = torch.optim.Adam(network.parameters(), 0.05)
    windows = SegmentWindows(tmp_path, length=8, batch_size=32)
    assert windows.transitions == 2 * 10 * 40
    for _, batch in zip(range(80), windows, strict=False):
        seen, played = batch.obs[:, :-1][batch.valid], batch.actions[batch.valid]
        loss = torch.nn.functional.cross_entropy(network(seen[:, 1:]), played)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    unseen = torch.rand(1000, 1)
    agreed = network(unseen).argmax(-1) == (unseen[:, 0] * 3).long()
    assert agreed.float().mean() > 0.95
