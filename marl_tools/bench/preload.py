"""What the server that run processes are forked from imports once, so that they need not; never imported elsewhere."""

import gc
from contextlib import suppress

import marl_tools.bench.jobs  # noqa: F401

# What runs come to import sooner or later: with an optimiser, with a certificate, with a film.
for _name in ("torch._dynamo", "scipy.stats", "moviepy.video.io.ffmpeg_writer"):
    with suppress(ImportError):
        __import__(_name)

# All this stays: were it garbage collected in a run, its pages would have to be copied.
gc.collect()
gc.freeze()
