"""The commands on single runs: train, evaluate, record, explain, coverage and runs, from the words typed to what is printed."""

from __future__ import annotations

import dataclasses
import json
import re
from contextlib import suppress
from pathlib import Path

from marl_tools.core.checks import at_least
from marl_tools.core.clip_files import file_stem
from marl_tools.core.errors import ConfigError, EnvError, MarlToolsError
from marl_tools.core.io import load_from_file, save_to_file
from marl_tools.core.logging import console
from marl_tools.experiment.arguments import (
    CoverageArgs,
    EvaluateArgs,
    ExplainArgs,
    OfRun,
    RecordArgs,
    Resume,
    RunsArgs,
    check_resume_flags,
)
from marl_tools.experiment.config import RunConfig, check_trust
from marl_tools.experiment.film import film_episodes, film_grid
from marl_tools.experiment.flags import parse
from marl_tools.experiment.folder import load_config, refuse_file, save_latest
from marl_tools.experiment.run import RunResult, resume, train as train_runs
from marl_tools.experiment.runs import list_runs
from marl_tools.experiment.tables import (
    print_certificate,
    print_coverage,
    print_evaluation,
    print_explanation,
    print_returns,
    print_runs,
)
from marl_tools.experiment.team import certify_run, evaluate_run, load_team
from marl_tools.training.coverage import coverage as coverage_of
from marl_tools.training.evaluate import Policy
from marl_tools.training.ranks import follows
from marl_tools.training.shielded_policy import ShieldedPolicy, explain as explain_step

_TRAIN = """\
Train a team, or num_runs of them with consecutive seeds; evaluate and film it.

--config FILE.toml takes settings from a file, flags win. --resume RUN goes on with a run that was stopped
(marl-tools train --resume --help)."""


def train(args: list[str]) -> list[Path]:
    """Train or go on; the run folders, of which the first of several processes alone takes care."""
    if any(arg.split("=")[0] == "--resume" for arg in args):
        check_resume_flags(args)
        asked = {"-h", "--help"}.intersection(args)
        call = parse(Resume, ["--help"] if asked else args, "train --resume")
        results = [resume(call.resume, timesteps=call.timesteps, stop_at=call.stop_at, trusted=call.trust)]
    else:
        results = train_runs(_run_config(args))
    if follows():
        return []
    for result in results:
        _print_result(result)
    return [result.folder for result in results]


def _run_config(args: list[str]) -> RunConfig:
    """The settings of a train command: the flags, over those of the --config file if one is given."""
    split = [part for arg in args for part in (arg.split("=", 1) if arg.startswith("--config=") else [arg])]
    if "--config" not in split:
        return parse(RunConfig, split, "train", description=_TRAIN)
    at = split.index("--config")
    if at + 1 == len(split):
        raise ConfigError("--config needs a TOML file after it")
    file, rest = Path(split[at + 1]), split[:at] + split[at + 2 :]
    named = {"env": rest[0]} if rest and not rest[0].startswith("-") else {}
    return parse(RunConfig, rest, "train", description=_TRAIN, default=RunConfig.from_toml(file, **named))


def evaluate(args: list[str]) -> None:
    """Play episodes with a trained team; its returns, and its certificate where there are costs."""
    call: EvaluateArgs = parse(EvaluateArgs, args, "evaluate")
    config = _trusted_config(call.run, call.trust, call.seed)
    policy = load_team(call.run, config, checkpoint=call.checkpoint, deterministic=call.deterministic)
    with console().status(f"playing {call.episodes} episodes"):
        evaluation = evaluate_run(config, policy, episodes=call.episodes)
    confidence = config.final_policy_eval_confidence
    summary = evaluation.summary(confidence)
    what = {"policy": "trained", "checkpoint": call.checkpoint, "seed": config.eval_seed}
    save_latest({**what, **summary}, call.run, "evaluation.json")
    print_evaluation(config.env, summary)
    print(f"written to {call.run / 'evaluation.json'}")
    certificate = certify_run(config, evaluation, policy)
    if certificate:
        save_latest({**certificate, "checkpoint": call.checkpoint}, call.run, "certificate.json")
        print_certificate(certificate)
        print(f"written to {call.run / 'certificate.json'}")


