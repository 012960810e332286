"""Runs the command: `python -m treehold.migrate`."""

from ._cli import main

if __name__ == "__main__":
    raise SystemExit(main())
