"""Films of a team: a clip an episode, or several episodes side by side in one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from marl_tools.core.errors import ConfigError
from marl_tools.core.factory import EnvFactory
from marl_tools.core.frames import tile
from marl_tools.core.types import EpisodeLog
from marl_tools.core.video import ClipWriter
from marl_tools.core.wrappers.record_video_parallel import RecordVideo, always
from marl_tools.core.wrappers.recorder import EpisodeRecorder
from marl_tools.training.evaluate import Policy, play_episode
from marl_tools.training.shielded_policy import ShieldedPolicy


def film_episodes(
    factory: EnvFactory,
    policy: Policy,
    folder: Path,
    *,
    episodes: int,
    seed: int,
    name: str = "eval",
    suffix: str = ".mp4",
    overlay: bool = False,
    fps: float | None = None,
    on_saved: Callable[[Path, EpisodeLog], None] | None = None,
) -> list[Path]:
    """Play and film ``episodes`` episodes, the i-th with seed ``seed + i``; returns the clips.

    Raises:
        ConfigError: the env renders no images.
        VideoError: a clip could not be encoded or saved.
    """
    clips: list[Path] = []

    def saved(path: Path, log: EpisodeLog) -> None:
        clips.append(path)
        if on_saved:
            on_saved(path, log)

    env = RecordVideo(
        factory(render_mode="rgb_array", split="eval"),
        folder,
        episode_trigger=always,
        name_prefix=name,
        fps=fps,
        suffix=suffix,
        overlay=overlay,
        on_saved=saved,
        gc_trigger=None,
    )
    try:
        for number in range(episodes):
            play_episode(env, policy, seed + number)
    finally:
        env.close()
    if env.last_error:
        raise env.last_error
    return clips


def seed_with_override(factory: EnvFactory, policy: Policy, seed: int, *, tries: int = 8) -> int:
    """The first of ``tries`` seeds in whose episode the shield overrides an action; ``seed`` itself if there is none."""
    if not isinstance(policy, ShieldedPolicy):
        return seed
    env = factory(split="eval")
    try:
        for number in range(seed, seed + tries):
            play_episode(env, policy, number)
            assert env.last_episode is not None
            if env.last_episode.overrides:
                return number
    finally:
        env.close()
    return seed


def film_grid(
    factory: EnvFactory,
    policy: Policy,
    path: Path,
    *,
    rows: int,
    cols: int,
    seed: int,
    fps: float | None = None,
    overlay: bool = False,
) -> Path:
    """Play ``rows * cols`` episodes side by side in one clip; an episode that is over keeps its last picture.

    The policy's sampling is seeded once, with ``seed``; the i-th env with ``seed + i``.

    Raises:
        ConfigError: no cell in the grid, or an env that renders no images.
        VideoError: the clip could not be encoded or saved.
    """
    if rows < 1 or cols < 1:
        raise ConfigError(f"grid {rows}x{cols}: give at least one row and one column, as in 2x2")
    envs: list[EpisodeRecorder] = []
    try:
        envs.extend(factory(render_mode="rgb_array", split="eval") for _ in range(rows * cols))
        rate = fps if fps is not None else (getattr(envs[0], "metadata", None) or {}).get("render_fps") or 30
        path.parent.mkdir(parents=True, exist_ok=True)
        policy.seed(seed)
        states = [env.reset(seed=seed + index) for index, env in enumerate(envs)]
        players = [_player(policy, env) for env in envs]
        pictures = [env.render() for env in envs]
        with ClipWriter(path, rate) as clip:
            clip.add(tile(pictures, rows, cols))
            while any(env.builder.open for env in envs):
                for index, env in enumerate(envs):
                    if env.builder.open:
                        observations, infos = states[index]
                        live = {agent: observations[agent] for agent in env.agents}
                        observations, *_, infos = env.step(players[index](live, infos))
                        states[index] = (observations, infos)
                        pictures[index] = env.render()
                clip.add(tile(pictures, rows, cols))
            logs = [env.last_episode for env in envs if env.last_episode]
            saved = clip.close({"episodes": [log.to_json() for log in logs]})
    finally:
        for env in envs:
            env.close()
    assert saved is not None
    return saved


def _player(policy: Policy, env: EpisodeRecorder) -> Policy:
    """The policy itself, or if it has to know its env one of its own that does."""
    if not isinstance(policy, ShieldedPolicy):
        return policy
    player = policy.fork()
    player.begin(env)
    return player
