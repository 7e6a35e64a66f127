"""The record of one agent: its 14 columns by hand, live and out of a real run's folder."""

import math
import shutil

import numpy as np
import pytest

from marl_tools.core.errors import ConfigError
from marl_tools.core.io import read_jsonl
from marl_tools.core.run_logs import read_episodes
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.run import train
from marl_tools.training.record import AgentRecord
from tests.core.test_types import episode
from tests.envs_for_tests import Team

SLM_COLUMNS = [
    "epi",
    "t",
    "wall_t",
    "opt_step",
    "frame",
    "fps",
    "total_reward",
    "total_reward_ma",
    "loss",
    "lr",
    "explore_var",
    "entropy_coef",
    "entropy",
    "grad_norm",
]


def played(t_end, *, a=1.0, split="train", **changes):
    return episode(t_end=t_end, split=split, returns={"a": a, "b": -a}, **changes)


def test_a_record_starts_with_nothing_known():
    record = AgentRecord("a", 0)
    for name in ("explore_var", "entropy_coef", "loss", "lr", "mean_entropy", "mean_grad_norm", "opt_step"):
        assert math.isnan(getattr(record, name))
    assert all(map(math.isnan, (record.total_reward, record.total_reward_ma, record.eval_reward_ma)))
    assert (record.agent, record.env_index, record.window) == ("a", 0, 100)


def test_an_empty_table_has_the_columns_and_their_types():
    for split in ("train", "eval"):
        frame = AgentRecord("a").frame(split)
        assert list(frame.columns) == [*SLM_COLUMNS, "agent", "split", "env_name"]
        assert len(frame) == 0
        assert (frame.dtypes["epi"], frame.dtypes["loss"]) == (np.int64, np.float64)


def test_each_row_holds_what_was_known_when_its_episode_came():
    record = AgentRecord("a", window=2)
    record.add(played(10, a=1.0, lengths={"a": 4, "b": 10}), wall_t=2.0)
    record.set(
        loss=0.5, lr=1e-3, explore_var=0.9, entropy_coef=0.01, mean_entropy=0.7, mean_grad_norm=2, opt_step=8
    )
    record.add(played(30, a=3.0), wall_t=5.0)
    record.set(loss=0.25)
    record.add(played(40, a=8.0), wall_t=8.0)
    frame = record.frame()
    assert frame[["epi", "t", "frame"]].to_numpy().tolist() == [[1, 4, 10], [2, 3, 30], [3, 3, 40]]
    assert frame.wall_t.tolist() == [2.0, 5.0, 8.0]
    assert frame.fps.tolist() == [5.0, 6.0, 5.0]
    assert frame.total_reward.tolist() == [1.0, 3.0, 8.0]
    assert frame.total_reward_ma.tolist() == [1.0, 2.0, 5.5]
    assert record.total_reward == 8.0
    assert record.total_reward_ma == 5.5
    learned = ["opt_step", "loss", "lr", "explore_var", "entropy_coef", "entropy", "grad_norm"]
    assert frame.loc[0, learned].isna().all()
    assert frame.loc[1, learned].tolist() == [8, 0.5, 1e-3, 0.9, 0.01, 0.7, 2]
    assert frame.loc[2, learned].tolist() == [8, 0.25, 1e-3, 0.9, 0.01, 0.7, 2]
    assert frame[["agent", "split", "env_name"]].drop_duplicates().to_numpy().tolist() == [
        ["a", "train", "team_v0"]
    ]


def test_training_and_evaluation_are_kept_apart():
    record = AgentRecord("a")
    for t, (a, split) in enumerate([(1.0, "train"), (10.0, "eval"), (3.0, "train"), (30.0, "eval")]):
        record.add(played(t + 1, a=a, split=split))
    train_frame, eval_frame = record.frame("train"), record.frame("eval")
    assert train_frame.total_reward.tolist() == [1.0, 3.0]
    assert eval_frame.total_reward.tolist() == [10.0, 30.0]
    assert train_frame.epi.tolist() == eval_frame.epi.tolist() == [1, 2]
    assert (record.total_reward_ma, record.eval_reward_ma, record.total_reward) == (2.0, 20.0, 3.0)
    train_frame.loc[0, "total_reward"] = 99.0
    assert record.frame("train").total_reward.tolist() == [1.0, 3.0]
    with pytest.raises(ConfigError, match="split='test'"):
        record.frame("test")


