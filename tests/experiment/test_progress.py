"""Progress: plain lines now and then where there is no terminal, one live bar where there is one."""

import io

import pytest
from rich.console import Console

from marl_tools.core.logging import configure_logging
from marl_tools.experiment import progress as module
from marl_tools.experiment.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """Seconds that only the test moves."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def lines():
    sink = io.StringIO()
    configure_logging(console_sink=sink, log_format="{extra[type]} {message}")
    yield lambda: sink.getvalue().splitlines()
    configure_logging()


def test_without_a_terminal_there_is_a_line_now_and_then_and_one_at_the_end(clock, lines):
    with Progress("x", 1000) as progress:
        for frames in range(100, 1001, 100):
            clock[0] += 4
            progress.update(frames, -2.0)
    assert lines() == [
        "train 400/1000 steps  25 steps/s  return -2.00  24 s left",
        "train 800/1000 steps  25 steps/s  return -2.00  8 s left",
        "train 1000/1000 steps  25 steps/s  return -2.00  0 s left",
    ]


def test_a_resumed_run_counts_its_own_speed_and_overshoot_leaves_no_time(clock, lines):
    with Progress("x", 1000, start=900) as progress:
        clock[0] += 10
        progress.update(1020, float("nan"))
    assert lines() == ["train 1000/1000 steps  12 steps/s  return nan  0 s left"]


def test_an_update_that_took_no_time_divides_by_nothing(clock, lines):
    with Progress("x", 10) as progress:
        progress.update(10, 0.0)
    assert len(lines()) == 1


def test_on_a_terminal_there_is_a_bar_with_speed_return_and_time_left(monkeypatch, lines):
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(module, "console", lambda: terminal)
    with Progress("spread", 100) as progress:
        progress.update(50, 1.25)
        progress.update(120, 1.5)
    shown = screen.getvalue()
    assert "spread" in shown
    assert "100/100 steps" in shown, "a bar is never more than full"
    assert "steps/s  return 1.50" in shown
    assert lines() == []


def test_the_bar_goes_away_when_the_run_breaks(monkeypatch):
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(module, "console", lambda: terminal)
    progress = Progress("spread", 100)
    with pytest.raises(ArithmeticError):
        with progress:
            raise ArithmeticError
    # A live display that is still up refuses a second one.
    with Progress("again", 100):
        pass
