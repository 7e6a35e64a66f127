"""What a comparison shows and what it does not, in sentences that follow from its figures alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from marl_tools.bench.scores import MEASURES
from marl_tools.bench.statistics import caveats
from marl_tools.bench.statistics.paired import ENOUGH

if TYPE_CHECKING:
    from marl_tools.bench.comparison import Comparison
    from marl_tools.bench.pairs import Pair

ALPHA = 0.05
"""The level of every claim of a difference, after Holm's correction."""

_WILD = 5.0
"""Scores beyond it, in either direction, say more about their scale than about the run."""

_NAMES = {
    "score": "score",
    "violation": "violation probability of the trained team",
    "training_violations": "share of violating episodes in training",
}


def verdicts(comparison: Comparison) -> list[str]:
    """Sentences: what is missing, what scores mean, each difference that is shown or not, risks, and what limits all of it."""
    return [
        *_missing(comparison),
        *_scales(comparison),
        *_differences(comparison),
        *_risks(comparison),
        *_limits(comparison),
    ]


def _missing(comparison: Comparison) -> Iterator[str]:
    planned = len(comparison.runs) + len(comparison.missing)
    if not comparison.runs:
        yield f"None of the {planned} planned runs is finished: nothing is compared."
    elif comparison.missing:
        yield (
            f"{len(comparison.missing)} of {planned} planned runs are not among these figures: "
            f"{_some([f'{run.id} ({run.state})' for run in comparison.missing])}. What they would have shown is unknown; a method that "
            "fails where it is weak looks better than it is."
        )
    for row in comparison.excluded:
        yield f"{row.get('method')} was not run on {row.get('task')}: {row.get('why', 'no reason is given')}."


def _scales(comparison: Comparison) -> Iterator[str]:
    if comparison.scales:
        yield (
            "Scores are final returns, mean over agents, on a scale on which random play on that task is 0 and the mean of the "
            f"best method is 1 ({', '.join(f'{scale.task}: {scale.best_method}' for scale in comparison.scales)})."
        )
    for scale in comparison.scales:
        returns = [
            run.final_return
            for run in comparison.runs
            if run.task == scale.task and run.final_return is not None
        ]
        if max(abs(value - scale.random) for value in returns) > _WILD * (scale.best - scale.random):
            yield (
                f"On {scale.task} the best method is hardly better than random play, so some scores there are large and "
                "weigh much in means; the IQM and the task's own figures say more."
            )
    scaled = {scale.task for scale in comparison.scales}
    for task in comparison.tasks:
        if task not in scaled and any(run.task == task for run in comparison.runs):
            yield f"On {task} there are no scores: no method is better than random play there, or returns were not evaluated."
    left_out = [task for task in comparison.tasks if task in scaled and task not in comparison.common_tasks]
    if left_out and comparison.common_tasks:
        yield f"Figures over all tasks leave out {', '.join(left_out)}, where not every method has runs."


def _differences(comparison: Comparison) -> Iterator[str]:
    for pair in comparison.pairs:
        if len(pair.seeds) < ENOUGH:
            continue
        what, where = (
            _NAMES[pair.measure],
            f"over {_count(pair.tasks, 'task')} and {_count(pair.seeds, 'seed')}",
        )
        if pair.p_holm <= ALPHA:
            yield _difference(pair, what, where)
        else:
            yield (
                f"No difference in {what} between {pair.x} and {pair.y} is shown {where} (p = {pair.p_holm:.2g} after Holm's "
                "correction); that is no evidence that they are equal."
            )


def _risks(comparison: Comparison) -> Iterator[str]:
    for task in comparison.tasks:
        kept: dict[str, list[str]] = {}
        for cell in comparison.cells:
            if cell.task == task and cell.certified:
                runs = [run for run in comparison.runs if (run.task, run.method) == (task, cell.method)]
                risks = ", ".join(f"{risk:g}" for risk in sorted({run.max_risk for run in runs}))
                counts = kept.setdefault(risks, [])
                what = "" if counts else "certified runs "
                counts.append(f"{cell.under_risk} of {cell.certified} {what}of {cell.method}")
        for risks, counts in kept.items():
            yield f"On {task} every agent's interval lies below {risks} in {', '.join(counts)}."
    if any(cell.certified for cell in comparison.cells):
        yield (
            "A certificate is a statement about one trained team, and means over runs are none. An interval that reaches beyond the "
            "allowed risk does not show that the risk is exceeded: it may want more evaluation episodes."
        )


def _limits(comparison: Comparison) -> Iterator[str]:
    if not comparison.runs:
        return
    if len(comparison.methods) > 1:
        for seeds in sorted({len(pair.seeds) for pair in comparison.pairs} or {0}):
            yield from caveats(seeds, alpha=ALPHA)
    yield (
        "Intervals resample runs and hold the tasks fixed: nothing is said about other tasks, other settings or longer training."
    )


def _difference(pair: Pair, what: str, where: str) -> str:
    """A claim, unless the mean and most pairs of runs disagree on which is better."""
    favours_x = MEASURES[pair.measure] * pair.difference > 0
    better, worse = (pair.x, pair.y) if favours_x else (pair.y, pair.x)
    probability = pair.improvement if favours_x else 1 - pair.improvement
    p = f"p = {pair.p_holm:.2g} after Holm's correction"
    if probability <= 0.5:
        return (
            f"{better} and {worse} differ in {what} {where} ({p}), but neither is better throughout: {better} by "
            f"{abs(pair.difference):.3g} on average, {worse} in {1 - probability:.0%} of pairs of runs."
        )
    return (
        f"{better} has a {pair.better} {what} than {worse} {where}: by {abs(pair.difference):.3g} on average, in "
        f"{probability:.0%} of pairs of runs ({p})."
    )


def _count(things: list, name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def _some(names: list[str], most: int = 8) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
