"""Risk tables, exact solutions and the shield; knows models and envs only through `marl_tools.core`."""
