"""From counts to credible sets: intervals per known outcome and a bound on the mass of those never seen."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.bounds import (
    Interval,
    Schedule,
    beta_interval,
    clopper_pearson,
    cp_upper,
    ppr_interval,
    rank_level,
    schedule_level,
)
from marl_tools.models._rows import Ints, RowCounts

Floats = NDArray[np.float64]


class CredibleSets(NamedTuple):
    """Sets of r rows, each with up to S outcomes; outcomes that are not ``shown`` have zeros."""

    shown: NDArray[np.bool_]  # (r, S)
    lo: Floats  # (r, S)
    hi: Floats  # (r, S)
    unseen: Floats  # (r,)
    mean: Floats  # (r, S)
    mean_unseen: Floats  # (r,)


def credible_sets(
    rows: RowCounts,
    index: Ints,
    level: Floats,
    *,
    schedule: Schedule,
    interval: Interval,
    newest: bool,
    max_successors: int | None,
) -> CredibleSets:
    """Sets that hold the true law of each row ``index`` (r,), each wrong with probability at most ``level`` (r,).

    The draws of one row are independent with that row's law, whatever chose when to visit it, and the 2^e-th of
    them is a look fixed beforehand. Within a row the level is split so that everything holds at once:

    - declared outcomes: evenly. One outcome is certain, and two are complementary, hence one event.
    - others: half to the unseen mass; the other half to the outcomes by rank of discovery (evenly, where their number is
      declared), not by how many are known now, since that number is chosen by the data. Which outcome is the i-th is
      chosen by the data too, so it counts only the draws after its discovery: they are independent of the choice.

    Unseen mass, k distinct outcomes in n draws: the mass only shrinks, hence while it is at least u each draw finds
    something new with probability at least u, and P(at most k - 1 finds in draws 2..n) <= P(Bin(n - 1, u) <= k - 1). The
    Clopper-Pearson upper bound makes this level / k_max for each k, and a union over k = 1..k_max gives level.
    An outcome found after that look was part of the mass, which therefore bounds it.
    """
    look = rows.look[index]
    upto = rows.draws[index] if newest else look
    width = max(1, int(rows.known[index].max(initial=0)))
    at = (index, slice(width))
    found = rows.found[at]
    declared = rows.declared[index]
    shown = (rows.succ[at] >= 0) & (found <= upto[:, None])
    known = shown.sum(1)
    count = np.where(shown, (rows.count if newest else rows.look_count)[at], 0)
    drawn = np.where(shown, upto[:, None] - found, 0)
    hits = count - (shown & (found > 0))

    alone = level / np.where(known > 2, known, 1)
    if max_successors is None:
        ranked = rank_level(level[:, None] / 2, np.arange(1, width + 1))
    else:
        ranked = np.broadcast_to(level[:, None] / 2 / max_successors, shown.shape)
    share = np.where(declared[:, None], alone[:, None], ranked)
    if schedule == "ppr":
        lo, hi = ppr_interval(hits, drawn, share)
    else:
        two_sided = beta_interval if interval == "beta" else clopper_pearson
        lo, hi = two_sided(hits, drawn, schedule_level(share, upto[:, None], schedule))

    unseen = _unseen_mass(rows.known[index], found, look, level / 2, declared, max_successors)
    hi = np.where(found > look[:, None], np.minimum(hi, unseen[:, None]), hi)
    certain = (declared & (known == 1))[:, None]
    lo = np.where(shown, np.where(certain, 1.0, lo), 0.0)
    hi = np.where(shown, np.where(certain, 1.0, hi), 0.0)
    infeasible = (lo > hi).any(1) | (lo.sum(1) > 1) | (hi.sum(1) + unseen < 1)
    total = upto + known + ~declared
    return CredibleSets(
        shown=shown,
        lo=np.where(infeasible[:, None], 0.0, lo),
        hi=hi,
        unseen=np.where(infeasible, 1.0, unseen),
        mean=np.where(shown, (count + 1) / total[:, None], 0.0),
        mean_unseen=np.where(declared, 0.0, 1 / total),
    )


def _unseen_mass(
    known: NDArray[np.int32],
    found: Ints,
    look: Ints,
    level: Floats,
    declared: NDArray[np.bool_],
    max_successors: int | None,
) -> Floats:
    slots = np.arange(found.shape[1]) < known[:, None]
    distinct = (slots & (found <= look[:, None])).sum(1)
    finds, draws = np.maximum(distinct - 1, 0), np.maximum(look - 1, 0)
    most = np.maximum(look, 1) if max_successors is None else max_successors
    upper = cp_upper(finds, draws, schedule_level(level, look, "summable") / most)
    complete = declared if max_successors is None else declared | (distinct >= max_successors)
    return np.where(complete, 0.0, upper)
