"""Plan folders made by hand: finished runs with given figures, as a run would leave them."""

from pathlib import Path
from typing import Any

from marl_tools.core.io import JsonLines, save_to_file
from marl_tools.experiment.config import RunConfig
from tests.core.test_types import episode


def run_id(method: str, task: str, seed: int) -> str:
    return f"{method}-{task}-s{seed}-00000000"


def table(mean: float) -> dict[str, Any]:
    row = {"mean": mean, "interval": [mean - 1, mean + 1]}
    return {"returns": {"mean_over_agents": row, "agents": {"a": row}}}


def subject(estimate: float, upper: float, **more: Any) -> dict[str, Any]:
    return {"estimate": estimate, "interval": [0.0, upper], **more}


def finished_run(
    folder: Path,
    *,
    final: float | None = 1.0,
    random: float | None = 0.0,
    violation: float | None = None,
    upper: float = 1.0,
    violating: int = 0,
    episodes: int = 4,
    **settings: Any,
) -> Path:
    """``violating`` of its training ``episodes`` have a violation; ``violation`` is certified with ``upper`` as its bound."""
    config = RunConfig.from_flat({"env": "crossing", "max_risk": 0.1, **settings})
    save_to_file(config.to_flat(), folder, "config.json")
    with JsonLines(folder / "episodes.jsonl") as log:
        for number in range(episodes):
            step = 2 if number < violating else None
            row = episode(
                episode=number, update=number, t_end=10 * number + 10, first_violation={"a": None, "b": step}
            )
            log.append(row.to_json())
    with JsonLines(folder / "updates.jsonl") as log:
        for number in range(episodes):
            seconds = {"collect_seconds": 1.0, "update_seconds": 1.0}
            groups = {"g": {"optimiser_steps": 2, "rows": 1}}
            log.append({"update": number, "frames": 10 * number + 10, "groups": groups, **seconds})
    for policy, mean in (("random", random), ("trained", final)):
        if mean is not None:
            save_to_file(table(mean), folder, f"evaluation-{policy}.json")
    if violation is not None:
        agents = {"a": subject(violation / 2, upper, bound=0.25), "b": subject(0.0, upper)}
        refused = {name: {"refused": "cut off"} for name in ("a", "b", "team")}
        horizons = [
            {"h": 5, "subjects": {**agents, "team": subject(0.0, upper)}},
            {"h": 9, "subjects": {**agents, "team": subject(violation, upper)}},
            {"h": 50, "subjects": refused},
        ]
        save_to_file({"horizons": horizons}, folder, "certificate.json")
    save_to_file({"state": "done"}, folder, "done.json")
    return folder


def write_plan(folder: Path, methods: list[str], tasks: list[str], /, seeds: int, **more: Any) -> None:
    """A plan.json of all combinations."""
    runs = [
        {"id": run_id(method, task, seed), "method": method, "task": task, "seed": seed}
        for task in tasks
        for method in methods
        for seed in range(seeds)
    ]
    plan = {
        "name": "by hand",
        "settings": {},
        "methods": {method: {} for method in methods},
        "tasks": {task: {} for task in tasks},
        "seeds": list(range(seeds)),
        "except": [],
        "runs": runs,
    }
    save_to_file({**plan, **more}, folder, "plan.json")
