"""What a run shows of its team: evaluations before, on the way and after, and films."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from marl_tools.core.errors import MarlToolsError
from marl_tools.core.io import JsonLines, save_to_file
from marl_tools.core.logging import log
from marl_tools.core.trackers import Trackers
from marl_tools.core.types import EpisodeLog
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.film import film_episodes, seed_with_override
from marl_tools.experiment.folder import save_latest
from marl_tools.experiment.team import certify_run, evaluate_run, load_team
from marl_tools.experiment.tracking import certificate_table, evaluation_table
from marl_tools.training.evaluate import Evaluation, Policy, evaluate
from marl_tools.training.ippo import IPPO
from marl_tools.training.policy import TeamPolicy
from marl_tools.training.shielded_policy import ShieldedPolicy
from marl_tools.training.shielding import ShieldedTeam


class Evaluations:
    """Evaluations and films of one run, in its folder and at its trackers; all on envs of their own.

    ``shield`` is the run's, if it has one.
    """

    def __init__(
        self, config: RunConfig, folder: Path, trackers: Trackers, shield: ShieldedTeam | None
    ) -> None:
        self.config, self.folder, self.trackers, self.shield = config, folder, trackers, shield
        self.factory = config.factory(judged=True)

    def of(self, policy: Policy, name: str, t: int) -> Evaluation | None:
        """Evaluate a policy at env step ``t``, keep the result as ``evaluation-<name>.json``; None if the run wants none."""
        config = self.config
        if config.final_policy_eval_episodes == 0:
            return None
        log(f"{config.final_policy_eval_episodes} evaluation episodes, {name} policy", type="evaluate")
        evaluation = evaluate_run(config, policy, episodes=config.final_policy_eval_episodes)
        summary = evaluation.summary(config.final_policy_eval_confidence)
        save_to_file(
            {"policy": name, "seed": config.eval_seed, **summary}, self.folder, f"evaluation-{name}.json"
        )
        self.trackers.evaluation(evaluation.episodes, name)
        self.trackers.table(f"evaluation-{name}", *evaluation_table(summary), t)
        return evaluation

    def certify(self, evaluation: Evaluation, policy: Policy, t: int) -> dict[str, Any] | None:
        """Keep what an evaluated team is certified for as ``certificate.json``; None where the env gives no costs."""
        certificate = certify_run(self.config, evaluation, policy)
        if certificate:
            save_latest(certificate, self.folder, "certificate.json")
            table = certificate_table(certificate, self.config.safety.max_risk)
            self.trackers.table("certificate", *table, t)
        return certificate

    def on_the_way(self, trainer: IPPO, lines: JsonLines) -> list[EpisodeLog]:
        """The team as it is now without exploration, on the same seeds each time; none of them is used elsewhere.

        The episodes go to ``lines`` with split "eval", at the env step that training has come to.
        """
        networks = {name: learner.network for name, learner in trainer.learners.items()}
        team: Policy = TeamPolicy(trainer.envs.groups, networks, deterministic=True)
        evaluation = evaluate(
            self.factory,
            ShieldedPolicy(team, self.shield) if self.shield else team,
            episodes=self.config.eval_episodes,
            seed=self.config.learning_eval_seed,
        )
        now = trainer.frames
        episodes = [
            dataclasses.replace(episode, t_start=now, t_end=now, update=trainer.updates - 1)
            for episode in evaluation.episodes
        ]
        for episode in episodes:
            lines.append(episode.to_json())
        self.trackers.history(episodes, "eval/learning")
        return episodes

    def saved_team(self) -> Policy:
        """The frozen team of the run's latest checkpoint; see `load_team`."""
        return load_team(self.folder, self.config, shield=self.shield)

    def film(self, name: str, *, episodes: int, overridden: bool = False) -> None:
        """Film the saved team, with ``overridden`` from an episode on in which its shield overrides it, if there is one.

        Films are for looking at: one that fails is reported and the run goes on.
        """

        def saved(path: Path, episode: EpisodeLog) -> None:
            self.trackers.video(path, name, episode.t_end)

        try:
            policy, seed = self.saved_team(), self.config.eval_seed
            if overridden:
                seed = seed_with_override(self.factory, policy, seed)
            film_episodes(
                self.factory,
                policy,
                self.folder / "videos",
                episodes=episodes,
                seed=seed,
                name=name,
                on_saved=saved,
            )
        # Not only our own errors: a renderer without a screen or a driver raises anything.
        except Exception as error:
            kind = "" if isinstance(error, MarlToolsError) else f"{type(error).__name__}: "
            log(f"no film: {kind}{error}", type="video", priority="WARNING")
