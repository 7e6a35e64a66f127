"""``python -m marl_tools``: the command line, where no program of the name is on the path."""

from marl_tools.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
