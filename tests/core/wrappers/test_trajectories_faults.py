"""What is saved when something goes wrong: env, disk, Ctrl-C, kill, fork, a forgotten close."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys

import numpy as np
import pytest

from marl_tools.core.segment_files import segment_files
from marl_tools.core.segments import read_segment
from marl_tools.core.wrappers import EpisodeRecorder, TrajectoryRecorder
from marl_tools.core.wrappers.base import ParallelWrapper
from tests.envs_for_tests import Team


class Faulty(ParallelWrapper):
    """Raises ``error`` in place of its third step, once, before or after the env below has taken it."""

    def __init__(self, env, error, *, after=False):
        super().__init__(env)
        self.error, self.after = error, after

    def step(self, actions):
        if self.env.t == 2 and self.error:
            if self.after:
                self.env.step(actions)
            error, self.error = self.error, None
            raise error
        return self.env.step(actions)


def saved(folder):
    return [read_segment(path) for path in segment_files(folder)]


def act(env, steps):
    for _ in range(steps):
        env.step(dict.fromkeys(env.agents, 1))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("the engine blew up"), SystemExit(3)])
def test_what_was_recorded_is_on_disk_before_the_fault_of_an_env_is_seen(tmp_path, error):
    env = TrajectoryRecorder(Faulty(Team(2, max_cycles=6), error), tmp_path)
    env.reset(seed=0)
    act(env, 2)
    with pytest.raises(type(error)):
        act(env, 1)
    (segment,) = saved(tmp_path)
    assert (segment.transitions, segment.final) == (4, False)
    # Whoever goes on all the same loses nothing either.
    act(env, 4)
    env.close()
    first, second = saved(tmp_path)
    assert (second.transitions, second.final, second.segment, second.t_start) == (8, True, 1, 2)
    assert np.array_equal(first.agents["agent_0"].obs[-1], second.agents["agent_0"].obs[0])


def test_no_transition_is_made_across_a_step_that_nobody_saw(tmp_path):
    recorder = EpisodeRecorder(Team(2, max_cycles=7))
    env = TrajectoryRecorder(Faulty(recorder, KeyboardInterrupt(), after=True), tmp_path, (50, 50))
    env.reset(seed=0)
    act(env, 2)
    with pytest.raises(KeyboardInterrupt):
        act(env, 1)
    act(env, 4)
    env.close()
    first, second = saved(tmp_path)
    assert list(first.agents["agent_0"].t) == [0, 1]
    # Step 3 was not seen, and step 4 only led to the first observation of the rest.
    assert list(second.agents["agent_0"].t) == [4, 5, 6]
    assert list(second.agents["agent_0"].obs[:, 0]) == [4, 5, 6, 7]
    assert second.final


def test_an_episode_that_goes_on_after_a_failed_reset_is_saved_from_there_on(tmp_path):
    class Once(Team):
        def reset(self, seed=None, options=None):
            if seed == 13:
                raise RuntimeError("not this one")
            return super().reset(seed=seed, options=options)

    env = TrajectoryRecorder(Once(1, max_cycles=6), tmp_path)
    env.reset(seed=0)
    act(env, 2)
    with pytest.raises(RuntimeError, match="not this one"):
        env.reset(seed=13)
    act(env, 4)
    env.close()
    first, second = (segment.agents["agent_0"] for segment in saved(tmp_path))
    assert (list(first.t), first.end) == ([0, 1], "interrupted")
    assert (list(second.t), second.end, second.arrival) == ([3, 4, 5], "truncated", None)


def test_a_reset_and_a_close_in_the_middle_save_the_rest_as_interrupted(tmp_path):
    env = TrajectoryRecorder(Team(2, max_cycles=6, deaths={"agent_1": 1}), tmp_path)
    env.reset(seed=0)
    act(env, 2)
    env.reset(seed=1)
    act(env, 3)
    env.close()
    env.close()
    for segment in saved(tmp_path):
        assert segment.final
        assert {name: agent.end for name, agent in segment.agents.items()} == {
            "agent_0": "interrupted",
            "agent_1": "terminated",
        }
        assert not segment.agents["agent_0"].trunc.any()


def test_flush_in_the_middle_cuts_and_nothing_is_saved_twice(tmp_path):
    env = TrajectoryRecorder(Team(1, max_cycles=6), tmp_path)
    env.flush()
    env.reset(seed=0)
    env.flush()
    act(env, 2)
    env.flush()
    env.flush()
    act(env, 1)
    env.cut()
    act(env, 3)
    env.close()
    assert [list(segment.agents["agent_0"].t) for segment in saved(tmp_path)] == [[0, 1], [2], [3, 4, 5]]
    assert [segment.segment for segment in saved(tmp_path)] == [0, 1, 2]


def test_a_full_disk_stops_the_next_call_before_it_does_anything(tmp_path):
    folder = tmp_path / "out"
    folder.write_text("in the way")
    env = TrajectoryRecorder(Team(1, max_cycles=200), folder, (1, 1))
    env.reset(seed=0)
    with pytest.raises(OSError, match=r"cannot save trajectories in .*out.*make room"):
        act(env, 200)
    t = env.unwrapped.t
    # It was told once. From here on the env goes on, and the files as soon as they can.
    folder.unlink()
    act(env, 200 - t)
    env.close()
    assert [list(segment.agents["agent_0"].t) for segment in saved(folder)] == [[step] for step in range(200)]


def test_a_disk_that_fails_beside_the_env_does_not_hide_the_envs_own_fault(tmp_path):
    folder = tmp_path / "out"
    folder.write_text("in the way")
    env = TrajectoryRecorder(Faulty(Team(1), RuntimeError("the engine blew up")), folder)
    env.reset(seed=0)
    act(env, 2)
    with pytest.raises(RuntimeError, match="the engine blew up") as fault:
        act(env, 1)
    assert "cannot save trajectories" in fault.value.__notes__[0]
    folder.unlink()
    env.close()
    assert [segment.transitions for segment in saved(folder)] == [2]


def test_a_close_that_cannot_save_closes_the_env_and_can_be_repeated(tmp_path):
    class Closing(Team):
        closed = 0

        def close(self):
            self.closed += 1

    folder = tmp_path / "out"
    folder.write_text("in the way")
    team = Closing(1)
    env = TrajectoryRecorder(team, folder)
    env.reset(seed=0)
    act(env, 2)
    with pytest.raises(OSError, match="cannot save trajectories"):
        env.close()
    assert team.closed == 1
    folder.unlink()
    env.close()
    assert [segment.transitions for segment in saved(folder)] == [2]


SCRIPT = """
import sys
from marl_tools.core.wrappers import TrajectoryRecorder
from tests.envs_for_tests import Team
env = TrajectoryRecorder(Team(2), {folder!r}, (4, 4), writer="w")
env.reset(seed=0)
for step in range(10):
    env.step(dict.fromkeys(env.agents, 1))
{end}
"""


def run(folder, end):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(folder=str(folder), end=end)],
        # A pipe that nobody writes to: what waits for it waits, whatever the tests themselves read from.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_program_that_forgets_to_close_loses_nothing(tmp_path):
    # Nor does one that ends in an exception outside the env, such as Ctrl-C in the policy.
    ends = {"plain": "", "raises": "raise KeyboardInterrupt", "drops": "del env"}
    programs = {name: run(tmp_path / name, end) for name, end in ends.items()}
    for name, program in programs.items():
        errors = program.communicate()[1]
        assert "Exception ignored" not in errors
        assert [segment.transitions for segment in saved(tmp_path / name)] == [8, 8, 4], name


def test_a_killed_program_leaves_whole_files_and_the_next_one_numbers_on(tmp_path):
    program = run(tmp_path, "env._writer.flush()\nprint('go', flush=True)\nsys.stdin.read()")
    assert program.stdout is not None
    program.stdout.readline()
    program.send_signal(signal.SIGKILL)
    program.communicate()
    assert [segment.transitions for segment in saved(tmp_path)] == [8, 8]
    run(tmp_path, "").communicate()
    assert [segment.transitions for segment in saved(tmp_path)] == [8, 8, 8, 8, 4]
    assert [path.name[:10] for path in segment_files(tmp_path)] == [f"w-{number:08d}" for number in range(5)]


def _go_on(env):
    act(env, 3)
    env.close()


def test_a_forked_child_saves_its_own_steps_and_the_parent_its_own(tmp_path):
    env = TrajectoryRecorder(Team(1, max_cycles=9), tmp_path, (2, 2))
    env.reset(seed=0)
    act(env, 4)
    child = multiprocessing.get_context("fork").Process(target=_go_on, args=(env,))
    child.start()
    child.join()
    act(env, 5)
    env.close()
    writers = {}
    for path in segment_files(tmp_path):
        writers.setdefault(path.name[:8], []).extend(read_segment(path).agents["agent_0"].t)
    assert sorted(writers.values(), key=len) == [[4, 5, 6], [0, 1, 2, 3, 4, 5, 6, 7, 8]]
    assert child.exitcode == 0
