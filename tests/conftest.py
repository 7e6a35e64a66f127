"""Headless rendering, offline tracking and one hypothesis profile for every test."""

import os

from hypothesis import settings

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")

# A loaded machine must not fail a test for its speed, and examples belong to no folder of the repository.
settings.register_profile("marl_tools", deadline=None, database=None)
settings.load_profile("marl_tools")
