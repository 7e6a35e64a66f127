"""What the templates show of many runs: the comparison, the films side by side, the failures, and a row a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_tools.bench.comparison import Comparison, compare
from marl_tools.bench.pairs import Pair
from marl_tools.bench.plan_folder import FINISHED, PLAN
from marl_tools.bench.report.clips import Clip, Film
from marl_tools.bench.report.figures import Figure
from marl_tools.bench.report.findings import Finding, remedy
from marl_tools.bench.report.gather import Collection, Reading
from marl_tools.bench.report.method_figures import described, overall_figures, task_figures
from marl_tools.bench.report.methods import method_colors, method_name, task_name, tasks_of
from marl_tools.bench.report.run_view import Tile
from marl_tools.bench.report.tables import certified, mean_return
from marl_tools.bench.report.wording import STATES, is_number, mapping, number
from marl_tools.bench.scores import Aggregate, Cell
from marl_tools.core.errors import MarlToolsError


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One line of the list of runs; ``place`` is its number on the page."""

    place: int
    run: Reading
    method: str
    task: str
    seed: Any
    color: int
    share: float | None
    mean: float | None
    violations: Mapping[str, Any]
    remedy: str

    @property
    def words(self) -> str:
        """What the text filter looks in."""
        return " ".join(
            str(part)
            for part in (
                self.run.id,
                self.method,
                self.task,
                f"s{self.seed}",
                self.run.state,
                self.run.summary.detail or "",
            )
        ).lower()


@dataclass(frozen=True, kw_only=True)
class TaskView:
    """The methods on one task."""

    name: str
    cells: Sequence[Cell]
    figures: list[Figure]
    films: list[tuple[str, Clip, str]]


@dataclass(frozen=True, kw_only=True)
class PlanView:
    """Many runs as their page shows them."""

    name: str
    tiles: list[Tile]
    states: list[tuple[str, int]]
    findings: list[Finding]
    sentences: list[str]
    tasks: list[TaskView]
    overall: list[Figure]
    aggregates: list[tuple[str, Mapping[str, Aggregate]]]
    pairs: Sequence[Pair]
    cells: Sequence[Cell]
    excluded: list[Mapping[str, str]]
    problems: list[str]
    failures: list[RunRow]
    rows: list[RunRow]
    colors: Mapping[str, int]


def compared(collection: Collection) -> tuple[Comparison | None, list[str]]:
    """The comparison of a plan, or why there is none; runs that are done are not read again."""
    if not (collection.folder / PLAN).exists():
        return None, [
            "These runs are no plan: they are listed, not compared. `marl-tools bench` makes plans."
        ]
    try:
        known = {run.id: run.known for run in collection.runs.values() if run.known}
        return compare(collection.folder, known=known), []
    except (MarlToolsError, OSError) as error:
        return None, [str(error)]


def plan_view(
    collection: Collection, film: Film, comparison: Comparison | None, problems: Sequence[str]
) -> PlanView:
    """All that is said of many runs but their details."""
    colors = method_colors(collection)
    rows = [_row(place, run, colors) for place, run in enumerate(collection.runs.values())]
    states = Counter(row.run.state for row in rows)
    excluded = collection.plan.get("except")
    return PlanView(
        name=collection.name,
        tiles=_tiles(collection, rows, comparison),
        states=[(state, states[state]) for state in STATES if states[state]],
        findings=[finding for task in tasks_of(collection) if (finding := _finding(task, comparison))],
        sentences=comparison.sentences if comparison else [],
        tasks=[_task(name, rows, film, comparison, colors) for name in tasks_of(collection)],
        overall=overall_figures(comparison, colors) if comparison else [],
        aggregates=_aggregates(comparison),
        pairs=comparison.pairs if comparison else [],
        cells=[cell for cell in comparison.cells if cell.finished] if comparison else [],
        excluded=[mapping(row) for row in excluded] if isinstance(excluded, list) else [],
        problems=[*collection.problems, *problems],
        failures=[
            row for row in rows if row.run.state in ("failed", "damaged", "interrupted") or row.run.problems
        ],
        rows=rows,
        colors=colors,
    )


