"""A run whose envs are stepped directly, against the same run by PettingZoo's turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marl_tools.core.io import load_from_file, read_jsonl
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.run import train

RUN = {
    "timesteps": 256,
    "num_envs": 2,
    "rollouts": 64,
    "hidden": [8],
    "learning_epochs": 1,
    "final_policy_eval_episodes": 2,
    "video_episodes": 0,
}


def without_times(rows: Any) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in row.items() if not key.endswith(("_time", "seconds"))} for row in rows
    ]


@pytest.mark.parametrize(
    ("env", "kwargs"), [("simple_spread", {"continuous_actions": True}), ("simple_tag", {})]
)
def test_a_run_has_the_same_episodes_and_updates_either_way(
    env: str, kwargs: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    logs = []
    for direct in (True, False):
        config = RunConfig.from_flat(
            {**RUN, "env": env, "env_kwargs": kwargs, "direct": direct, "out": str(tmp_path / f"{direct}")}
        )
        folder = train(config)[0].folder
        assert load_from_file(folder, "versions.json")["direct"] is direct
        assert ("stepped directly" in capsys.readouterr().err) is direct
        logs.append(
            [without_times(read_jsonl(folder / name)) for name in ("episodes.jsonl", "updates.jsonl")]
            + [load_from_file(folder, "evaluation-trained.json")]
        )
    assert logs[0] == logs[1]
    assert len(logs[0][0]) == 10


def test_other_envs_are_stepped_as_ever_and_versions_say_so(tmp_path: Path):
    config = RunConfig.from_flat({**RUN, "env": "crossing", "out": str(tmp_path / "run")})
    folder = train(config)[0].folder
    assert load_from_file(folder, "versions.json")["direct"] is False
