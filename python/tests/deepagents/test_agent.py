"""A real agent of deepagents, before and after the swap: same answers, files and memory; killed and resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted_agent import SCRIPTS

SCRIPT = Path(__file__).parent / "scripted_agent.py"


def run(whose: str, directory: Path, thread: str, kill_before: int | None = None) -> dict[str, Any] | None:
    """Runs the agent in a process. Returns what it printed; `None` if it killed itself."""
    command = [sys.executable, str(SCRIPT), whose, str(directory), thread]
    command += [] if kill_before is None else ["--kill-before", str(kill_before)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if kill_before is not None:
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        return None
    assert ended.returncode == 0, ended.stderr
    printed: dict[str, Any] = json.loads(ended.stdout)
    return printed


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the agent does with deepagents' own backends, thread by thread."""
    directory = tmp_path_factory.mktemp("theirs")
    return {thread: run("theirs", directory, thread) for thread in SCRIPTS}


@pytest.mark.parametrize("whose", ["backends", "ours"])
def test_agent_answers_alike_after_the_swap(before: dict[str, Any], tmp_path: Path, whose: str) -> None:
    for thread, expected in before.items():
        assert run(whose, tmp_path, thread) == expected


@pytest.mark.parametrize("kill_before", [2, 5, 6, 11, 12, 19])
def test_killed_agent_resumes_and_ends_alike(before: dict[str, Any], tmp_path: Path, kill_before: int) -> None:
    assert run("ours", tmp_path, "monday", kill_before) is None
    resumed = run("ours", tmp_path, "monday")
    assert resumed is not None and resumed.pop("resumed") is True
    expected = {**before["monday"]}
    # The model was asked the first question in the process that died, so only that one saw the memory.
    expected.pop("resumed"), expected.pop("memory"), resumed.pop("memory")
    assert resumed == expected
    # Another thread starts with the memory that the resumed one wrote.
    assert run("ours", tmp_path, "tuesday") == before["tuesday"]
