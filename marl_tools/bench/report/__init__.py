"""The report: one HTML page of a run, or of a plan with all its runs."""

from __future__ import annotations

import os
from pathlib import Path

from marl_tools.bench.report.clips import Film, Videos
from marl_tools.bench.report.gather import Reading, open_folder
from marl_tools.core.durable import atomic_write

__all__ = ["Videos", "write_report"]


def write_report(
    folder: str | os.PathLike[str], *, out: str | os.PathLike[str] | None = None, videos: Videos = "embed"
) -> Path:
    """Write the page of a run folder, or of a folder with a plan or with runs, and return its path.

    Nothing that the folder names is imported, and nothing in it is changed.

    Args:
        folder: the run or the plan.
        out: the page; None: ``report.html`` in the folder.
        videos: "embed": films become part of the page up to `EMBED_BYTES` in all, the rest is linked; "link": all are
            linked, relative to the page; "none": none is shown.

    Raises:
        ConfigError: no such folder, or neither run nor plan in it.
    """
    from marl_tools.bench.report.page import plan_body, run_body, whole_page
    from marl_tools.bench.report.plan_view import compared

    folder = Path(folder)
    page = Path(out) if out is not None else folder / "report.html"
    source, film = open_folder(folder), Film(videos, page)
    if isinstance(source, Reading):
        title, (body, figures) = source.summary.env or source.id, run_body(source, film)
    else:
        title, (body, figures) = source.name, plan_body(source, film, *compared(source))
    text = whole_page(title, body, figures, linked=film.linked)
    with atomic_write(page) as temporary:
        temporary.write_text(text, "utf-8")
    return page
