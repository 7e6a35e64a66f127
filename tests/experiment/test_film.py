"""Films of a team: a clip an episode, or several episodes in one, frame by frame."""

import json

import numpy as np
import pytest

from marl_tools.core.errors import ConfigError, VideoError
from marl_tools.core.factory import EnvFactory
from marl_tools.envs import crossing
from marl_tools.experiment.film import film_episodes, film_grid, seed_with_override
from marl_tools.training.attach import attach_shield
from marl_tools.training.evaluate import play_episode
from tests.core.film import SIZE, Film, decode, facts, numbers
from tests.envs_for_tests import Team


class Still:
    """Always plays 0, and remembers the seeds that it was given."""

    def __init__(self):
        self.seeds = []

    def seed(self, seed):
        self.seeds.append(seed)

    def __call__(self, observations, infos=None):
        return dict.fromkeys(observations, 0)


class Counted(Film):
    made = 0
    shut = 0
    lengths = (5,)

    def __init__(self, **kwargs):
        cls = type(self)
        super().__init__(max_cycles=cls.lengths[cls.made % len(cls.lengths)], **kwargs)
        cls.made += 1

    def close(self):
        type(self).shut += 1


@pytest.fixture
def factory(monkeypatch):
    monkeypatch.setattr(Counted, "made", 0)
    monkeypatch.setattr(Counted, "shut", 0)
    return EnvFactory(make_env=Counted)


def test_each_episode_has_a_clip_with_all_its_frames_and_a_note_with_its_seed(tmp_path, factory):
    policy, saved = Still(), []
    clips = film_episodes(
        factory,
        policy,
        tmp_path,
        episodes=2,
        seed=40,
        name="x",
        on_saved=lambda path, log: saved.append((path, log)),
    )
    assert [clip.name for clip in clips] == ["x-episode-0.mp4", "x-episode-1.mp4"]
    assert policy.seeds == [40, 41]
    # One env renders its frames in a row, 6 an episode.
    assert [numbers(clip) for clip in clips] == [list(range(6)), list(range(6, 12))]
    notes = [json.loads(clip.with_suffix(".json").read_text()) for clip in clips]
    assert [note["seed"] for note in notes] == [40, 41]
    assert [path for path, _ in saved] == clips
    assert [log.split for _, log in saved] == ["eval", "eval"]
    assert Counted.made == Counted.shut == 1


@pytest.mark.parametrize("suffix", [".gif", ".webm"])
def test_other_formats_and_rates_are_kept(tmp_path, factory, suffix):
    (clip,) = film_episodes(factory, Still(), tmp_path, episodes=1, seed=0, suffix=suffix, fps=10)
    assert clip.suffix == suffix
    assert "10 fps" in facts(clip)
    assert numbers(clip) == list(range(6))


def test_filming_again_replaces_nothing(tmp_path, factory):
    first, second = (film_episodes(factory, Still(), tmp_path, episodes=1, seed=0)[0] for _ in range(2))
    assert first != second
    assert first.exists()
    assert second.exists()


def test_an_env_that_renders_nothing_is_refused_by_name(tmp_path, monkeypatch):
    factory = EnvFactory(make_env=Team, kwargs={"max_cycles": 2})
    monkeypatch.setattr(Team, "render", lambda self: None, raising=False)
    for film in (
        lambda: film_episodes(factory, Still(), tmp_path, episodes=1, seed=0),
        lambda: film_grid(factory, Still(), tmp_path / "x.mp4", rows=1, cols=1, seed=0),
    ):
        with pytest.raises(Exception, match=r"render_mode|None") as caught:
            film()
        assert type(caught.value).__module__.startswith("marl_tools")
    assert not list(tmp_path.glob("*.mp4*"))


def test_every_env_is_closed_when_the_policy_breaks(tmp_path, factory):
    class Breaking(Still):
        def __call__(self, observations, infos=None):
            raise ArithmeticError("the policy broke")

    with pytest.raises(ArithmeticError):
        film_episodes(factory, Breaking(), tmp_path, episodes=1, seed=0)
    assert Counted.shut == 1
    with pytest.raises(ArithmeticError):
        film_grid(factory, Breaking(), tmp_path / "x.mp4", rows=1, cols=2, seed=0)
    assert Counted.shut == 3


def test_a_clip_that_cannot_be_saved_is_an_error(tmp_path, factory, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("marl_tools.core.video.publish", full)
    with pytest.raises(VideoError, match="No space left"):
        film_episodes(factory, Still(), tmp_path, episodes=1, seed=0)


def quadrants(frame):
    """The number shown in each cell of a 2x2 grid, row by row."""
    height, width = SIZE
    cells = [frame[y : y + height, x : x + width] for y in (0, height) for x in (0, width)]
    return [number_in(cell) for cell in cells]


def number_in(cell):
    height, width = cell.shape[:2]
    rows = (np.arange(4) * 2 + 1) * height // 8
    columns = (np.arange(4) * 2 + 1) * width // 8
    bits = cell[rows][:, columns, 1].reshape(-1) > 127
    return sum(int(bit) << place for place, bit in enumerate(bits))


def test_a_grid_shows_its_episodes_side_by_side_until_the_last_one_is_over(tmp_path, factory, monkeypatch):
    monkeypatch.setattr(Counted, "lengths", (5, 2, 3, 1))
    policy = Still()
    path = film_grid(factory, policy, tmp_path / "deep" / "grid.mp4", rows=2, cols=2, seed=7)
    frames = decode(path)
    assert frames.shape == (6, 2 * SIZE[0], 2 * SIZE[1], 3)
    # Each env counts its own pictures; one that is over keeps its last.
    assert [quadrants(frame) for frame in frames] == [[t, min(t, 2), min(t, 3), min(t, 1)] for t in range(6)]
    note = json.loads(path.with_suffix(".json").read_text())
    assert [row["seed"] for row in note["episodes"]] == [7, 8, 9, 10]
    assert [row["length"] for row in note["episodes"]] == [5, 2, 3, 1]
    assert policy.seeds == [7]
    assert Counted.made == Counted.shut == 4


def test_a_grid_can_be_a_gif_and_replaces_nothing(tmp_path, factory):
    paths = [
        film_grid(factory, Still(), tmp_path / "grid.gif", rows=1, cols=2, seed=0, fps=20) for _ in range(2)
    ]
    assert len({*paths}) == 2
    assert decode(paths[1]).shape == (6, SIZE[0], 2 * SIZE[1], 3)
    assert "20 fps" in facts(paths[0])


@pytest.mark.parametrize(("rows", "cols"), [(0, 2), (2, 0), (-1, 1)])
def test_a_grid_without_cells_is_refused(tmp_path, factory, rows, cols):
    with pytest.raises(ConfigError, match=f"grid {rows}x{cols}"):
        film_grid(factory, Still(), tmp_path / "x.mp4", rows=rows, cols=cols, seed=0)
    assert Counted.made == 0


def test_the_episode_that_is_looked_for_is_the_first_in_which_the_shield_overrides():
    cars = EnvFactory(make_env=crossing.parallel_env)
    hasty = attach_shield(cars, lambda obs: dict.fromkeys(obs, 1), learn_episodes=5)
    env, overridden = cars(), []
    for seed in range(8):
        play_episode(env, hasty, seed)
        overridden.append(bool(env.last_episode.overrides))
    assert seed_with_override(cars, hasty, 0) == overridden.index(True)
    patient = attach_shield(cars, lambda obs: dict.fromkeys(obs, 0), learn_episodes=1)
    assert seed_with_override(cars, patient, 3) == 3
    assert seed_with_override(cars, Still(), 3) == 3
