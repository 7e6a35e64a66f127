"""One torch thread, headless rendering, offline tracking and one hypothesis profile for every test."""

import os
import signal

from hypothesis import settings

# Before torch is imported: two threads a test worker would fight over the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")

# Whoever starts the tests in the background may have had Ctrl-C ignored, which the processes of the tests would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A loaded machine must not fail a test for its speed, and examples belong to no folder of the repository.
# The gate plays the same examples each time; `--hypothesis-profile=explore` looks for new ones.
settings.register_profile("marl_tools", deadline=None, database=None, derandomize=True)
settings.register_profile("explore", deadline=None, database=None, max_examples=300)
settings.load_profile("marl_tools")
