"""Log lines: where they go, what they look like, and that nobody else's logging notices."""

import io
import logging as stdlib_logging
import multiprocessing
import os
import re
import subprocess
import sys
import threading

import loguru
import pytest
from rich.progress import Progress

from marl_tools.core import logging
from marl_tools.core.errors import ConfigError
from marl_tools.core.logging import LOG_FILE, configure_logging, console, log


@pytest.fixture(autouse=True)
def _unconfigured(monkeypatch):
    monkeypatch.setattr(logging, "_defaults", None)
    yield
    logging._logger().remove()


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self):
        return True


def test_an_unconfigured_log_goes_to_stderr_at_info(capsys):
    log("seen", type="train")
    log("unseen", priority="DEBUG")
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO     train      seen\n", err)


def test_braces_tags_markup_and_objects_are_printed_verbatim(tmp_path):
    sink = Terminal()
    configure_logging(console_sink=sink, logs_dir=tmp_path)
    message = "{x} {} {{y}} <red>a</red> </b> [bold]c[/bold] \\<d> :smile: %s äö\ttab"
    log(message)
    log({"k": 1})
    assert message in sink.getvalue()
    assert "{'k': 1}" in sink.getvalue()
    assert message in (tmp_path / LOG_FILE).read_text()


def test_configuring_again_replaces_the_earlier_sinks(tmp_path):
    first, second = io.StringIO(), io.StringIO()
    configure_logging(console_sink=first, logs_dir=tmp_path / "first")
    configure_logging(console_sink=second, logs_dir=tmp_path / "second")
    log("hello")
    assert first.getvalue() == (tmp_path / "first" / LOG_FILE).read_text() == ""
    assert second.getvalue() == (tmp_path / "second" / LOG_FILE).read_text() != ""


def test_the_log_folder_is_made_only_when_a_file_is_kept(tmp_path):
    configure_logging(console_sink=io.StringIO(), logs_dir=tmp_path / "logs", file_enabled=False)
    assert not (tmp_path / "logs").exists()
    configure_logging(console_sink=io.StringIO(), logs_dir=tmp_path / "logs" / "deep")
    assert (tmp_path / "logs" / "deep" / LOG_FILE).exists()


def test_console_and_file_arguments_override_what_is_configured(tmp_path):
    sink = io.StringIO()
    configure_logging(console_sink=sink, logs_dir=tmp_path, console_enabled=False)
    log("file by default")
    log("console as well", console=True)
    log("console alone", console=True, file=False)
    log("nowhere", file=False)

    def said(text):
        return [
            name
            for name in ("file by default", "console as well", "console alone", "nowhere")
            if name in text
        ]

    assert said(sink.getvalue()) == ["console as well", "console alone"]
    assert said((tmp_path / LOG_FILE).read_text()) == ["file by default", "console as well"]


def test_asking_for_a_file_that_is_not_configured_is_an_error():
    configure_logging(console_sink=io.StringIO())
    with pytest.raises(ConfigError, match="logs_dir"):
        log("hello", file=True)


@pytest.mark.parametrize(
    ("level", "name"),
    [
        ("warning", "WARNING"),
        (30, "WARNING"),
        (stdlib_logging.ERROR, "ERROR"),
        ("SUCCESS", "SUCCESS"),
        (33, "Level 33"),
    ],
)
def test_levels_are_names_in_any_case_or_numbers_of_the_standard_library(level, name):
    sink = io.StringIO()
    configure_logging(console_sink=sink, min_level=level)
    log("hello", priority=level)
    log("too low", priority=5)
    assert name in sink.getvalue()
    assert "too low" not in sink.getvalue()


@pytest.mark.parametrize(
    ("level", "hint"),
    [("WARNIN", "Did you mean 'WARNING'"), ("loud", "Known: CRITICAL"), (-1, "-1"), (True, "True")],
)
def test_an_unknown_level_is_an_error_and_the_earlier_sinks_stay(level, hint):
    sink = io.StringIO()
    configure_logging(console_sink=sink)
    with pytest.raises(ConfigError, match=hint):
        configure_logging(min_level=level)
    with pytest.raises(ConfigError, match=hint):
        log("hello", priority=level)
    log("still here")
    assert "still here" in sink.getvalue()


@pytest.mark.parametrize("bad", ["{nope}", "<red>{message}", "{message", "{extra[nope]}"])
def test_a_format_that_does_not_work_is_refused_before_the_first_line(bad):
    with pytest.raises(ConfigError, match="log_format"):
        configure_logging(log_format=bad)


def test_a_format_of_ones_own_is_used():
    sink = io.StringIO()
    configure_logging(console_sink=sink, log_format="{extra[type]}|{message}")
    log("hello", type="eval")
    assert sink.getvalue() == "eval|hello\n"


