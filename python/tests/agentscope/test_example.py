"""The example: agentscope's loop in processes that take turns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "agentscope_two_processes.py"


def test_session_goes_from_process_to_process_with_its_state_and_files() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "turn 1: I started the list with a tent. (2 messages in the state)",
        "turn 2: The stove is on the list. (4 messages in the state)",
        "turn 3: Yes, the stove is on line 3. (6 messages in the state)",
        "6 messages; the list is:",
        "# Packing",
        "- tent",
        "- stove",
    ]
