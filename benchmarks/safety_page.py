"""The page of `safety.py`: tables from the finished runs, and whether the aims were met."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from results_page import write_page
from safety_methods import COMMON, METHODS, RHO, TASKS

Row = dict[str, Any]

COLUMNS = (
    "| method | seeds | return | goal rate | violating episodes in training | per 1000 | final: worst agent and seed, measured "
    "| final, exact | bound | seeds under rho | overridden | ms |"
)
LEGEND = """
Return: mean over agents. Goal rate: share of agents that end at their goal without a violation (stag_hunt: of episodes in which
the stag is taken and nobody is mauled). Both are means over seeds, with the lowest and the highest seed. Violating
episodes: those of the whole training in which anyone violated, mean over seeds. Final: frozen stochastic policies behind their
shields without patience; the agent and seed with most violations, with its two-sided 95 % Clopper-Pearson interval, a
statement about that agent of that run alone. Exact: the true probability of a violation in an episode, by
propagating the distribution over states, of the worst agent and seed. Bound: the shield's own, mean over start states,
largest of all agents and seeds; none where the method or the mode gives none. Under rho: seeds of which every agent is, by
the exact probability, or by the interval where that was not computed. Overridden: share of decisions in the
evaluation. ms: CPU time of one agent's decision when one copy is played, network and shield together.
""".strip().splitlines()

FINDINGS = """
## What it shows

- `crossing`: as aimed. With known support and patience 0 the ledger never violates, in training or after, and reaches the
  goal as often as with the exact model. Waiting is always safe here, so V = 0, and which moves can crash follows from
  the support alone: nothing has to be learned by crashing. The modes of the opponent model make no difference to safety, nor
  does the step rule here, which promises less. IPPO by itself ends at about rho, so a cost limit of rho hardly moves the
  Lagrangian. The price is about half a unit of return: cars wait for each other.
- Patience 64 buys nothing on `crossing`: each (key, action) that may crash is tried before it is refused, which costs
  violations in training, about a ninth of IPPO's. It is for tasks whose support is not known.
- `corridor`: the aim is missed, since the oracle itself does not reach the goal. The ledger stays under rho and never
  violates in training with patience 0, because nobody ever leaves the start. What was found:
  1. Each move on the ledge may be a fall, and how probable that is only such moves can tell; patience 0 admits none,
     whatever the opponent mode, and neither does the step rule.
  2. Patience 64 is far too short. The world model counts joint actions, and a bound under rho = 0.05 takes thousands of draws of
     the start against each of the other's actions, most of which it soon stops playing. With patience 20000 two walkers do
     learn to move (unverified), but the bound is not there at the end: in the evaluation they are held back.
  3. A single walker has no such rows, but what patience admits uses up the slack, and once falls have shown that a move is
     risky (optimistic Q above 0) little more is tried in that episode. It does not learn the way either. The schedule does not
     matter here: `summable` and `ppr` decided alike.
  4. Knowing the law does not mend it alone: rho = 0.05 pays for one move on the ledge (0.03) an episode; who is blown back
     then waits for the end, and 50000 steps of that are not enough to learn the way to the goal. With rho = 0.1 (three
     moves) one walker learns it, two do not. Turning the reward mode off, or a corridor of length 4, did not help either (tried by hand,
     one seed each).
- What mends `corridor`: learn behind the step rule, which has no budget for the episode and whose patience is not used up,
  and play the result behind the ledger. One walker (`corridor-alone`), learned model, patience 20000, 100000 steps: the start is
  drawn often enough, the bound of 0.05 holds, the true risk is 0.03, and the goal rate is about 0.8, as with the exact model where
  that one succeeds. With two walkers it was run with the exact model only, as the learned one lacks the draws (2.). What is missing
  to a goal rate of 1 is the price of rho: who is blown back onto the ledge stays there. In training it violates about five
  times less per episode than IPPO, not ten times. It is no guarantee of success: one seed of three with the exact model had learned to
  run along the ledge, which the ledger then stops at the first step.
- `stag_hunt`: whoever enters the stag's cell is mauled if the other does not come, so under the worst case it is never admitted;
  and floors do not count for actions that the other's own shield may refuse. The ledger, learned or exact, can thus take no
  stag: it picks plants, and was never mauled, in training or after. IPPO has not converged in so short a run either.
- `gridmap_rooms` and `gridmap_streets`: like `crossing`. Standing still is safe and the support tells which moves may
  collide. In the narrow streets the shielded robots also learned to pass each other in every seed, IPPO not.
- `gridmap_warehouse` and `gridmap_bridges`: IPPO itself does not solve them in these steps. In the warehouse one robot of two arrives,
  on one seed of three (behind the ledger on two); on the bridges none, and not with 400,000 steps and more entropy either (one
  seed). A comparison of goal rates there says nothing about shields; that the ledger never violates holds there too.
