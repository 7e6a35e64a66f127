"""One training run, from settings to a finished run folder: the place where all parts are joined."""

from __future__ import annotations

import dataclasses
import operator
import secrets
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from marl_tools.core.errors import ConfigError, CorruptFileError, Interrupted, MarlToolsError, NonFiniteError
from marl_tools.core.history import History
from marl_tools.core.io import save_to_file
from marl_tools.core.logging import log
from marl_tools.core.tensorboard import require_tensorboard
from marl_tools.experiment.assemble import make_trainer
from marl_tools.experiment.config import RunConfig, check_trust
from marl_tools.experiment.evaluations import Evaluations
from marl_tools.experiment.folder import (
    check_unfinished,
    claim_folder,
    fresh_folder,
    load_config,
    write_settings,
)
from marl_tools.experiment.lock import RunLock
from marl_tools.experiment.native import closed_after
from marl_tools.experiment.progress import Progress
from marl_tools.experiment.records import EPISODES, RunRecords, log_late, read_episodes, rewind
from marl_tools.experiment.safepoint import SafePoint
from marl_tools.experiment.spread import blamed, led, run_envs
from marl_tools.experiment.stopping import (
    ERROR_FILE,
    saved_at_a_stop,
    told_when_the_disk_is_full,
)
from marl_tools.experiment.team import calibrate_shield
from marl_tools.experiment.tracking import start_trackers
from marl_tools.experiment.trajectories import saved_before, set_segments_aside
from marl_tools.training.best import BestCheckpoint
from marl_tools.training.checkpoint_folder import CheckpointFolder, Loaded
from marl_tools.training.evaluate import Evaluation
from marl_tools.training.ippo import IPPO
from marl_tools.training.policy import RandomPolicy
from marl_tools.training.ranks import Ranks

__all__ = ["Interrupted", "RunResult", "resume", "train"]


@dataclass(frozen=True)
class RunResult:
    """A finished run: its folder, evaluations of random play and of the team, and the certificate; None where not made."""

    folder: Path
    before: Evaluation | None
    after: Evaluation | None
    certificate: dict[str, Any] | None = None


def train(config: RunConfig) -> list[RunResult]:
    """Train ``config.num_runs`` teams, each in a fresh run folder.

    Where torchrun has started several processes, they share the work; all but the first write and return nothing.

    Raises:
        ConfigError: a run folder that is not empty, or settings that the env cannot have.
        NonFiniteError: NaN in an observation, a reward or a loss; the state before it was saved.
        WorkerError: a worker or another process of the run was lost, after the state was saved.
        DiskFullError: no room for logs or checkpoints; the run can be resumed once there is some.
        Interrupted: Ctrl-C or SIGTERM, after the state was saved.

    What an env raises passes through, after the state was saved, with a note of how to go on.
    """

    def lead(ranks: Ranks | None) -> list[RunResult]:
        named = config
        if config.out is None and config.num_runs > 1:
            named = dataclasses.replace(config, out=fresh_folder(config))
        runs = named.runs()
        folders = [fresh_folder(run) for run in runs]
        return [_Run(run, folder, ranks).train() for run, folder in zip(runs, folders, strict=True)]

    return led(lead, otherwise=[])


def resume(
    folder: Path, *, timesteps: int | None = None, stop_at: float | None = None, trusted: bool = False
) -> RunResult:
    """Go on with an unfinished run from its latest checkpoint, or with a finished one up to more ``timesteps``.

    What comes then is what would have come without the stop, to the bit: networks, optimisers, schedules, multipliers,
    models and shield, normalisers, random states, moving averages, the clock and the best so far go on, and open episodes are
    rebuilt. Log lines later than the checkpoint are set aside (`rewind`). A run that has no checkpoint yet begins anew.

    Args:
        timesteps: a new total; None: the run's own.
        stop_at: a new return to stop at; None: the run's own.
        trusted: whether code that the ``folder`` names may be imported.

    Raises:
        ConfigError: the folder is no run, is finished already, or is in use by another process.
        CorruptFileError: its checkpoints or logs are damaged.
        Others as `train`.
    """

    def lead(ranks: Ranks | None) -> RunResult:
        config = dataclasses.replace(load_config(folder), out=folder)
        check_trust(config, trusted)
        changes = {"timesteps": timesteps, "stop_at": stop_at}
        config = dataclasses.replace(config, **{key: new for key, new in changes.items() if new is not None})
        return _Run(config, folder, ranks).train(resumed=True)

    return led(lead, otherwise=RunResult(folder, None, None))