def _row(place: int, run: Reading, colors: Mapping[str, int]) -> RunRow:
    after, team = mean_return(run, "trained"), certified(run)
    planned = run.summary.timesteps
    return RunRow(
        place=place,
        run=run,
        method=method_name(run),
        task=task_name(run),
        seed=run.config.get("seed", run.planned_seed),
        color=colors[method_name(run)],
        share=min(1.0, run.summary.frames / planned) if planned else None,
        mean=after["mean"] if after else run.summary.mean_return,
        violations=team.row if team else {},
        remedy=remedy(run),
    )


def _task(
    name: str, rows: Sequence[RunRow], film: Film, comparison: Comparison | None, colors: Mapping[str, int]
) -> TaskView:
    mine: dict[str, list[Reading]] = {method: [] for method in colors}
    for row in rows:
        if row.task == name and row.run.training.episodes:
            mine[row.method].append(row.run)
    runs = {method: readings for method, readings in mine.items() if readings}
    films = []
    for method, readings in runs.items() if film.videos != "none" else ():
        filmed = next((run for run in readings if run.clips), None)
        if filmed is not None:
            films.append((method, filmed.clips[0], film.source(filmed.clips[0])))
    cells = [cell for cell in comparison.cells if cell.task == name and cell.planned] if comparison else []
    return TaskView(name=name, cells=cells, figures=task_figures(name, runs, comparison, colors), films=films)


def _tiles(collection: Collection, rows: Sequence[RunRow], comparison: Comparison | None) -> list[Tile]:
    done = sum(row.run.state in FINISHED for row in rows)
    tiles = [Tile("Runs done", f"{done} of {len(rows)}")]
    if comparison:
        tiles.append(Tile("Methods", str(len(comparison.methods)), ", ".join(comparison.methods)))
        tiles.append(Tile("Tasks", str(len(comparison.tasks)), ", ".join(comparison.tasks)))
        tiles.append(Tile("Seeds", str(len(comparison.seeds))))
    tiles.append(Tile("Env steps", f"{sum(row.run.summary.frames for row in rows):,}"))
    failed = sum(row.run.state in ("failed", "damaged") for row in rows)
    if failed:
        tiles.append(Tile("Failed or damaged", str(failed), "see below"))
    return tiles


def _finding(task: str, comparison: Comparison | None) -> Finding | None:
    """A task in one sentence: what each method earns, and how often it violates."""
    cells = [cell for cell in comparison.cells if cell.task == task and cell.finished] if comparison else []
    earned = [
        f"{described(spread)} for {cell.method}"
        for cell in cells
        if (spread := cell.figures.get("final_return")) is not None
    ]
    risks = [
        f"{described(spread, percent=True)} for {cell.method}"
        for cell in cells
        if (spread := cell.figures.get("violation")) is not None
    ]
    if not earned:
        return None
    said = f"On {task} the trained teams’ return is {_listed(earned)}"
    if risks:
        said += f"; anyone violates in {_listed(risks)} of the evaluation episodes"
    return Finding("plain", f"{said}.")


def _listed(parts: Sequence[str]) -> str:
    return ", ".join(parts[:-1]) + f" and {parts[-1]}" if len(parts) > 1 else parts[0]


def _aggregates(comparison: Comparison | None) -> list[tuple[str, Mapping[str, Aggregate]]]:
    """Scores over all tasks, a row a method, by statistic."""
    table: dict[str, dict[str, Aggregate]] = {}
    for aggregate in comparison.aggregates if comparison else ():
        if aggregate.measure == "score":
            table.setdefault(aggregate.method, {})[aggregate.statistic] = aggregate
    return list(table.items())


def spread_text(value: Any, percent: bool = False) -> str:
    """An `Aggregate` or a `Spread` as its mean and interval."""
    if isinstance(value, Aggregate):
        between = f" ({number(value.low, percent=percent)} to {number(value.high, percent=percent)})"
        return number(value.value, percent=percent) + (between if is_number(value.low) else "")
    return described(value, percent=percent) if value else "–"
