"""Several trackers as one: each is told everything, and none of them can stop a run."""

import pytest

from marl_tools.core.trackers import Trackers
from tests.core.test_types import episode

CALLS = [
    ("points", ([{"frames": 1, "loss": 0.5}], "update", "frames")),
    ("history", ([episode()], "train")),
    ("evaluation", ([episode()], "random")),
    ("table", ("certificate", ["who"], [["team"]], 3)),
    ("video", ("clip.mp4", "final", 3)),
    ("finish", (0,)),
]


class Notebook:
    """Writes down what it is told, or raises what it was given."""

    def __init__(self, error=None):
        self.told = []
        self.error = error

    def __getattr__(self, name):
        def tell(*args):
            if self.error:
                raise self.error
            self.told.append((name, args))

        return tell


@pytest.fixture
def warnings(monkeypatch):
    said = []
    monkeypatch.setattr(
        "marl_tools.core.trackers.log", lambda message, **kind: said.append((message, kind["priority"]))
    )
    return said


def test_every_tracker_is_told_everything_in_the_same_words(warnings):
    first, second = Notebook(), Notebook()
    trackers = Trackers({"a": first, "b": second})
    for name, args in CALLS:
        getattr(trackers, name)(*args)
    assert first.told == second.told == CALLS
    assert warnings == []


@pytest.mark.parametrize("error", [OSError(28, "No space left"), RuntimeError("closed"), ValueError("odd")])
def test_a_fault_of_one_tracker_stops_neither_the_run_nor_the_others(warnings, error):
    broken, whole = Notebook(error), Notebook()
    trackers = Trackers({"broken": broken, "whole": whole})
    for name, args in CALLS * 2:
        getattr(trackers, name)(*args)
    assert whole.told == CALLS * 2
    # Said once, not at every update.
    [(message, priority)] = warnings
    assert f"broken misses something: {type(error).__name__}" in message
    assert priority == "WARNING"


def test_another_kind_of_fault_is_told_as_well(warnings):
    broken = Notebook(OSError("disk"))
    trackers = Trackers({"broken": broken})
    trackers.finish()
    broken.error = ValueError("odd")
    trackers.finish()
    assert len(warnings) == 2


def test_ctrl_c_inside_a_tracker_is_no_fault_of_it():
    with pytest.raises(KeyboardInterrupt):
        Trackers({"a": Notebook(KeyboardInterrupt())}).finish()


def test_leaving_the_context_finishes_with_success_or_failure():
    whole, failed = Notebook(), Notebook()
    with Trackers({"a": whole}):
        pass
    with pytest.raises(ZeroDivisionError), Trackers({"a": failed}):
        raise ZeroDivisionError
    assert (whole.told, failed.told) == ([("finish", (0,))], [("finish", (1,))])
