"""One training run, from settings to a finished run folder: the place where all parts are joined."""

from __future__ import annotations

import dataclasses
import secrets
import shlex
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_tools.core import wandb
from marl_tools.core.errors import ConfigError, NonFiniteError
from marl_tools.core.history import History
from marl_tools.core.io import JsonLines, read_jsonl, save_to_file
from marl_tools.core.logging import log
from marl_tools.core.types import EpisodeLog, VectorEnv
from marl_tools.experiment.config import RunConfig, check_trust, names_code
from marl_tools.experiment.film import film_episodes
from marl_tools.experiment.folder import (
    checkpoint_path,
    claim_folder,
    fresh_folder,
    load_config,
    write_settings,
)
from marl_tools.experiment.native import make_envs
from marl_tools.experiment.progress import Progress
from marl_tools.experiment.safety import make_constraint, make_shield, warn_if_patience_is_short
from marl_tools.experiment.stopping import Interrupted, terminate_like_ctrl_c
from marl_tools.experiment.team import certify_run, evaluate_run, load_team
from marl_tools.training.checkpoint import load_checkpoint, save_checkpoint
from marl_tools.training.evaluate import Evaluation, Policy
from marl_tools.training.ippo import IPPO
from marl_tools.training.policy import RandomPolicy, load_policy
from marl_tools.training.shielded_policy import calibrate
from marl_tools.training.shielding import ShieldedTeam


@dataclass(frozen=True)
class RunResult:
    """A finished run: its folder, evaluations of random play and of the team, and the certificate; None where not made."""

    folder: Path
    before: Evaluation | None
    after: Evaluation | None
    certificate: dict[str, Any] | None = None


def train(config: RunConfig) -> list[RunResult]:
    """Train ``config.num_runs`` teams, each in a fresh run folder.

    Raises:
        ConfigError: a run folder that is not empty, or settings that the env cannot have.
        NonFiniteError: NaN in an observation, a reward or a loss; the state before it was saved.
        Interrupted: Ctrl-C or SIGTERM, after the state was saved.

    What an env raises passes through, after the state was saved, with a note of how to go on.
    """
    if config.out is None and config.num_runs > 1:
        config = dataclasses.replace(config, out=fresh_folder(config))
    runs = config.runs()
    folders = [fresh_folder(run) for run in runs]
    return [_Run(run, folder).train() for run, folder in zip(runs, folders, strict=True)]


def resume(folder: Path, *, timesteps: int | None = None, trusted: bool = False) -> RunResult:
    """Go on with an unfinished run from its latest checkpoint, or with a finished one up to more ``timesteps``.

    Networks, optimisers, normalisers, random states, moving averages and the clock continue; open episodes start afresh.

    Raises:
        ConfigError: the folder is no run, or is finished already.
    """
    config = dataclasses.replace(load_config(folder), out=folder)
    check_trust(config, trusted)
    if timesteps is not None:
        config = dataclasses.replace(config, timesteps=timesteps)
    checkpoint = checkpoint_path(folder)
    if not checkpoint.exists():
        raise ConfigError(f"{folder} has no checkpoint yet: delete the folder and train anew")
    return _Run(config, folder).train(load_checkpoint(checkpoint))


