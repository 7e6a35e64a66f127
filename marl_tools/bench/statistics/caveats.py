"""What so few runs cannot show, in words."""

from __future__ import annotations

from marl_tools.bench.statistics.paired import smallest_p

ENOUGH = 5
"""Below so many seeds no difference is claimed."""


def caveats(seeds: int, *, alpha: float = 0.05) -> list[str]:
    """Sentences about a comparison of methods over ``seeds`` paired seeds; none where there are enough for each test."""
    if seeds < 1:
        return ["There is no seed that the methods have in common; nothing can be compared."]
    count = "1 seed" if seeds == 1 else f"{seeds} seeds"
    least = smallest_p(seeds)
    said = []
    if seeds < ENOUGH:
        said.append(
            f"With {count} a paired sign-flip test cannot give p < {least:.4g}; no claim of a difference is made."
        )
    elif least > alpha:
        said.append(
            f"With {count} a paired sign-flip test on a single task cannot give p < {least:.4g}: differences are claimed only "
            "over all tasks together."
        )
    if seeds == 1:
        said.append("One seed says nothing about how much runs differ: there are no intervals.")
    elif seeds < ENOUGH:
        said.append(
            f"Bootstrap intervals from {count} are too narrow: they resample the few values there are and know of no others."
        )
    return said
