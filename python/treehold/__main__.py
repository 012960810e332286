"""The command line: `treehold` and `python -m treehold`."""

from __future__ import annotations

import signal
import sys

from treehold._native import main as native_main


def main() -> None:
    """Runs the command line with the arguments of this program, and exits with its code."""
    # The command line handles signals by itself, and Python's handler only runs between bytecodes.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.exit(native_main(["treehold", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
