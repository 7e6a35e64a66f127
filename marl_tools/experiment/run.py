"""One training run, from settings to a finished run folder: the place where all parts are joined."""

from __future__ import annotations

import dataclasses
import platform
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from marl_tools.core import wandb
from marl_tools.core.errors import ConfigError, MarlToolsError, NonFiniteError
from marl_tools.core.history import History
from marl_tools.core.io import JsonLines, create_dir, load_from_file, save_to_file
from marl_tools.core.logging import log
from marl_tools.core.types import EpisodeLog
from marl_tools.experiment.config import RunConfig, check_trust
from marl_tools.experiment.film import film_episodes
from marl_tools.experiment.progress import Progress
from marl_tools.training.checkpoint import load_checkpoint, save_checkpoint
from marl_tools.training.evaluate import Evaluation, Policy, evaluate
from marl_tools.training.ippo import IPPO
from marl_tools.training.policy import RandomPolicy, TeamPolicy, load_policy
from marl_tools.vector import SerialVectorEnv

_PACKAGES = (
    "marl-tools",
    "pettingzoo",
    "gymnasium",
    "supersuit",
    "mpe2",
    "numpy",
    "torch",
    "moviepy",
    "wandb",
)


@dataclass(frozen=True)
class RunResult:
    """A finished run: its folder, and the evaluation of random play and of the team (None where not asked for)."""

    folder: Path
    before: Evaluation | None
    after: Evaluation | None


class Interrupted(MarlToolsError):
    """The run was stopped by Ctrl-C or SIGTERM after its state was saved; the message says how to go on."""


def train(config: RunConfig) -> list[RunResult]:
    """Train ``config.num_runs`` teams, each in a fresh run folder.

    Raises:
        ConfigError: a run folder that is not empty, or settings that the env cannot have.
        NonFiniteError: NaN in an observation, a reward or a loss; the state before it was saved.
        Interrupted: Ctrl-C or SIGTERM, after the state was saved.
    """
    runs = config.runs()
    folders = [_fresh_folder(run) for run in runs]
    return [_Run(run, folder).train() for run, folder in zip(runs, folders, strict=True)]


def resume(folder: Path, *, timesteps: int | None = None, trusted: bool = False) -> RunResult:
    """Go on with an unfinished run from its latest checkpoint, or with a finished one up to more ``timesteps``.

    Networks, optimisers, normalisers, random states and the clock continue; open episodes start afresh.

    Raises:
        ConfigError: the folder is no run, or is finished already.
    """
    config = dataclasses.replace(load_config(folder), out=folder)
    check_trust(config, trusted)
    if timesteps is not None:
        config = dataclasses.replace(config, timesteps=timesteps)
    checkpoint = folder / "checkpoints" / "latest.safetensors"
    if not checkpoint.exists():
        raise ConfigError(f"{folder} has no checkpoint yet: delete the folder and train anew")
    return _Run(config, folder).train(load_checkpoint(checkpoint))


def load_config(folder: Path) -> RunConfig:
    """The settings of a run folder.

    Raises:
        ConfigError: the folder is no run folder.
        CorruptFileError: its config.json is damaged.
    """
    try:
        return RunConfig.from_flat(load_from_file(folder, "config.json"))
    except FileNotFoundError:
        raise ConfigError(f"{folder} is not a run folder: it has no config.json") from None


def evaluate_run(
    config: RunConfig,
    policy: Policy,
    *,
    episodes: int,
    on_episode: Callable[[EpisodeLog], None] | None = None,
) -> Evaluation:
    """Evaluate a policy on the run's env, with the run's evaluation seeds and horizons."""
    return evaluate(
        config.factory(),
        policy,
        episodes=episodes,
        seed=config.eval_seed,
        horizons=config.final_policy_eval_horizons,
        on_episode=on_episode,
    )


