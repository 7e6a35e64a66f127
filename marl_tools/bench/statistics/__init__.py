"""What runs tell together: figures of merit of sessions, and comparisons of methods over runs and tasks, as pure functions."""

from marl_tools.bench.statistics.aggregate import (
    AGGREGATES,
    iqm,
    mean,
    median,
    optimality_gap,
    stratified_bootstrap,
)
from marl_tools.bench.statistics.paired import (
    Improvement,
    caveats,
    holm,
    paired_permutation_test,
    probability_of_improvement,
    smallest_p,
)
from marl_tools.bench.statistics.profiles import Profile, performance_profile
from marl_tools.bench.statistics.sessions import (
    Session,
    SessionMetrics,
    TrialMetrics,
    consistency,
    efficiency,
    evaluated_return,
    random_baseline,
    session_of_logs,
    session_of_run,
    session_of_updates,
    stability,
    trial_metrics,
)

__all__ = [
    "AGGREGATES",
    "Improvement",
    "Profile",
    "Session",
    "SessionMetrics",
    "TrialMetrics",
    "caveats",
    "consistency",
    "efficiency",
    "evaluated_return",
    "holm",
    "iqm",
    "mean",
    "median",
    "optimality_gap",
    "paired_permutation_test",
    "performance_profile",
    "probability_of_improvement",
    "random_baseline",
    "session_of_logs",
    "session_of_run",
    "session_of_updates",
    "smallest_p",
    "stability",
    "stratified_bootstrap",
    "trial_metrics",
]
