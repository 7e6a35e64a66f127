"""The page of the plan ``shield``: ``marl-tools bench shield --seeds 5 --jobs 2``, then ``python benchmarks/shield_plan.py runs/shield``.

Writes ``docs/shield-plan.md``, and beside it the report of the plan without its films.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from results_page import machine

from marl_tools.bench.comparison import Comparison, compare
from marl_tools.bench.report import write_report

DOCS = Path(__file__).parent.parent / "docs"
COLUMNS = {
    "final_return": ("return", "{:.2f}"),
    "random_return": ("random play", "{:.2f}"),
    "violation": ("violations, trained", "{:.2%}"),
    "training_violations": ("violations while training", "{:.2%}"),
}


def page(found: Comparison) -> Iterator[str]:
    """What was run, the table, and what follows from it and what does not."""
    yield "# IPPO, Lagrangian and ledger shield side by side"
    yield ""
    yield f"`marl-tools bench shield --seeds {len(found.seeds)} --jobs 2`, then `python benchmarks/shield_plan.py runs/shield`. The same as a"
    yield "[page with figures](shield-plan.html) (a single file, to be opened in a browser; made by `marl-tools report`). What each method and"
    yield "task is set to is in [presets.py](../marl_tools/bench/presets.py)."
    yield ""
    yield f"Means over seeds, with bootstrap intervals of {found.confidence:.0%}. Return: mean over agents, of the trained team's"
    yield "evaluation episodes. Violations: the share of episodes in which anyone violates. Within rho: in how many"
    yield "of the certified runs every agent's interval lies below the allowed risk."
    yield ""
    yield f"| task | method | runs | {' | '.join(head for head, _ in COLUMNS.values())} | within rho |"
    yield "|---|---|---|" + "---|" * (len(COLUMNS) + 1)
    for cell in found.cells:
        if cell.planned:
            figures = " | ".join(_figure(cell.figures.get(name), form) for name, (_, form) in COLUMNS.items())
            yield (
                f"| {cell.task} | {cell.method} | {cell.finished} of {cell.planned} | {figures} "
                f"| {cell.under_risk} of {cell.certified} |"
            )
    yield ""
    yield "## What is shown, and what is not"
    yield ""
    yield from (f"- {sentence}" for sentence in found.sentences)
    yield ""
    yield machine(("marl-tools", "torch", "numpy"))


def _figure(spread, form: str) -> str:
    if spread is None:
        return ""
    mean = form.format(spread.mean)
    if spread.low is None:
        return mean
    return f"{mean} ({form.format(spread.low)} to {form.format(spread.high)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path, help="folder of the finished plan")
    folder = parser.parse_args().plan
    (DOCS / "shield-plan.md").write_text("\n".join([*page(compare(folder)), ""]))
    print(write_report(folder, out=DOCS / "shield-plan.html", videos="none"))


if __name__ == "__main__":
    main()
