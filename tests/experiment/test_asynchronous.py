"""Runs that collect beside their updates, and what a run of either kind leaves in its logs when a step of it fails."""

import json
import os
import signal
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from marl_tools.core.errors import ConfigError
from marl_tools.core.io import read_jsonl
from marl_tools.experiment.run import Interrupted, resume, train
from marl_tools.training.ippo import IPPO
from tests.envs_for_tests import Team
from tests.experiment.test_resume import Killed, assert_same_run, kill_in_update, rows, settings


def sort_by_split(folder):
    """Training episodes before evaluations, each in their order: what is played ahead is logged before an evaluation."""
    path = folder / "episodes.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(sorted(lines, key=lambda line: '"split": "eval"' in line)))


@pytest.mark.parametrize(
    "changes",
    [
        {"constraint": "lagrange", "native": True},
        {"env": "simple_spread", "share": "none", "eval_every": 2, "eval_episodes": 2},
    ],
    ids=["lagrange-native", "evaluations"],
)
def test_an_asynchronous_run_that_was_killed_ends_as_if_it_had_not_been(tmp_path, monkeypatch, changes):
    changes = {"asynchronous": True, **changes}
    train(settings(tmp_path / "whole", **changes))
    kill_in_update(monkeypatch, update=3)
    with pytest.raises(Killed):
        train(settings(tmp_path / "cut", **changes))
    resume(tmp_path / "cut")
    for name in ("whole", "cut"):
        sort_by_split(tmp_path / name)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    updates = rows(tmp_path / "cut" / "updates.jsonl")
    assert [row["lag"] for row in updates] == [0, 1, 1, 1, 1, 1]
    assert all("ratio_max" in figures for row in updates[1:] for figures in row["groups"].values())


def test_an_asynchronous_run_in_workers_that_is_interrupted_in_an_update_goes_on_to_the_bit(
    tmp_path, monkeypatch
):
    changes = {
        "asynchronous": True,
        "env": "simple_spread",
        "final_policy_eval_episodes": 0,
        "timesteps": 256,
    }
    train(settings(tmp_path / "whole", **changes))
    learn = IPPO._learn

    def interrupted(self, rollout):
        if self.updates == 2:
            monkeypatch.undo()
            raise KeyboardInterrupt
        return learn(self, rollout)

    monkeypatch.setattr(IPPO, "_learn", interrupted)
    with pytest.raises(
        Interrupted, match="stopped at 128 of 256 env steps; the state at env step 128 is saved"
    ):
        train(settings(tmp_path / "cut", workers=2, **changes))
    resume(tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_shield_and_asynchronous_do_not_go_together(tmp_path):
    with pytest.raises(ConfigError, match="asynchronous with a shield: it learns with every update"):
        settings(tmp_path, shield="ledger", asynchronous=True)


class Failing(Team):
    """Copies of this fail, whichever steps then, at the step ``fails_at`` of all copies together."""

    steps, fails_at = 0, 143

    def step(self, actions):
        Failing.steps += 1
        if Failing.steps == self.fails_at:
            raise RuntimeError("a step that fails")
        return super().step(actions)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_episodes_that_end_in_the_step_that_fails_are_logged_and_none_is_there_twice_later(
    tmp_path, asynchronous
):
    Failing.steps = 0
    changes = {
        "env": "tests.experiment.test_asynchronous:Failing",
        "env_kwargs": {"max_cycles": 9},
        "final_policy_eval_episodes": 0,
        "asynchronous": asynchronous,
    }
    folder = tmp_path / "a"
    with pytest.raises(RuntimeError, match="a step that fails"):
        train(settings(folder, **changes))
    logs = [row for row in read_jsonl(folder / "episodes.jsonl") if row["t_end"] > 128]
    # In step 36, the end of everyone's fourth episode, two copies were done when the third failed.
    assert [(row["env_index"], row["episode"], row["t_end"], row["update"]) for row in logs] == [
        (0, 3, 144, 2),
        (1, 3, 144, 2),
    ]
    resume(folder, trusted=True)
    logs = rows(folder / "episodes.jsonl")
    assert len({(row["env_index"], row["episode"]) for row in logs}) == len(logs) == 40
    assert [json.dumps(row["returns"]) for row in rows(folder / "episodes.replayed.jsonl")] == [
        json.dumps(dict.fromkeys(("agent_0", "agent_1", "agent_2"), 45.0))
    ] * 2


class Mortal(Team):
    """The copy that takes its 40th step first kills the worker process in which it lives, once in all."""

    def __init__(self, mark):
        super().__init__(2, max_cycles=5)
        self.mark, self.steps = Path(mark), 0

    def step(self, actions):
        self.steps += 1
        if self.steps == 40:
            with suppress(FileExistsError):
                # One only gets to make the file, though both workers may come here at once.
                self.mark.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(actions)


def mortal(mark):
    return Mortal(mark)


def test_a_worker_that_dies_beside_an_update_is_replaced_and_every_step_but_the_one_is_in_the_log(tmp_path):
    folder = tmp_path / "run"
    train(
        settings(
            folder,
            env="tests.experiment.test_asynchronous:mortal",
            env_kwargs={"mark": str(tmp_path / "mark")},
            final_policy_eval_episodes=0,
            asynchronous=True,
            workers=2,
            on_worker_death="restart",
        )
    )
    updates, episodes = rows(folder / "updates.jsonl"), rows(folder / "episodes.jsonl")
    assert [row["frames"] for row in updates] == [64, 128, 192, 256, 320, 384]
    assert [row["lag"] for row in updates] == [0, 1, 1, 1, 1, 1]
    # Nobody learns from the step that was lost, of two agents in each of its two copies.
    assert [row["agent_steps"] for row in updates] == [128, 128, 124, 128, 128, 128]
    gaps = []
    for copy in range(4):
        own = [row for row in episodes if row["env_index"] == copy]
        assert [row["episode"] for row in own] == list(range(len(own)))
        assert all(row["t_end"] - row["t_start"] == 4 * row["length"] for row in own)
        gaps.append([after["t_start"] - before["t_end"] for before, after in pairwise(own)])
    # The clock went on over the step that was lost; of all others each is in one episode.
    assert sorted(sum(gap) for gap in gaps) == [0, 0, 4, 4]
    died = [row for row in episodes if "interrupted" in row["ends"].values()]
    assert [(row["length"], row["lengths"]) for row in died] == [(4, {"agent_0": 4, "agent_1": 4})] * 2
