"""Environments by name: `tasks` maps short names to the third-party environments that fit."""

from marl_tools.envs.tasks import Task, find_task, require, task_names

__all__ = ["Task", "find_task", "require", "task_names"]
