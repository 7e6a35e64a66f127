"""Safe training compared: ``python benchmarks/safety.py --out runs/safety-benchmark --jobs 2``, then again with ``--page``.

Finished runs are lines of ``<out>/runs.jsonl`` and are skipped, so that it can be stopped and called again.
``--only crossing corridor:ledger`` picks tasks, or methods of a task; ``--page`` writes the page from what is there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from safety_methods import TASKS
from safety_page import write
from safety_runs import run_one

Run = tuple[str, str, int]


def wanted(only: Sequence[str], most_seeds: int) -> Iterator[Run]:
    """The runs in the order in which they tell most: all methods with the first seed, then with the second."""
    for seed in range(1, most_seeds + 1):
        for task, comparison in TASKS.items():
            for method in comparison.methods:
                if seed <= comparison.seeds and (not only or {task, f"{task}:{method}"} & set(only)):
                    yield task, method, seed


def finished(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="scratch folder; results stay, runs are deleted"
    )
    parser.add_argument("--only", nargs="*", default=[], help="tasks, or task:method")
    parser.add_argument("--seeds", type=int, default=5, help="at most so many a task")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--page", action="store_true", help="run nothing, write the page")
    options = parser.parse_args()
    path = options.out / "runs.jsonl"
    if options.page:
        write(finished(path))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    done = {(row["task"], row["method"], row["seed"]) for row in finished(path)}
    runs = [run for run in wanted(options.only, options.seeds) if run not in done]
    started = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool, path.open("a") as results:
        futures = {pool.submit(run_one, *run, options.out): run for run in runs}
        for number, future in enumerate(as_completed(futures), start=1):
            name = "{} {} seed {}".format(*futures[future])
            try:
                row = future.result()
            # One that fails is named and the others go on; it is tried again next time.
            except Exception as error:
                print(f"{number}/{len(runs)} {name} FAILED: {error!r}", flush=True)
                continue
            results.write(json.dumps(row) + "\n")
            results.flush()
            print(
                f"{number}/{len(runs)} {time.perf_counter() - started:.0f} s  {name}: return {row['return']:.2f}, "
                f"goal {row['goal']:.2f}, violations {row['measured']['team'].get('estimate')}",
                flush=True,
            )


if __name__ == "__main__":
    main()