def test_an_exception_adds_its_traceback_without_the_values_of_variables():
    sink = io.StringIO()
    configure_logging(console_sink=sink, log_format="{message}")
    password = "hunter2"
    try:
        raise ValueError("bad <red>{x}</red>" + password[:0])
    except ValueError as error:
        log("by flag", exception=True)
        kept = error
    log("by value", exception=kept)
    log("none handled", exception=True)
    log("switched off", exception=False)
    text = sink.getvalue()
    assert text.count("ValueError: bad <red>{x}</red>\n") == text.count("Traceback") == 2
    assert "hunter2" not in text
    assert text.endswith("none handled\nswitched off\n")


@pytest.mark.parametrize(
    ("stream", "no_color", "coloured"),
    [(Terminal, None, True), (Terminal, "", True), (Terminal, "1", False), (io.StringIO, None, False)],
)
def test_colour_is_for_terminals_and_respects_no_color(monkeypatch, tmp_path, stream, no_color, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    sink = stream()
    configure_logging(console_sink=sink, logs_dir=tmp_path)
    log("hello", priority="ERROR")
    assert ("\x1b[" in sink.getvalue()) == coloured
    assert "\x1b[" not in (tmp_path / LOG_FILE).read_text()


def test_there_is_one_console_and_a_progress_bar_on_it_is_not_torn(monkeypatch):
    assert console() is console()
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    console.cache_clear()
    try:
        configure_logging(log_format="{message}")
        with Progress(console=console(), auto_refresh=False) as progress:
            task = progress.add_task("bar", total=3)
            for step in range(3):
                log(f"step {step} " + "w" * 200)
                progress.advance(task)
                progress.refresh()
    finally:
        console.cache_clear()
    # What erases the bar comes before each line, and the bar is drawn anew after it.
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "\n")
    for step in range(3):
        assert f"\nstep {step} " + "w" * 200 + "\n" in "\n" + plain
    assert plain.count("bar") > 3


def test_no_other_logger_notices(capsys):
    heard = []
    handler = loguru.logger.add(lambda line: heard.append(str(line)), format="{message}")
    root = stdlib_logging.getLogger()
    before = (list(root.handlers), root.level)
    try:
        configure_logging(console_sink=io.StringIO())
        log("ours")
        loguru.logger.info("theirs")
    finally:
        loguru.logger.remove(handler)
    assert heard == ["theirs\n"]
    assert (list(root.handlers), root.level) == before


def test_a_log_file_that_cannot_be_opened_leaves_the_earlier_sinks(tmp_path):
    sink = io.StringIO()
    configure_logging(console_sink=sink)
    (tmp_path / LOG_FILE).mkdir()
    with pytest.raises(OSError):
        configure_logging(logs_dir=tmp_path)
    log("still here")
    assert "still here" in sink.getvalue()


def write_lines(folder, writer, configure):
    if configure:
        configure_logging(console_enabled=False, logs_dir=folder, log_format="{message}")
    for number in range(500):
        log(f"writer {writer} line {number} " + "x" * 300 + " end")


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_lines_of_several_processes_never_interleave_and_none_is_lost(tmp_path, method):
    write_lines_of = {"spawn": True, "fork": False}[method]
    configure_logging(console_enabled=False, logs_dir=tmp_path, log_format="{message}")
    context = multiprocessing.get_context(method)
    children = [context.Process(target=write_lines, args=(tmp_path, n, write_lines_of)) for n in range(3)]
    for child in children:
        child.start()
    write_lines(tmp_path, 3, False)
    for child in children:
        child.join()
        assert child.exitcode == 0
    lines = (tmp_path / LOG_FILE).read_text().splitlines()
    expected = {f"writer {w} line {n} " + "x" * 300 + " end" for w in range(4) for n in range(500)}
    assert len(lines) == 2000
    assert set(lines) == expected


def test_lines_of_several_threads_never_interleave():
    sink = io.StringIO()
    configure_logging(console_sink=sink, log_format="{message}")
    threads = [
        threading.Thread(target=lambda n=n: [log(f"{n} {k} end") for k in range(200)]) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(sink.getvalue().splitlines()) == {f"{n} {k} end" for n in range(4) for k in range(200)}


def test_text_that_is_no_utf8_reaches_the_file_escaped(tmp_path):
    configure_logging(console_sink=io.StringIO(), logs_dir=tmp_path, log_format="{message}")
    log("bad \ud800 name")
    assert (tmp_path / LOG_FILE).read_text() == "bad \\ud800 name\n"


def test_importing_the_module_loads_neither_loguru_nor_rich_and_exiting_is_silent(tmp_path):
    code = (
        "import sys; from marl_tools.core.logging import *\n"
        "print([m for m in ('loguru', 'rich') if m in sys.modules])\n"
        f"configure_logging(logs_dir={str(tmp_path)!r}); log('bye', console=False)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ},
        check=True,
    )
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""
    assert "bye" in (tmp_path / LOG_FILE).read_text()
