"""Runs whose envs are stepped in worker processes."""

from __future__ import annotations

import pytest

from marl_tools.core.errors import ConfigError
from marl_tools.core.io import read_jsonl
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.run import train

RUN = {
    "env": "tests.probe_envs:Probe",
    "timesteps": 192,
    "num_envs": 4,
    "rollouts": 16,
    "video_episodes": 0,
    "final_policy_eval_episodes": 2,
}


def run(out, **settings):
    """The episodes and the updates of a run, without what a clock says."""
    train(RunConfig.from_flat({**RUN, "out": str(out), **settings}))
    episodes = [{**row, "wall_time": 0} for row in read_jsonl(out / "episodes.jsonl")]
    updates = [row["groups"] for row in read_jsonl(out / "updates.jsonl")]
    return sorted(episodes, key=lambda row: (row["t_end"], row["env_index"])), updates


def test_a_run_with_workers_is_the_run_without(tmp_path):
    assert run(tmp_path / "workers", workers=2) == run(tmp_path / "serial")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": -1}, "workers=-1: must be a whole number of at least 0"),
        ({"workers": 5}, "workers=5, but num_envs=4: a worker needs a copy of its own"),
        (
            {"workers": 1, "pipeline": True},
            "pipeline with workers=1: it takes turns between two workers or more",
        ),
        ({"worker_timeout": 0.0}, "worker_timeout=0.0: must be a positive number of seconds"),
        ({"workers": 2, "native": True}, "workers=2 with native: a native env is one batch"),
        (
            {"workers": 2, "pipeline": True, "shield": "ledger"},
            "pipeline with a shield: it decides on all copies at once",
        ),
        (
            {"workers": 2, "on_worker_death": "restart", "shield": "ledger"},
            "on_worker_death='restart' with a shield",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_flat({**RUN, "env": "crossing", **settings})
