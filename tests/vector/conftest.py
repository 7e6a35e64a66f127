"""Worker processes that start quickly: they are forked from a server that has imported what they need."""

import multiprocessing

multiprocessing.set_forkserver_preload(
    ["marl_tools.vector.serving", "marl_tools.core.factory", "mpe2", "pygame", "tests.vector.worker_envs"]
)
