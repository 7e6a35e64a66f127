"""Short task names for this package's own environments and third-party ones, each with what it needs and costs."""

from marl_tools.envs.tasks.listing import print_tasks, task_rows
from marl_tools.envs.tasks.names import find_task, task_names
from marl_tools.envs.tasks.task import Task, require

__all__ = ["Task", "find_task", "print_tasks", "require", "task_names", "task_rows"]