""".strip().splitlines()


def write(rows: Sequence[Row]) -> None:
    """Write ``results/safety.md``."""
    lines = [
        "# Safe training compared",
        "",
        f"`python benchmarks/safety.py`: {COMMON['num_envs']} copies x {COMMON['rollouts']} steps, learning rate "
        f"{COMMON['learning_rate']}, a network for each agent, else the default settings. rho = {RHO} in a whole episode, also the",
        "Lagrangian's cost limit. Shields know which outcomes are possible, not how probable they are (the exact model knows",
        "both), patience is 0 and `monotone_floor` is calibrated with 100 episodes, if nothing else is said.",
        "",
        *LEGEND,
        "",
        *FINDINGS,
    ]
    for task in TASKS:
        lines += _task(task, [row for row in rows if row["task"] == task])
    write_page("safety", lines, ("marl-tools", "torch", "numpy", "scipy"))


def _task(task: str, rows: Sequence[Row]) -> list[str]:
    comparison = TASKS[task]
    settings = "".join(f", {name}={value}" for name, value in comparison.env_kwargs.items())
    title = [
        "",
        f"## {task}",
        "",
        f"{comparison.timesteps} env steps{settings}; {comparison.episodes} evaluation episodes.",
        "",
    ]
    if not rows:
        return [*title, "Not run."]
    by_method = {name: [row for row in rows if row["method"] == name] for name in comparison.methods}
    missing = [METHODS[name][0] for name, found in by_method.items() if not found]
    table = [_line(name, found) for name, found in by_method.items() if found]
    tail = ["", *_aims(by_method)] if "ledger" in by_method else []
    return [
        *title,
        COLUMNS,
        "|" + "---|" * (COLUMNS.count("|") - 1),
        *table,
        *tail,
        *([f"Not run: {', '.join(missing)}."] if missing else []),
    ]


def _line(method: str, rows: Sequence[Row]) -> str:
    worst = max((measured for row in rows for measured in _agents(row)), key=lambda one: one["estimate"])
    trained = [row for row in rows if "train_episodes" in row]
    violating = rate = "-"
    if trained:
        violating = f"{_mean(trained, 'train_violating'):.0f}"
        rate = f"{1000 * sum(row['train_violating'] for row in trained) / sum(row['train_episodes'] for row in trained):.1f}"
    exact = [_worst_exact(row) for row in rows if "exact" in row]
    bounds = [one["bound"] for row in rows for one in _agents(row) if "bound" in one]
    risk = METHODS[method][1].get("max_risk", RHO)
    under = sum(_under(row, risk) for row in rows)
    return (
        f"| {METHODS[method][0]} | {len(rows)} of {TASKS[rows[0]['task']].seeds} | {_spread(rows, 'return')} | {_spread(rows, 'goal')} | {violating} | {rate} "
        f"| {worst['estimate']:.4f} ({worst['interval'][0]:.4f} to {worst['interval'][1]:.4f}) "
        f"| {f'{max(exact):.4f}' if exact else '-'} | {f'{max(bounds):.3f}' if bounds else '-'} | {under} of {len(rows)} "
        f"| {_mean(rows, 'overrides'):.1%} | {statistics.median(row['milliseconds'] for row in rows):.2f} |"
    )


def _aims(by_method: dict[str, list[Row]]) -> list[str]:
    """What the ledger with known support was to reach, by the numbers."""
    ippo, ledger, oracle = (by_method.get(name, []) for name in ("ippo", "ledger", "oracle"))
    lines = []
    if ledger:
        under = sum(_under(row, RHO) for row in ledger)
        lines.append(f"- Ledger, every agent under rho: {under} of {len(ledger)} seeds.")
    if ledger and oracle:
        ours, best = _mean(ledger, "goal"), _mean(oracle, "goal")
        share = f", {ours / best:.0%} of it" if best else ""
        lines.append(f"- Goal rate {ours:.3f}, the oracle's {best:.3f}{share} (aim: at least 80 %).")
    if ledger and ippo:
        lines.append(
            f"- Violating episodes in training: {_mean(ledger, 'train_violating'):.1f} a run, IPPO's "
            f"{_mean(ippo, 'train_violating'):.1f} (aim: at least 10 times fewer)."
        )
    patience = by_method.get("patience", [])
    if patience:
        lines.append(
            f"- With patience 64: {_mean(patience, 'train_violating'):.1f} violating episodes in training, "
            f"{_mean(patience, 'train_unverified'):.2%} of decisions unverified, goal rate {_mean(patience, 'goal'):.3f}."
        )
    return lines


def _agents(row: Row) -> list[Row]:
    return [measured for agent, measured in row["measured"].items() if agent != "team"]


def _worst_exact(row: Row) -> float:
    return max(value for agent, value in row["exact"].items() if agent != "team")


def _under(row: Row, risk: float) -> bool:
    if "exact" in row:
        return _worst_exact(row) <= risk
    return all(measured["interval"][1] <= risk for measured in _agents(row))


def _mean(rows: Sequence[Row], name: str) -> float:
    return statistics.fmean(row[name] for row in rows)


def _spread(rows: Sequence[Row], name: str, show: Callable[[float], str] = "{:.2f}".format) -> str:
    values = [row[name] for row in rows]
    return f"{show(statistics.fmean(values))} ({show(min(values))} to {show(max(values))})"