def record(args: list[str]) -> None:
    """Film a trained team."""
    call: RecordArgs = parse(RecordArgs, args, "record")
    at_least(1)("--episodes", call.episodes)
    config = _trusted_config(call.run, call.trust, call.seed)
    policy = load_team(call.run, config, checkpoint=call.checkpoint, deterministic=call.deterministic)
    try:
        clips = _film(call, config, policy)
    except (MarlToolsError, FileNotFoundError):
        raise
    except Exception as error:
        # A renderer raises whatever it likes, without saying whose it is.
        raise EnvError(f"{config.env} could not be filmed: {error!r}") from error
    for clip in clips:
        print(_as_named(clip))


def _as_named(path: Path) -> Path:
    """A path as somebody in this folder would type it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _film(call: RecordArgs, config: RunConfig, policy: Policy) -> list[Path]:
    folder = call.out or call.run / "videos"
    refuse_file(folder)
    common = {"fps": call.fps, "overlay": call.overlay}
    if call.grid is None:
        return film_episodes(
            config.factory(judged=True),
            policy,
            folder,
            episodes=call.episodes,
            seed=config.eval_seed,
            name=call.name,
            suffix=f".{call.format}",
            **common,
        )
    rows, cols = _grid(call.grid)
    return [
        film_grid(
            config.factory(judged=True),
            policy,
            folder / f"{file_stem(call.name)}-{call.grid}.{call.format}",
            rows=rows,
            cols=cols,
            seed=config.eval_seed + number * rows * cols,
            **common,
        )
        for number in range(call.episodes)
    ]


def explain(args: list[str]) -> None:
    """Why the shield decided as it did at one step."""
    call: ExplainArgs = parse(ExplainArgs, args, "explain")
    config = _trusted_config(call.run, call.trust, None)
    policy = _shielded(call, config)
    env = config.factory()(split="eval")
    try:
        rows = explain_step(
            env, policy, seed=config.eval_seed + at_least(0)("EPISODE", call.episode), step=call.step
        )
    finally:
        env.close()
    print_explanation(f"evaluation episode {call.episode}, step {call.step}", rows, policy.team.agents)


def coverage(args: list[str]) -> None:
    """How much of the env the shield knows."""
    call: CoverageArgs = parse(CoverageArgs, args, "coverage")
    found = coverage_of(_shielded(call, _trusted_config(call.run, call.trust, None)).team)
    save_to_file(found, call.run, "coverage.json")
    print_coverage(found)
    print(f"written to {call.run / 'coverage.json'}")


def _shielded(call: OfRun, config: RunConfig) -> ShieldedPolicy:
    policy = load_team(call.run, config, checkpoint=call.checkpoint)
    if not isinstance(policy, ShieldedPolicy):
        raise ConfigError(f"{call.run} has no shield: train with --shield ledger or step")
    return policy


def runs(args: list[str]) -> None:
    """The run folders below a folder."""
    call: RunsArgs = parse(RunsArgs, args, "runs")
    runs = list_runs(call.folder)
    if call.json:
        print(json.dumps([dataclasses.asdict(run) for run in runs], indent=2))
    else:
        print_runs(runs)


def _trusted_config(run: Path, trusted: bool, seed: int | None) -> RunConfig:
    config = load_config(run)
    check_trust(config, trusted)
    return config if seed is None else dataclasses.replace(config, seed=seed, final_policy_eval_seed_offset=0)


def _grid(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d?)x([1-9]\d?)", text)
    if match is None:
        raise ConfigError(f"--grid {text!r}: write rows x columns, as in 2x2")
    return int(match[1]), int(match[2])


def _print_result(result: RunResult) -> None:
    """Returns before and after, agent by agent, and where the files are."""
    evaluations = {}
    # A run that was resumed played the random episodes before it was stopped.
    for title in ("random", "trained"):
        with suppress(FileNotFoundError):
            evaluations[title] = load_from_file(result.folder, f"evaluation-{title}.json")
    print_returns(evaluations)
    if result.certificate:
        print_certificate(result.certificate)
    print(f"run folder  {result.folder}")
    # Clips are as old as what they show.
    for clip in sorted((result.folder / "videos").glob("*.mp4"), key=lambda clip: clip.stat().st_mtime_ns):
        print(f"video       {clip}")
