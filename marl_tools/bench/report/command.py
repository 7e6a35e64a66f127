"""``marl-tools report``: write the page of a run or a plan, or serve it while they go on."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from marl_tools.bench.report import Videos, write_report
from marl_tools.core.errors import ConfigError
from marl_tools.core.logging import log
from marl_tools.experiment.arguments import ReportArgs


def report(call: ReportArgs) -> None:
    """Write or serve a report; serving ends with Ctrl-C.

    Raises:
        ConfigError: no run or plan in the folder, flags that do not go together, or an address that cannot be had.
    """
    if not call.serve:
        for flag, given in (("--port", call.port is not None), ("--host", call.host != ReportArgs.host)):
            if given:
                raise ConfigError(f"{flag} is for a report that is served: add --serve")
        path = write_report(call.folder, out=call.out, videos=call.videos)
        print(f"report  {path} ({os.path.getsize(path) / 1e6:.1f} MB)")
        return
    if call.out is not None:
        raise ConfigError("--out with --serve: a served report is written nowhere; leave one of them out")
    from marl_tools.bench.report.serve import ReportServer

    videos: Videos = "none" if call.videos == "none" else "link"
    with ReportServer(call.folder, host=call.host, port=call.port, videos=videos) as server:
        try:
            print(f"report of {call.folder} at {server.url}  (Ctrl-C ends it)", flush=True)
            server.serve_forever()
        except KeyboardInterrupt:
            print("report no longer served")


def report_finished_run(folder: Path) -> None:
    """Write the page of a run that is done. It is worth more than its page: a failure of that is a warning."""
    try:
        print(f"report      {write_report(folder)}")
    except Exception as error:
        again = f"marl-tools report {shlex.quote(str(folder))}"
        log(f"no report: {error!r}. Again: {again}", type="report", priority="WARNING")
