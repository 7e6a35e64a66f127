"""What every benchmark page ends with, and how it is written."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def machine(packages: Sequence[str]) -> str:
    """One line: processor, cores, load, Python and package versions."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, load {load} at the end; "
        f"Python {platform.python_version()}, {versions}."
    )


def write_page(name: str, lines: Sequence[str], packages: Sequence[str]) -> None:
    """Write ``results/<name>.md`` and print it."""
    text = "\n".join([*lines, "", machine(packages), ""])
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text)
    print(text)
