"""The page: templates, style, script and figures joined to one HTML file that needs nothing else."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from marl_tools import __version__
from marl_tools.bench.comparison import Comparison
from marl_tools.bench.report.clips import Film
from marl_tools.bench.report.curves import BINS
from marl_tools.bench.report.gather import Collection, Reading
from marl_tools.bench.report.method_figures import MEASURES
from marl_tools.bench.report.plan_view import plan_view, spread_text
from marl_tools.bench.report.run_view import run_view
from marl_tools.bench.report.wording import STATES, VERDICTS, interval, number

_HERE = files("marl_tools.bench.report") / "templates"
# Nothing is fetched from anywhere but the folder that the page lies in, or the server that it came from.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src 'self' data: blob: file:; "
    "media-src 'self' data: file:; connect-src 'self'; base-uri 'none'; form-action 'none'"
)

_FEW_RUNS, _POINTS_OF_MANY = 12, 64
"""Details of many runs have fewer points a line: their page is to stay small."""

Figures = dict[str, Mapping[str, Any]]


def run_body(run: Reading, film: Film) -> tuple[str, Figures]:
    """A run as a page of its own, and its figures by their names in it."""
    view = run_view(run, film)
    body = _template("single.html.j2").render(run=run, view=view, prefix="", h="h2")
    return body, _specs(view.figures)


def detail(run: Reading, film: Film, place: int, *, points: int = BINS) -> tuple[str, Figures]:
    """The details of one of many runs, and their figures; ``place`` is its number on the page."""
    view = run_view(run, film, points=points)
    prefix = f"run-{place}-"
    return _template("run.html.j2").render(run=run, view=view, prefix=prefix, h="h3"), _specs(
        view.figures, prefix
    )


def plan_body(
    collection: Collection,
    film: Film,
    comparison: Comparison | None,
    problems: Sequence[str],
    *,
    details: bool = True,
) -> tuple[str, Figures]:
    """Many runs as one page; with ``details`` those of each run lie folded in it."""
    view = plan_view(collection, film, comparison, problems)
    points = BINS if len(view.rows) <= _FEW_RUNS else _POINTS_OF_MANY
    folded = [_folded(row.run, film, row.place, points) for row in view.rows] if details else []
    methods, tasks = (
        dict.fromkeys(row.method for row in view.rows),
        dict.fromkeys(row.task for row in view.rows),
    )
    body = _template("plan.html.j2").render(
        view=view,
        planned=bool(collection.plan),
        details=folded,
        measures=MEASURES,
        filters=[
            ("method", [(name, name) for name in methods]),
            ("task", [(name, name) for name in tasks]),
            ("state", list(STATES.items())),
        ],
    )
    drawn = [*view.overall, *(figure for task in view.tasks for figure in task.figures)]
    return body, {figure.key: figure.spec for figure in drawn}


def _folded(run: Reading, film: Film, place: int, points: int) -> Any:
    body, figures = detail(run, film, place, points=points)
    # In a template nothing is laid out, loaded or drawn until it is opened.
    return _safe(
        f'<template>{body}<script type="application/json" class="specs">{json_in_html(figures)}</script></template>'
    )


def whole_page(
    title: str, body: str, figures: Figures, *, linked: int = 0, live: float = 0, number: int = 0
) -> str:
    """The file. ``live``: seconds between two looks for news, for a page that is served, and ``number`` how many it told
    before; 0: it is final.
    """
    from plotly.offline import get_plotlyjs

    return _template("page.html.j2").render(
        title=title,
        body=_safe(body),
        figures=_safe(json_in_html(figures)),
        policy=_POLICY,
        css=_safe(_text("report.css")),
        js=_safe(_text("report.js")),
        plotly=_safe(get_plotlyjs()),
        version=__version__,
        written=time.strftime("%Y-%m-%d %H:%M"),
        linked=linked,
        live=live,
        number=number,
    )


def json_in_html(value: Any) -> str:
    """JSON that cannot end the script element that it stands in."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        # A damaged file may hold what no run writes.
        text = json.dumps(_without_nan(value), separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _specs(sections: Mapping[str, Any], prefix: str = "") -> Figures:
    return {f"{prefix}{figure.key}": figure.spec for figures in sections.values() for figure in figures}


@cache
def _environment() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("marl_tools.bench.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "percent": lambda value: number(value, percent=True),
        "interval": interval,
        "percents": lambda value: interval(value, percent=True),
        "spread": spread_text,
        "state": STATES.get,
        "verdict": VERDICTS.get,
    }
    return environment


def _template(name: str) -> Any:
    return _environment().get_template(name)


def _safe(text: str) -> Any:
    """Text of our own that is HTML, script or style already."""
    from markupsafe import Markup

    return Markup(text)


def _text(name: str) -> str:
    return (_HERE / name).read_text("utf-8")
