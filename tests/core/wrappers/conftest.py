"""What `RecordVideo` logged, for its tests."""

from __future__ import annotations

import pytest

import marl_tools.core.logging


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What was logged: (priority, message)."""
    lines: list[tuple[str, str]] = []

    def log(message, *, type=None, priority="INFO", exception=None):
        assert type == "video"
        lines.append((priority, str(message)))

    monkeypatch.setattr(marl_tools.core.logging, "log", log)
    return lines