class _Run:
    """The state of one run while it goes on."""

    def __init__(self, config: RunConfig, folder: Path, ranks: Ranks | None) -> None:
        if config.use_wandb and config.wandb_id is None:
            config = dataclasses.replace(config, wandb_id=secrets.token_hex(4))
        if config.use_tensorboard:
            require_tensorboard()
        self.config, self.folder, self.ranks = config, folder, ranks
        self.factory = config.factory()
        self.history = History(max(1000, config.ma_window))
        window = config.eval_episodes if config.eval_every else config.ma_window
        self.best = BestCheckpoint(window, config.stop_at)

    def train(self, *, resumed: bool = False) -> RunResult:
        """From the first update, or from where the folder's latest checkpoint stands, to ``done.json``."""
        import torch

        config = self.config
        torch.set_num_threads(config.threads)
        with told_when_the_disk_is_full(config, self.folder), ExitStack() as stack:
            if resumed:
                # First of all: another process may be writing what is read below.
                stack.enter_context(RunLock(self.folder))
            saving = config.saving.saving(self.factory, self.folder)
            envs = run_envs(config, saving, self.ranks)
            stack.enter_context(closed_after(envs))
            trainer, self.shield = make_trainer(config, self.factory, envs, self.ranks)
            begun = self._go_on(trainer) if resumed else False
            if not resumed:
                self._claim()
                stack.enter_context(RunLock(self.folder))
            write_settings(config, self.folder, envs)
            trackers = stack.enter_context(start_trackers(config, self.folder, frames=trainer.frames))
            evaluations = Evaluations(config, self.folder, trackers, self.shield)
            safe = SafePoint(self.folder, self.best)
            safe.take(trainer, self.history.ma(config.ma_window))
            late = partial(log_late, self.folder, trainer)
            saved = saved_at_a_stop(config, self.folder, safe)
            with closed_after(envs, late), saved, blamed(self.ranks):
                before = None if begun else evaluations.of(RandomPolicy(envs.groups), "random", 0)
                self._learn(trainer, safe, evaluations)
                self._calibrate(trainer, safe)
                return self._finish(before, trainer, evaluations)

    def _claim(self) -> None:
        folder = claim_folder(self.config, self.folder)
        if folder != self.folder and self.config.saving.trajectories:
            # The envs know the folder that they save to by now.
            raise ConfigError(
                f"{self.folder} was taken by a run that began at the same moment: start again, or give --out"
            )
        self.folder = folder

    def _go_on(self, trainer: IPPO) -> bool:
        """Put the run where its latest checkpoint stands; False if there is none, and it has to begin anew."""
        folder, checkpoints = self.folder, CheckpointFolder(self.folder)
        loaded = checkpoints.load() if checkpoints.exists() else None
        if loaded is None and (folder / "done.json").exists():
            raise ConfigError(f"{folder} is done, but its checkpoints are gone: train anew in another --out")
        # Not earlier: workers of a process that has just been killed may write a little longer than it.
        segments = saved_before(folder)
        frames, updates = self._load(trainer, loaded) if loaded else (0, 0)
        rewind(folder, frames=frames, updates=updates)
        set_segments_aside(folder, segments, lost=trainer.interrupted)
        with suppress(FileNotFoundError):
            self.history.extend(read_episodes(folder / EPISODES))
        for outdated in ("done.json", ERROR_FILE):
            (folder / outdated).unlink(missing_ok=True)
        return loaded is not None

    def _load(self, trainer: IPPO, loaded: Loaded) -> tuple[int, int]:
        """Env steps and updates of a checkpoint, which the trainer and the best so far go on from."""
        tensors, state = loaded
        try:
            self.best.load(state["best"])
            check_unfinished(self.config, self.folder, state["frames"], solved=self.best.solved)
            trainer.load(tensors, state)
            return operator.index(trainer.frames), operator.index(trainer.updates)
        except MarlToolsError:
            raise
        # Checksums tell damage; but a stranger's file may hold anything under the right names.
        except (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            raise CorruptFileError(
                f"the checkpoint in {self.folder} does not hold the state of this run: {error!r}"
            ) from error

    def _learn(self, trainer: IPPO, safe: SafePoint, evaluations: Evaluations) -> None:
        config = self.config
        with (
            RunRecords(self.folder) as records,
            Progress(config.task.name, config.timesteps, start=trainer.frames) as progress,
        ):
            while trainer.frames < config.timesteps and not self.best.solved:
                started = time.perf_counter()
                try:
                    rollout = trainer.collect(lambda episode: records.episodes.append(episode.to_json()))
                    self.history.extend(rollout.episodes)
                    collected = time.perf_counter()
                    figures = trainer.update(rollout)
                except NonFiniteError as error:
                    raise NonFiniteError(f"update {trainer.updates}: {error}") from error
                row = {
                    "update": trainer.updates - 1,
                    "frames": trainer.frames,
                    "agent_steps": sum(int(group.valid.sum()) for group in rollout.groups.values()),
                    "episodes": len(rollout.episodes),
                    "mean_return": self.history.ma(config.ma_window),
                    "collect_seconds": collected - started,
                    "update_seconds": time.perf_counter() - collected,
                    "groups": figures,
                    **({"lag": rollout.lag} if config.stepping.asynchronous else {}),
                    **({"constraint": trainer.constraint.figures()} if trainer.constraint else {}),
                    **({"shield": self.shield.figures()} if self.shield else {}),
                }
                film = bool(config.video_every) and trainer.updates % config.video_every == 0
                ended = trainer.frames >= config.timesteps
                due = film or ended or trainer.updates % config.checkpoint_every == 0
                average, is_best = self._judge(trainer, evaluations, records, row, due=due)
                records.updates.append(row)
                evaluations.trackers.history(rollout.episodes, "train")
                evaluations.trackers.points([row], "update", "frames")
                progress.update(trainer.frames, row["mean_return"])
                safe.take(trainer, average, due=due or is_best or self.best.solved, is_best=is_best)
                if due:
                    safe.save()
                if film:
                    evaluations.film(f"update-{trainer.updates}", episodes=1, overridden=True)
        safe.save()
        if self.best.solved:
            log(f"solved: return {self.best.average:.2f} after update {self.best.update}", type="train")

    def _judge(
        self, trainer: IPPO, evaluations: Evaluations, records: RunRecords, row: dict[str, Any], *, due: bool
    ) -> tuple[float, bool]:
        """The average that the team after this update is judged by, and whether it is the best so far.

        The best is sought among those that are evaluated or, without evaluations, whenever a checkpoint is ``due``.
        """
        config, best = self.config, self.best
        if not config.eval_every:
            average = row["mean_return"]
            count = len(self.history.recent(config.ma_window))
            looked_at = due or best.solves(average, episodes=count)
            return average, looked_at and best.offer(average, episodes=count, update=trainer.updates)
        if trainer.updates % config.eval_every:
            return self.history.ma(config.eval_episodes, split="eval"), False
        self.history.extend(evaluations.on_the_way(trainer, records.episodes))
        average = row["eval_return"] = self.history.ma(config.eval_episodes, split="eval")
        return average, best.offer(average, episodes=config.eval_episodes, update=trainer.updates)

    def _calibrate(self, trainer: IPPO, safe: SafePoint) -> None:
        """Fill the floors under the others' behaviour while everything holds still, and keep them with the run."""
        if self.shield and self.config.safety.shield_calibrate:
            calibrate_shield(self.folder, self.config, self.shield)
            safe.take(trainer, self.history.ma(self.config.ma_window))
            safe.save()

    def _finish(self, before: Evaluation | None, trainer: IPPO, evaluations: Evaluations) -> RunResult:
        config, folder = self.config, self.folder
        policy = evaluations.saved_team()
        after = evaluations.of(policy, "trained", trainer.frames)
        certificate = evaluations.certify(after, policy, trainer.frames) if after else None
        if config.video_episodes:
            evaluations.film("final", episodes=config.video_episodes)
        done = {
            "state": "solved" if self.best.solved else "done",
            "timesteps": config.timesteps,
            "frames": trainer.frames,
            "finished": time.time(),
        }
        save_to_file(done, folder, "done.json")
        return RunResult(folder, before, after, certificate)
