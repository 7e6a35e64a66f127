"""A run on a disk too small for it: what it says, what is left, and that it goes on once there is room.

    sudo python benchmarks/disk_full.py [--kilobytes 900]

Mounts a tmpfs of that size, hence needs the right to mount.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from resume_kills import differences

FLAGS = [
    "crossing",
    "--timesteps",
    "65536",
    "--rollouts",
    "64",
    "--hidden",
    "64",
    "64",
    "--checkpoint-every",
    "5",
]
FLAGS += ["--final-policy-eval-episodes", "20", "--video-episodes", "0", "--native"]


def train(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("marl-tools")), "train", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kilobytes", type=int, default=900)
    size = parser.parse_args().kilobytes
    with tempfile.TemporaryDirectory() as folder:
        disk, whole = Path(folder) / "disk", Path(folder) / "whole"
        disk.mkdir()
        assert train(*FLAGS, "--out", whole).returncode == 0
        used = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file())
        print(f"a run of {used // 1024} KiB on a disk of {size} KiB")
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", disk], check=True)
        try:
            run = disk / "run"
            full = train(*FLAGS, "--out", run)
            print(f"exit code {full.returncode}, last line on stderr:\n  {full.stderr.splitlines()[-1]}")
            episodes = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
            print(f"{len(episodes)} whole episodes are on the disk")
            again = train("--resume", run)
            print(f"resumed without room: exit code {again.returncode}:\n  {again.stderr.splitlines()[-1]}")
            subprocess.run(["mount", "-o", f"remount,size={20 * size}k", disk], check=True)
            resumed = train("--resume", run)
            print(f"resumed with room: exit code {resumed.returncode}")
            print("compared with the run that had room:", ", ".join(differences(whole, run)) or "identical")
        finally:
            subprocess.run(["umount", disk], check=True)


if __name__ == "__main__":
    main()
