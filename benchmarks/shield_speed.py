"""What a shield costs: ``python benchmarks/shield_speed.py``.

Two robots on 10 x 10 cells: 10,000 keys, 25 joint actions, 4 successors a row (each robot may slip and stay where it is), a
credible interval of 0.04 around each probability; and a start key that nothing leads back to. Seconds are CPU time of the
one thread that does the work.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from results_page import write_page

from marl_tools.core.transitions import TransitionTable, joint_index
from marl_tools.safety.config import ShieldConfig
from marl_tools.safety.recursion import risk_tables
from marl_tools.safety.shield import TeamShield

SIDE, HORIZON, SLIP, WIDTH = 10, 50, 0.1, 0.02
CELLS = SIDE * SIDE
START = CELLS * CELLS
MOVES = np.array([[0, 0], [0, 1], [0, -1], [1, 0], [-1, 0]])


def robots() -> TransitionTable:
    """Whoever moves into the other, or through it, violates."""
    key = np.repeat(np.arange(START + 1), 25)
    choices = np.stack(np.divmod(np.tile(np.arange(25), START + 1), 5), 1)
    at = np.stack(np.divmod(np.where(key == START, START - 1 - CELLS, key), CELLS), 1)
    to = np.stack([step(at[:, i], choices[:, i]) for i in range(2)], 1)
    succ, law, violated = [], [], []
    for slips in ((0, 0), (0, 1), (1, 0), (1, 1)):
        after = np.where(slips, at, to)
        moved = after != at
        clash = (after[:, 0] == after[:, 1]) | ((after == at[:, ::-1]).all(1) & moved.all(1))
        succ.append(after[:, 0] * CELLS + after[:, 1])
        violated.append(clash[:, None] & moved)
        law.append(np.full(len(key), np.prod(np.where(slips, SLIP, 1 - SLIP))))
    mean = np.stack(law, 1)
    flags = np.stack(violated, 1)
    return TransitionTable(
        actions=(5, 5),
        num_keys=START + 1,
        row_key=key.astype(np.int32),
        row_joint=joint_index((5, 5), choices),
        succ=np.stack(succ, 1).astype(np.int32),
        violated=flags,
        ended=np.zeros_like(flags),
        lo=np.maximum(0, mean - WIDTH),
        hi=np.minimum(1, mean + WIDTH),
        unseen=np.full(len(key), 1e-4),
        mean=mean,
        mean_unseen=np.zeros(len(key)),
    )


def step(cell: np.ndarray, move: np.ndarray) -> np.ndarray:
    row, column = np.divmod(cell, SIDE)
    row, column = row + MOVES[move, 0], column + MOVES[move, 1]
    return np.clip(row, 0, SIDE - 1) * SIDE + np.clip(column, 0, SIDE - 1)


def narrower(table: TransitionTable, rows: np.ndarray) -> TransitionTable:
    """The table after the counts of some rows have doubled."""
    lo, hi = table.lo.copy(), table.hi.copy()
    lo[rows] += 0.3 * (table.mean[rows] - lo[rows])
    hi[rows] -= 0.3 * (hi[rows] - table.mean[rows])
    return replace(table, lo=lo, hi=hi)


def seconds(work: Callable[[], object]) -> tuple[float, object]:
    started = time.thread_time()
    result = work()
    return time.thread_time() - started, result


def refreshes() -> list[str]:
    table = robots()
    config = ShieldConfig(horizon=HORIZON)
    lines = []
    for floors, name in ((None, "worst case"), ([np.full((table.num_keys, 5), 0.1)] * 2, "floors of 0.1")):
        spent, _ = seconds(lambda f=floors: risk_tables(table, 0, HORIZON, f))
        lines.append(f"| pessimistic side alone, {name} | 1 | {spent:.2f} | {HORIZON * table.num_keys} |")
    frozen = TeamShield(["a", "b"], table.actions, config.evaluating(), num_envs=1)
    spent, computed = seconds(lambda: frozen.refresh(table))
    lines.append(f"| whole tables, evaluation (no optimistic side) | 2 | {spent:.2f} | {computed} |")
    shield = TeamShield(["a", "b"], table.actions, config, num_envs=1)
    spent, computed = seconds(lambda: shield.refresh(table))
    lines.append(f"| whole tables, training (three sides) | 2 | {spent:.2f} | {computed} |")
    spent, computed = seconds(lambda: shield.refresh(table))
    lines.append(f"| again, nothing new | 2 | {spent:.2f} | {computed} |")
    rng = np.random.default_rng(0)
    doubled = {
        "the 25 rows of the start key": np.flatnonzero(table.row_key == START),
        "1 row": rng.integers(0, len(table.row_key), 1),
        "100 rows": rng.integers(0, len(table.row_key), 100),
    }
    for what, rows in doubled.items():
        table = narrower(table, rows)
        spent, computed = seconds(lambda t=table: shield.refresh(t))
        lines.append(f"| again, {what} doubled | 2 | {spent:.2f} | {computed} |")
    return lines


def decisions(batch: int, repeats: int) -> list[str]:
    """Median CPU time of one decision of one agent; a random policy, so that many proposals are refused."""
    table = robots()
    rng = np.random.default_rng(0)
    lines = []
    for rule in ("ledger", "step"):
        for patience in (0, 64):
            config = ShieldConfig(horizon=HORIZON, rule=rule, patience=patience)
            shield = TeamShield(["a", "b"], table.actions, config, num_envs=batch)
            shield.refresh(table)
            likely = rng.dirichlet(np.ones(5), (batch, 2))
            spent, noted, refused = [], [], 0
            for _ in range(repeats):
                shield.begin(np.ones(batch, bool), rng.integers(0, table.num_keys, batch))
                proposed = rng.integers(0, 5, (batch, 2))
                took, decision = seconds(
                    lambda p=proposed, s=shield, law=likely: s.decide(p, None, lambda *at: law[at])
                )
                spent.append(took)
                noted.append(seconds(lambda d=decision, s=shield: s.notes(d))[0])
                refused += int(decision.overridden.sum())
            per_agent = 1e6 / (batch * 2)
            lines.append(
                f"| {rule}, patience {patience} | {np.median(spent) * per_agent:.2f} | {np.median(noted) * per_agent:.2f} "
                f"| {refused / (repeats * batch * 2):.0%} |"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=256, help="copies of the env")
    parser.add_argument("--repeats", type=int, default=200, help="decisions measured")
    options = parser.parse_args()
    lines = [
        "# What a shield costs",
        "",
        "`python benchmarks/shield_speed.py`: two robots on 10 x 10 cells, 10,000 keys, 25 joint actions, 4 successors a row,",
        f"horizon {HORIZON}. CPU time of one thread. Aims: at most 8 s for the pessimistic tables, at most 5 microseconds a decision.",
        "",
        "| tables of 10,000 keys | agents | seconds | (key, k) computed |",
        "|---|---|---|---|",
        *refreshes(),
        "",
        f"Median over {options.repeats} decisions for {options.batch} copies, proposals uniform at uniform keys, first steps of episodes;",
        "microseconds an agent. Notes are what goes to the episode log, at most in a first step.",
        "",
        "| rule | decision | notes | overridden |",
        "|---|---|---|---|",
        *decisions(options.batch, options.repeats),
    ]
    write_page("shield_speed", lines, ("marl-tools", "numpy", "scipy"))


if __name__ == "__main__":
    main()