class _Run:
    """The state of one run while it goes on."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        if config.use_wandb and config.wandb_id is None:
            config = dataclasses.replace(config, wandb_id=secrets.token_hex(4))
        self.config, self.folder = config, folder
        self.factory = config.factory()
        self.history = History()
        self.shield: ShieldedTeam | None = None
        self.tracker: wandb.Run | None = None

    def train(self, checkpoint: tuple[dict[str, Any], dict[str, Any]] | None = None) -> RunResult:
        """From the first update, or the one after ``checkpoint``, to ``done.json``."""
        import torch

        config = self.config
        torch.set_num_threads(config.threads)
        envs = make_envs(self.factory, config.num_envs, native=config.native)
        try:
            agents = tuple(agent for group in envs.groups for agent in group.agents)
            config.check_team(agents)
            self.shield = self._make_shield(envs)
            trainer = IPPO(
                envs,
                config.ippo,
                seed=config.seed,
                total_frames=config.timesteps,
                constraint=make_constraint(config.safety, agents),
                shield=self.shield,
            )
            if checkpoint:
                folder = self.folder
                done = folder / "done.json"
                # Without it the run was stopped after its last update: its evaluation and film are missing.
                if checkpoint[1]["frames"] >= config.timesteps and done.exists():
                    raise ConfigError(
                        f"{folder} is complete at {checkpoint[1]['frames']} env steps: give more --timesteps to go on"
                    )
                trainer.load(*checkpoint)
                self._recall()
                done.unlink(missing_ok=True)
            else:
                folder = self.folder = claim_folder(config, self.folder)
            write_settings(config, folder, envs)
            self.tracker = wandb.start_run(
                "ippo", config.seed, config.to_base(), {"wandb_dir": folder, "seed_offset": 0}
            )
            try:
                with terminate_like_ctrl_c():
                    before = None if checkpoint else self._evaluate(RandomPolicy(envs.groups), "random")
                    self._learn(trainer)
                    self._calibrate(trainer)
                    result = self._finish(before)
            except KeyboardInterrupt:
                self._save(trainer)
                wandb.finish(self.tracker, exit_code=1)
                raise Interrupted(
                    f"stopped at {envs.frames} of {config.timesteps} env steps; the state is saved. "
                    f"{self._how_to_go_on()}"
                ) from None
            except BaseException:
                wandb.finish(self.tracker, exit_code=1)
                raise
            wandb.finish(self.tracker)
            return result
        finally:
            envs.close()

    def _make_shield(self, envs: VectorEnv) -> ShieldedTeam | None:
        config = self.config
        if config.safety.shield == "none":
            return None
        env = self.factory()
        try:
            team = make_shield(
                config.safety, env, envs.groups, num_envs=config.num_envs, gamma=config.ippo.gamma
            )
            assert team is not None
            warn_if_patience_is_short(config.safety, team)
            return team
        finally:
            env.close()

    def _learn(self, trainer: IPPO) -> None:
        config, envs = self.config, trainer.envs
        with (
            JsonLines(self.folder / "episodes.jsonl") as episode_lines,
            JsonLines(self.folder / "updates.jsonl") as update_lines,
            Progress(config.task.name, config.timesteps, start=envs.frames) as progress,
        ):
            episodes: list[EpisodeLog] = []

            def keep(episode: EpisodeLog) -> None:
                episode = dataclasses.replace(episode, update=trainer.updates)
                episode_lines.append(episode.to_json())
                episodes.append(episode)
                self.history.add(episode)

            try:
                while envs.frames < config.timesteps:
                    started = time.perf_counter()
                    episodes.clear()
                    rollout = trainer.collect(keep)
                    collected = time.perf_counter()
                    figures = trainer.update(rollout)
                    row = {
                        "update": trainer.updates - 1,
                        "frames": envs.frames,
                        "agent_steps": sum(int(group.valid.sum()) for group in rollout.groups.values()),
                        "episodes": len(episodes),
                        "mean_return": self.history.ma(100),
                        "collect_seconds": collected - started,
                        "update_seconds": time.perf_counter() - collected,
                        "groups": figures,
                        **({"constraint": trainer.constraint.figures()} if trainer.constraint else {}),
                        **({"shield": self.shield.figures()} if self.shield else {}),
                    }
                    update_lines.append(row)
                    wandb.log_history(self.tracker, episodes, "train")
                    wandb.log_points(self.tracker, [row], "update", "frames")
                    progress.update(envs.frames, self.history.ma(100))
                    if trainer.updates % config.checkpoint_every == 0:
                        self._save(trainer)
                    if config.video_every and trainer.updates % config.video_every == 0:
                        self._save(trainer)
                        self._film(f"update-{trainer.updates}", episodes=1)
            except NonFiniteError as error:
                self._save(trainer)
                raise NonFiniteError(
                    f"update {trainer.updates}: {error}. State saved in {self.folder}."
                ) from error
            except ConfigError:
                raise
            except Exception as error:
                # An env may raise anything, hours into a run.
                self._save(trainer)
                error.add_note(f"State saved at {envs.frames} env steps. {self._how_to_go_on()}")
                raise
            self._save(trainer)

    def _recall(self) -> None:
        """Take the episodes of earlier sittings back in, so that moving averages go on where they were."""
        with suppress(FileNotFoundError):
            self.history.extend(map(EpisodeLog.from_json, read_jsonl(self.folder / "episodes.jsonl")))

    def _calibrate(self, trainer: IPPO) -> None:
        """Fill the floors under the others' behaviour while everything holds still, and keep them with the run."""
        episodes = self.config.safety.shield_calibrate
        if not (self.shield and episodes):
            return
        log(f"calibrating the shield over {episodes} episodes", type="shield")
        env = self.factory()
        try:
            # Seeds of their own: those of the evaluation must be fresh.
            seed = self.config.eval_seed + self.config.final_policy_eval_seed_offset
            calibrate(env, load_policy(self.folder), self.shield, episodes=episodes, seed=seed)
        finally:
            env.close()
        self._save(trainer)

    def _finish(self, before: Evaluation | None) -> RunResult:
        policy = load_team(self.folder, self.config)
        after, certificate = self._evaluate(policy, "trained"), None
        if after and (certificate := certify_run(self.config, after, policy)):
            save_to_file(certificate, self.folder, "certificate.json")
        if self.config.video_episodes:
            self._film("final", episodes=self.config.video_episodes)
        save_to_file({"timesteps": self.config.timesteps, "finished": time.time()}, self.folder, "done.json")
        return RunResult(self.folder, before, after, certificate)

    def _evaluate(self, policy: Policy, name: str) -> Evaluation | None:
        config = self.config
        if config.final_policy_eval_episodes == 0:
            return None
        evaluation = evaluate_run(config, policy, episodes=config.final_policy_eval_episodes)
        summary = evaluation.summary(config.final_policy_eval_confidence)
        save_to_file(
            {"policy": name, "seed": config.eval_seed, **summary}, self.folder, f"evaluation-{name}.json"
        )
        wandb.log_history(self.tracker, evaluation.episodes, f"eval/{name}")
        return evaluation

    def _film(self, name: str, *, episodes: int) -> None:
        """Films are for looking at: one that fails is reported and the run goes on."""

        def saved(path: Path, episode: EpisodeLog) -> None:
            wandb.log_video(self.tracker, path, f"video/{name}", episode.t_end)

        try:
            film_episodes(
                self.factory,
                load_team(self.folder, self.config),
                self.folder / "videos",
                episodes=episodes,
                seed=self.config.eval_seed,
                name=name,
                on_saved=saved,
            )
        # Not only our own errors: a renderer without a screen or a driver raises anything.
        except Exception as error:
            log(f"no film: {error!r}", type="video", priority="WARNING")

    def _how_to_go_on(self) -> str:
        trust = " --trust" if names_code(self.config) else ""
        return f"Go on with: marl-tools train --resume {shlex.quote(str(self.folder))}{trust}"

    def _save(self, trainer: IPPO) -> None:
        save_checkpoint(checkpoint_path(self.folder), *trainer.state())
