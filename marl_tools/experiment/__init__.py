"""Runs: their settings, and the one place where env, trainer, logs and films are joined."""