class _Run:
    """The state of one run while it goes on."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        if config.use_wandb and config.wandb_id is None:
            config = dataclasses.replace(config, wandb_id=secrets.token_hex(4))
        self.config, self.folder = config, folder
        self.factory = config.factory()
        self.history = History()
        self.tracker: wandb.Run | None = None

    def train(self, checkpoint: tuple[dict[str, Any], dict[str, Any]] | None = None) -> RunResult:
        """From the first update, or the one after ``checkpoint``, to ``done.json``."""
        import torch

        config, folder = self.config, self.folder
        torch.set_num_threads(config.threads)
        envs = SerialVectorEnv(partial(self.factory), config.num_envs)
        try:
            config.check_team(tuple(agent for group in envs.groups for agent in group.agents))
            trainer = IPPO(envs, config.ippo, seed=config.seed, total_frames=config.timesteps)
            if checkpoint:
                done = folder / "done.json"
                # Without it the run was stopped after its last update: its evaluation and film are missing.
                if checkpoint[1]["frames"] >= config.timesteps and done.exists():
                    raise ConfigError(
                        f"{folder} is complete at {checkpoint[1]['frames']} env steps: give more --timesteps to go on"
                    )
                trainer.load(*checkpoint)
                done.unlink(missing_ok=True)
            self._write_settings()
            self.tracker = wandb.start_run("ippo", 0, config.to_base(), {"wandb_dir": folder})
            try:
                before = None if checkpoint else self._evaluate(RandomPolicy(envs.groups), "random")
                self._learn(trainer)
                result = self._finish(before)
            except BaseException:
                wandb.finish(self.tracker, exit_code=1)
                raise
            wandb.finish(self.tracker)
            return result
        finally:
            envs.close()

    def _learn(self, trainer: IPPO) -> None:
        config, envs = self.config, trainer.envs
        with (
            JsonLines(self.folder / "episodes.jsonl") as episode_lines,
            JsonLines(self.folder / "updates.jsonl") as update_lines,
            Progress(config.task.name, config.timesteps, start=envs.frames) as progress,
            _terminate_like_ctrl_c(),
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
            except KeyboardInterrupt:
                self._save(trainer)
                raise Interrupted(
                    f"stopped at {envs.frames} of {config.timesteps} env steps; the state is saved. "
                    f"Go on with: marl-tools train --resume {self.folder}"
                ) from None
            self._save(trainer)

    def _finish(self, before: Evaluation | None) -> RunResult:
        after = self._evaluate(load_policy(self.folder), "trained")
        if self.config.video_episodes:
            self._film("final", episodes=self.config.video_episodes)
        save_to_file({"timesteps": self.config.timesteps, "finished": time.time()}, self.folder, "done.json")
        return RunResult(self.folder, before, after)

    def _evaluate(self, policy: RandomPolicy | TeamPolicy, name: str) -> Evaluation | None:
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
                load_policy(self.folder),
                self.folder / "videos",
                episodes=episodes,
                seed=self.config.eval_seed,
                name=name,
                on_saved=saved,
            )
        except MarlToolsError as error:
            log(f"no film: {error}", type="video", priority="WARNING")

    def _save(self, trainer: IPPO) -> None:
        save_checkpoint(self.folder / "checkpoints" / "latest.safetensors", *trainer.state())

    def _write_settings(self) -> None:
        try:
            create_dir(self.folder)
        except OSError as error:
            raise ConfigError(f"cannot make the run folder {self.folder}: {error.strerror}") from error
        save_to_file(self.config.to_flat(), self.folder, "config.json")
        versions = {"python": platform.python_version(), "platform": platform.platform()}
        for package in _PACKAGES:
            with suppress(ImportError):
                versions[package] = version(package)
        save_to_file(versions, self.folder, "versions.json")


def _fresh_folder(config: RunConfig) -> Path:
    """The run folder: ``out`` must be empty or absent; a default name that is taken gets a number."""
    folder = config.folder
    taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if config.out is None:
        number = 2
        while taken:
            folder = config.folder.with_name(f"{config.folder.name}-{number}")
            taken, number = folder.exists(), number + 1
    elif taken:
        hint = (
            f"go on with it by: marl-tools train --resume {folder}"
            if (folder / "config.json").exists()
            else ""
        )
        raise ConfigError(f"{folder} is not empty: give another --out{hint and ', or ' + hint}")
    return folder


@contextmanager
def _terminate_like_ctrl_c() -> Iterator[None]:
    """SIGTERM, as batch systems send it, saves and stops like Ctrl-C. Only in the main thread, as Python demands."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
