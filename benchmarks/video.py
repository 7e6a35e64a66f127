"""Filming one episode: marl_tools' RecordVideo beside PettingZoo's RecordVideoParallel and rendering alone.

    python benchmarks/video.py [--repeats 3] [--cases scene-400 ...] [--out benchmarks/results/video.md]

Every run has a process of its own, the three kinds take turns, and the table holds medians. Each frame carries its
number, so that frames lost are counted in the decoded file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

CASES = {"scene-400": (400, 600), "scene-700": (700, 1000), "simple_spread": (700, 1000)}
"""Size in pixels and frames; `scene` is a cheap pygame drawing, the other is mpe2's env."""

RECORDERS = ("render only", "PettingZoo", "marl_tools")
BITS, BLOCK = 16, 16


def make_env(case):
    size, frames = CASES[case]
    if case == "simple_spread":
        from mpe2 import simple_spread_v3

        return stamped(simple_spread_v3.parallel_env(render_mode="rgb_array", max_cycles=frames - 1))
    return stamped(make_scene(size, frames - 1))


def make_scene(size, steps):
    """Discs that move over a grid, drawn with pygame and handed out as PettingZoo's envs do: a transposed view."""
    import gymnasium
    import pygame
    from pettingzoo import ParallelEnv

    class Scene(ParallelEnv):
        render_mode = "rgb_array"

        def __init__(self):
            self.metadata = {"name": "scene", "render_fps": 30}
            self.possible_agents = [f"agent_{i}" for i in range(3)]
            self.screen = pygame.Surface((size, size))

        def action_space(self, agent):
            return gymnasium.spaces.Discrete(2)

        def observation_space(self, agent):
            return gymnasium.spaces.Box(0, 1, (2,))

        def reset(self, seed=None, options=None):
            self.agents, self.t = list(self.possible_agents), 0
            return self.observe(), {agent: {} for agent in self.agents}

        def step(self, actions):
            self.t += 1
            agents, over = self.agents, self.t >= steps
            result = (
                self.observe(),
                dict.fromkeys(agents, 0.0),
                dict.fromkeys(agents, False),
                dict.fromkeys(agents, over),
                {agent: {} for agent in agents},
            )
            if over:
                self.agents = []
            return result

        def observe(self):
            return {agent: np.zeros(2, np.float32) for agent in self.agents}

        def render(self):
            self.screen.fill((250, 250, 245))
            for line in range(0, size, 50):
                pygame.draw.line(self.screen, (200, 200, 200), (line, 0), (line, size))
                pygame.draw.line(self.screen, (200, 200, 200), (0, line), (size, line))
            for i in range(12):
                angle = self.t / 40 + i
                at = size * (0.5 + 0.4 * np.sin([angle, angle * 1.3 + i]))
                pygame.draw.circle(self.screen, (40 + 17 * i, 90, 220 - 15 * i), at, size // 20)
            return np.transpose(np.array(pygame.surfarray.pixels3d(self.screen)), (1, 0, 2))

        def close(self):
            pass

    return Scene()


def stamped(env):
    """The env with the number of each rendered frame drawn into its top left corner."""
    from pettingzoo.utils import BaseParallelWrapper

    class Stamped(BaseParallelWrapper):
        count = 0

        def render(self):
            frame = self.env.render()
            for bit in range(BITS):
                frame[:BLOCK, bit * BLOCK : (bit + 1) * BLOCK] = 255 * (self.count >> bit & 1)
            self.count += 1
            return frame

    return Stamped(env)


def read_numbers(path):
    import imageio_ffmpeg

    frames = imageio_ffmpeg.read_frames(str(path))
    width, height = next(frames)["size"]
    numbers = []
    for data in frames:
        row = np.frombuffer(data, np.uint8).reshape(height, width, 3)[BLOCK // 2, :, 0]
        numbers.append(sum(int(row[bit * BLOCK + BLOCK // 2] > 127) << bit for bit in range(BITS)))
    return numbers


def run_one(case, recorder, folder):
    """One episode, then a reset that is not filmed, then close: the figures of this process as a dict."""
    env = make_env(case)
    start = time.perf_counter()
    if recorder == "PettingZoo":
        from pettingzoo.utils.wrappers import RecordVideoParallel

        env = RecordVideoParallel(env, folder, episode_trigger=first_only)
    elif recorder == "marl_tools":
        from marl_tools.core.wrappers.record_video_parallel import RecordVideo

        env = RecordVideo(env, folder, episode_trigger=first_only)
    laps = [time.perf_counter()]
    env.reset(seed=0)
    bare = recorder == "render only"
    if bare:
        env.render()
    laps.append(time.perf_counter())
    while env.agents:
        env.step(dict.fromkeys(env.agents, 0))
        if bare:
            env.render()
        laps.append(time.perf_counter())
    usual = statistics.median(np.diff(laps))
    env.reset(seed=1)
    after_reset = time.perf_counter()
    env.close()
    stop = time.perf_counter()
    clips = list(Path(folder).glob("*.mp4"))
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    # The terminal step is the last lap; an ordinary one would have taken `usual`.
    return {
        "wall": stop - start,
        "blocked": stop - laps[-2] - usual,
        "close": stop - after_reset,
        "cpu": sum(used.ru_utime + used.ru_stime for used in usage),
        "peak": usage[0].ru_maxrss / 1024,
        "child": usage[1].ru_maxrss / 1024,
        "size": sum(clip.stat().st_size for clip in clips) / 1e6,
        "clips": [str(clip) for clip in clips],
    }


def first_only(episode):
    return episode == 0


def measure(case, recorder):
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--one", case, recorder, folder]
        result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        # Decoded here, so that the run's own figures hold nothing of it.
        numbers = [number for clip in result["clips"] for number in read_numbers(clip)]
    expected = CASES[case][1]
    result["lost"] = len(set(range(expected)) - set(numbers)) if result["clips"] else 0
    result["exact"] = numbers == list(range(expected))
    return result


def table(results):
    lines = [
        "| episode | recorder | added wall time, s | added CPU time, s | blocked at the end, s (of it `close`) | peak memory above render-only, MB | ffmpeg's peak at most, MB | frames lost | file, MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case, (size, frames) in CASES.items():
        if case not in results:
            continue
        base = {key: median(results[case]["render only"], key) for key in ("wall", "cpu", "blocked", "peak")}
        for recorder in RECORDERS[1:]:
            runs = results[case][recorder]
            lost = sorted({run["lost"] for run in runs})
            lines.append(
                f"| {case} {size}x{size} x {frames} | {recorder} | {median(runs, 'wall') - base['wall']:.2f} "
                f"| {median(runs, 'cpu') - base['cpu']:.2f} "
                f"| {median(runs, 'blocked') - base['blocked']:.2f} ({median(runs, 'close'):.2f}) "
                f"| {median(runs, 'peak') - base['peak']:.0f} | {median(runs, 'child'):.0f} "
                f"| {'-'.join(map(str, lost))}{'' if all(run['exact'] for run in runs) else ' (not exact)'} "
                f"| {median(runs, 'size'):.2f} |"
            )
        lines.append(f"| {case} | render only: {base['wall']:.2f} s, {base['peak']:.0f} MB | | | | | | | |")
    return "\n".join(lines)


def median(runs, key):
    return statistics.median(run[key] for run in runs)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(run_one(*args.one)))
        return
    results = {}
    for case in args.cases:
        results[case] = {recorder: [] for recorder in RECORDERS}
        for repeat in range(args.repeats):
            for recorder in RECORDERS:
                result = measure(case, recorder)
                results[case][recorder].append(result)
                shown = {key: round(value, 2) for key, value in result.items() if key != "clips"}
                print(f"{case} {recorder} {repeat + 1}/{args.repeats}: {shown}", file=sys.stderr)
    packages = ("pettingzoo", "moviepy", "imageio-ffmpeg", "numpy", "mpe2")
    text = (
        "# Filming one episode\n\n`python benchmarks/video.py`, medians of "
        f"{args.repeats} alternating runs, each in its own process.\n\n{table(results)}\n\n"
        "Blocked: the terminal step, the next reset and `close`, beyond what they take without a recorder. "
        "Not exact: the file does not hold each frame once, in order. ffmpeg's peak is that of the child processes, "
        "which start as an image of their parent: an upper bound.\n\n"
        f"Python {platform.python_version()}, {', '.join(f'{name} {version(name)}' for name in packages)}; "
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f} at the end.\n"
    )
    print(text)
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
