"""What acting and learning cost beside the arithmetic that they consist of: ``python benchmarks/update.py``.

mpe2's simple_spread as its native twin (3 agents, 128 steps a rollout, discrete actions, two tanh layers of 64 for the actor and
for the critic, 4 epochs, 4 minibatches). Passes that are written out, as the trainer takes them, and the same update
by autograd take turns on the same rollout. The products of matrices alone, of the same shapes and as many, say what cannot be saved.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from results_page import write_page

from marl_tools.envs.particles import ParticleVectorEnv, Spread
from marl_tools.models.backprop import AutogradPasses, passes_of
from marl_tools.models.heads import head_for
from marl_tools.training.ippo import IPPO, IPPOConfig
from marl_tools.training.learner import GroupLearner
from marl_tools.training.rollout import Rollout

AGENTS, OBS, HIDDEN, ACTIONS = 3, 18, 64, 5
LAYERS = [(OBS, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, ACTIONS), (OBS, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 1)]
FLOPS = 3 * 2 * sum(rows * columns for rows, columns in LAYERS)
"""Of one agent-step in one epoch: forward, and the slopes of inputs and weights."""


class Seconds(NamedTuple):
    cpu: float
    wall: float


@dataclass(frozen=True)
class Case:
    envs: int
    share: Literal["group", "none"]

    @property
    def name(self) -> str:
        return f"{self.envs} x 128, {'shared' if self.share == 'group' else 'one an agent'}"

    def trainer(self) -> IPPO:
        # So low a rate that the policy stays near the one that the rollout was played with, however often it is repeated.
        config = IPPOConfig(share=self.share, learning_rate=1e-6)
        envs = ParticleVectorEnv(Spread(N=AGENTS, max_cycles=25), self.envs)
        return IPPO(envs, config, seed=0, total_frames=10**9)


def timed(work: Callable[[], object]) -> Seconds:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return Seconds(time.process_time() - cpu, time.perf_counter() - wall)


def act(learner: GroupLearner, rollout: Rollout) -> None:
    """Once more all actions of a rollout."""
    (group,) = rollout.groups.values()
    steps, envs = group.valid.shape[:2]
    noise = learner.noise(steps, envs)
    for t in range(steps):
        learner.act(group.obs[t], None, None if noise is None else noise[t])


def products(rows: int, lanes: int, epochs: int) -> None:
    """The matrix products of an update's passes, in parts of 4096 rows, and nothing else."""
    part = min(4096, rows)
    shapes = [
        (torch.ones(lanes, part // lanes, i), torch.ones(lanes, i, o), torch.ones(lanes, part // lanes, o))
        for i, o in LAYERS
    ]
    for _ in range(epochs * rows // part):
        for x, weight, y in shapes:
            torch.bmm(x, weight)
            torch.bmm(x.mT, y)
            if weight.shape[1] != OBS:
                torch.bmm(y, weight.mT)


def measure(case: Case, rounds: int) -> dict[str, list[Seconds]]:
    """Seconds of each kind of work on one rollout, round by round."""
    trainer = case.trainer()
    (learner,) = trainer.learners.values()
    kinds = {
        "written": passes_of(learner.network),
        "autograd": AutogradPasses(learner.network, head_for(learner.network.distribution)),
    }
    for _ in range(2):
        trainer.update(trainer.collect())
    seconds: dict[str, list[Seconds]] = {}

    def note(name: str, work: Callable[[], object]) -> None:
        seconds.setdefault(name, []).append(timed(work))

    rows = AGENTS * case.envs * trainer.config.rollouts
    for _ in range(rounds):
        note("collect", trainer.collect)
        rollout = trainer.collect()
        for name, passes in kinds.items():
            learner.passes = passes
            note(f"act {name}", partial(act, learner, rollout))
            note(f"update {name}", partial(trainer.update, rollout))
        learner.passes = kinds["written"]
        note("products", partial(products, rows // 4, learner.lanes, trainer.config.learning_epochs * 4))
    return seconds


def row(case: Case, threads: int, seconds: dict[str, list[Seconds]]) -> str:
    """Medians, in microseconds an agent-step."""
    steps = AGENTS * case.envs * 128

    def median(name: str, clock: str = "cpu") -> float:
        return 1e6 / steps * statistics.median(getattr(each, clock) for each in seconds[name])

    limit = median("products")
    rates = [
        1e6 / AGENTS / (median("collect", clock) + median("update written", clock))
        for clock in ("cpu", "wall")
    ]
    return (
        f"| {case.name} | {threads} "
        f"| {median('act autograd'):.2f} | {median('act written'):.2f} "
        f"| {median('update autograd'):.2f} | {median('update written'):.2f} ({median('update written', 'wall'):.2f}) "
        f"| {median('update autograd') / median('update written'):.1f} "
        f"| {limit:.2f} | {100 * limit / median('update written'):.0f} | {rates[0]:,.0f} ({rates[1]:,.0f}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--envs", type=int, nargs="*", default=[8, 64, 256])
    parser.add_argument("--threads", type=int, nargs="*", default=[1])
    options = parser.parse_args()
    cases = [Case(envs, share) for envs in options.envs for share in ("group", "none")]
    lines = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        for case in cases:
            lines.append(row(case, threads, measure(case, options.rounds)))
            print(lines[-1], file=sys.stderr)
    write_page(
        "update",
        [
            "# What acting and learning cost",
            "",
            "`python benchmarks/update.py`: simple_spread as its native twin, 3 agents, 128 steps a rollout, actor and critic of two",
            f"tanh layers of 64, 4 epochs, 4 minibatches: {FLOPS * 4 / 1e3:.0f} kFLOP an agent-step. Microseconds an agent-step, medians over",
            f"{options.rounds} rounds in which all columns take turns; CPU time, and wall time in brackets. An update includes values and",
            "advantages. *Limit*: the update's matrix products alone, in the same rounds. *Rate*: env-steps a second of collecting (with",
            "the native env) and updating. On a busy machine two torch threads, which wait for each other by spinning, cost much more.",
            "",
            "| envs, networks | threads | act: autograd's network | act | update: autograd | update | times faster | limit | % of limit | rate |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *lines,
        ],
        ("marl-tools", "torch", "numpy", "mpe2"),
    )


if __name__ == "__main__":
    main()
