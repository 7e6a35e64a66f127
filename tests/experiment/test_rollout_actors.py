"""Runs whose rollouts two Ray actors play, against the same runs in one process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

from marl_tools.core.cluster import connect
from marl_tools.core.errors import ConfigError, EnvError, WorkerError
from marl_tools.experiment.run import resume, train
from tests.envs_for_tests import Team
from tests.experiment.spread_runs import RUNS
from tests.experiment.test_ranks import assert_nearly_same_run
from tests.experiment.test_resume import rows, settings

pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = [
    pytest.mark.slow,
    # Files of its child processes, which Ray leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore:(unclosed file|subprocess .* is still running):ResourceWarning"),
]

ACTORS = {"rollout_actors": 2}


class Failing(Team):
    """Fails, hangs or kills its process at its 40th step, unless ``mark`` exists or this is the test's process."""

    def __init__(self, way: str, mark: str, parent: int) -> None:
        super().__init__(max_cycles=9, deaths={"agent_1": 4}, births={"agent_2": 3})
        self.way, self.mark, self.parent, self.steps = way, Path(mark), parent, 0

    def step(self, actions):
        self.steps += 1
        if self.steps == 40 and os.getpid() != self.parent and not self.mark.exists():
            if self.way == "fail":
                raise EnvError("the floor is gone")
            if self.way == "hang":
                time.sleep(600)
            if self.way == "kill-once":
                self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(actions)


def failing(way: str, mark: str, parent: int) -> Failing:
    return Failing(way, mark, parent)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Ray is started once: runs join what this process is in already."""
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    node = {"num_cpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "temp_dir": folder})
    try:
        with connect(cluster.address):
            yield
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def of_failing(tmp_path, way, **changes):
    kwargs = {"way": way, "mark": str(tmp_path / "mark"), "parent": os.getpid()}
    env = {"env": "tests.experiment.test_rollout_actors:failing", "env_kwargs": kwargs, "num_envs": 2}
    return {**env, "checkpoint_every": 100, **changes}


def test_two_actors_play_what_one_process_plays(tmp_path):
    changes = RUNS["lagrange-native"]
    train(settings(tmp_path / "one", **changes))
    train(settings(tmp_path / "two", **changes, **ACTORS))
    assert_nearly_same_run(tmp_path / "two", tmp_path / "one")


def test_an_actor_that_is_killed_is_named_and_the_run_goes_on_from_before(tmp_path):
    changes = of_failing(tmp_path, "kill")
    with pytest.raises(
        WorkerError, match=r"rollout actor 0 with copies 0 to 0 of team_v0 was lost: "
    ) as lost:
        train(settings(tmp_path / "two", **changes, **ACTORS))
    note = f"env step 64 is saved. Go on with: marl-tools train --resume {tmp_path / 'two'}"
    assert note in "\n".join(lost.value.__notes__)
    # On this machine alone: what was saved does not know where it was played.
    there = tmp_path / "two" / "config.json"
    there.write_text(json.dumps({**json.loads(there.read_text()), "rollout_actors": 0}))
    resume(tmp_path / "two", trusted=True)
    train(settings(tmp_path / "one", **changes))
    assert_nearly_same_run(tmp_path / "two", tmp_path / "one")


def test_an_actor_that_is_killed_may_be_replaced_and_its_rollout_is_played_again(tmp_path):
    changes = of_failing(tmp_path, "kill-once", on_worker_death="restart")
    train(settings(tmp_path / "two", **changes, **ACTORS))
    assert (tmp_path / "mark").exists()
    train(settings(tmp_path / "one", **changes))
    assert_nearly_same_run(tmp_path / "two", tmp_path / "one")
    assert not any("interrupted" in row["ends"].values() for row in rows(tmp_path / "two" / "episodes.jsonl"))


def test_what_an_env_raises_in_an_actor_comes_with_its_place_there(tmp_path):
    with pytest.raises(EnvError, match="the floor is gone") as error:
        train(settings(tmp_path / "two", **of_failing(tmp_path, "fail"), rollout_actors=1))
    notes = "\n".join(error.value.__notes__)
    assert "On the cluster:" in notes
    assert "in copy 0 of team_v0, episode seed" in notes


def test_an_actor_that_hangs_is_named_in_time(tmp_path):
    changes = of_failing(tmp_path, "hang", rollout_timeout=2.0, rollout_actors=1)
    told = "rollout actor 0 with copies 0 to 1 of team_v0 did not answer for 2 s"
    with pytest.raises(WorkerError, match=told):
        train(settings(tmp_path / "two", **changes))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rollout_actors": 5}, "5 rollout actors, but num_envs=4"),
        ({**ACTORS, "shield": "ledger"}, "2 rollout actors with a shield"),
        ({**ACTORS, "asynchronous": True}, "2 rollout actors with asynchronous"),
        ({**ACTORS, "workers": 2}, "2 rollout actors with workers=2: take more rollout actors"),
        ({**ACTORS, "trajectories": True}, "2 rollout actors with trajectories"),
    ],
)
def test_settings_that_do_not_go_with_actors_are_refused_at_once(tmp_path, changes, told):
    with pytest.raises(ConfigError, match=told):
        settings(tmp_path, **changes)