def test_only_the_agents_own_whole_episodes_of_its_copy_count():
    record = AgentRecord("a", 1)
    assert not record.add(played(1, env_index=0))
    assert record.add(played(2, env_index=1))
    assert record.add(played(2, split="eval", env_index=0)), "evaluations have envs of their own"
    assert not record.add(episode(t_end=3, env_index=1, returns={"b": 1.0}))
    assert not record.add(played(4, env_index=1, ends={"a": "interrupted", "b": "interrupted"}))
    assert [len(record.frame(split)) for split in ("train", "eval")] == [1, 1]


def test_an_unknown_scalar_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"mean_entropi=0.5: .* mean 'mean_entropy'"):
        AgentRecord("a").set(mean_entropi=0.5)


# --- out of a run folder ------------------------------------------------------------------------------------------


class Uneven(Team):
    """Two agents in groups of their own, since their actions differ."""

    def __init__(self):
        super().__init__(2, max_cycles=5, deaths={"agent_1": 3})
        from gymnasium.spaces import Discrete

        self._action_spaces["agent_1"] = Discrete(2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("record") / "run"
    train(
        RunConfig.from_flat(
            {
                "env": "tests.training.test_record:Uneven",
                "timesteps": 60,
                "num_envs": 2,
                "rollouts": 10,
                "learning_epochs": 2,
                "mini_batches": 2,
                "hidden": (8,),
                "entropy_schedule": "linear",
                "eval_every": 1,
                "eval_episodes": 2,
                "video_episodes": 0,
                "final_policy_eval_episodes": 2,
                "out": str(folder),
            }
        )
    )[0]
    return folder


def test_a_real_runs_record_agrees_with_its_logs_row_by_row(run):
    updates = list(read_jsonl(run / "updates.jsonl"))
    logs = [log for log in read_episodes(run / "episodes.jsonl") if not log.interrupted]
    assert len(updates) == 3
    for agent, length in (("agent_0", 5), ("agent_1", 3)):
        record = AgentRecord.from_run(run, agent, window=3)
        for split, count in (("train", 12), ("eval", 6)):
            frame = record.frame(split)
            mine = [log for log in logs if log.split == split]
            assert len(frame) == len(mine) == count
            assert frame.total_reward.tolist() == [log.returns[agent] for log in mine]
            assert frame.frame.tolist() == [log.t_end for log in mine]
            assert set(frame.t) == {length}
            for row, log in zip(frame.itertuples(), mine, strict=True):
                (figures,) = (
                    group for name, group in updates[log.update]["groups"].items() if name_of(name) == agent
                )
                learned = (row.loss, row.lr, row.entropy_coef, row.entropy, row.grad_norm)
                keys = ("loss", "learning_rate", "entropy_coef", "entropy", "grad_norm")
                assert learned == tuple(figures[key] for key in keys)
                assert row.opt_step == 4 * (log.update + 1)
                assert math.isnan(row.explore_var)
            assert frame.entropy_coef.is_monotonic_decreasing
            assert frame.entropy_coef.nunique() == 3
            last = [log.returns[agent] for log in mine[-3:]]
            assert frame.total_reward_ma.iloc[-1] == pytest.approx(sum(last) / 3)
            assert frame.wall_t.is_monotonic_increasing
            assert (frame.fps == frame.frame / frame.wall_t).all()
        spent = sum(row["collect_seconds"] + row["update_seconds"] for row in updates)
        assert record.frame("eval").wall_t.iloc[-1] == pytest.approx(spent)
        assert record.frame("train").wall_t.iloc[-1] < spent


def name_of(group):
    """Both groups are called after the stem of their only agent."""
    return {"agent": "agent_0", "agent-2": "agent_1"}[group]


def test_a_copys_record_has_its_own_episodes_and_all_evaluations(run):
    parts = [AgentRecord.from_run(run, "agent_0", index) for index in (0, 1)]
    assert [len(part.frame("train")) for part in parts] == [6, 6]
    assert [len(part.frame("eval")) for part in parts] == [6, 6]


def test_an_agent_that_nobody_knows_is_refused_with_those_there_are(run):
    with pytest.raises(ConfigError, match=r"no episode of agent 'agent_7'\. Did you mean 'agent_"):
        AgentRecord.from_run(run, "agent_7")


def test_a_folder_that_is_no_run_is_said_to_be_none(tmp_path):
    (tmp_path / "file").touch()
    for place in ("nowhere", "file", ""):
        with pytest.raises(ConfigError, match="is not a run folder"):
            AgentRecord.from_run(tmp_path / place, "agent_0")


def test_a_run_in_the_middle_of_an_update_has_rows_without_scalars(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / "updates.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    frame = AgentRecord.from_run(tmp_path / "run", "agent_0").frame()
    assert frame.loss.isna().tolist() == [False] * 8 + [True] * 4
    assert frame.wall_t.isna().tolist() == frame.loss.isna().tolist()
    assert frame.total_reward.notna().all()
