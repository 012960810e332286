"""The command `python -m treehold.migrate`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from databases import their_saver, their_store


def migrate(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "treehold.migrate", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def report(text: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(text)
    return read


def test_command_moves_store_in_and_out_and_verifies(place: str, tmp_path: Path) -> None:
    with their_store(place) as store:
        store.put(("a", "b"), "k", {"n": 1})
    sides = ["--langgraph", place, "--treehold", "sqlite:ours.db"]
    code, text, _ = migrate("store", "in", *sides, "--dry-run", "--json", cwd=tmp_path)
    assert (code, report(text)["written"], report(text)["verified"]) == (0, 1, None)
    code, text, _ = migrate("store", "in", *sides, "--json", "--progress", cwd=tmp_path)
    assert (code, report(text)["written"], report(text)["verified"]) == (0, 1, 1)
    code, text, error = migrate("store", "in", *sides, "--json", cwd=tmp_path)
    assert code == 3 and report(text)["error"]["code"] == "conflict" and "resume" in error
    assert migrate("store", "in", *sides, "--resume", cwd=tmp_path)[0] == 0
    back = ["--langgraph", "back.db", "--treehold", "sqlite:ours.db"]
    assert migrate("store", "out", *back, cwd=tmp_path)[0] == 0
    assert migrate("store", "verify", *back, cwd=tmp_path)[0] == 0
    with their_store(str(tmp_path / "back.db")) as store:
        found = store.get(("a", "b"), "k")
        assert found is not None and found.value == {"n": 1}
        store.put(("a", "b"), "k", {"n": 2})
    code, text, _ = migrate("store", "verify", *back, cwd=tmp_path)
    assert code == 1 and "the values differ" in text


def test_command_moves_saver_in_and_out(place: str, tmp_path: Path) -> None:
    from databases import put_checkpoint

    with their_saver(place) as saver:
        put_checkpoint(saver, "t", 1, {"a": [1]}, writes=[("b", 2)])
    code, text, _ = migrate(
        "saver", "in", "--langgraph", place, "--treehold", "sqlite:ours.db", "--namespace", "acme/runs", "--json", cwd=tmp_path
    )
    assert (code, report(text)["parts"]) == (0, {"writes": 1, "values": 1, "versions": 1})
    back = ["--langgraph", "back.db", "--treehold", "sqlite:ours.db", "--namespace", "acme/runs"]
    assert migrate("saver", "out", *back, cwd=tmp_path)[0] == 0
    assert migrate("saver", "verify", *back, cwd=tmp_path)[0] == 0


def test_command_refuses_bad_arguments(tmp_path: Path) -> None:
    assert migrate("store", "sideways", cwd=tmp_path)[0] == 2
    code, _, error = migrate("store", "in", "--langgraph", "gone.db", "--treehold", "memory:", cwd=tmp_path)
    assert code == 4 and "gone.db" in error
    code, _, error = migrate("store", "out", "--langgraph", "new.db", "--treehold", "sqlite:gone.db", cwd=tmp_path)
    assert code == 2 and "does not exist" in error
    assert not (tmp_path / "new.db").exists() and not (tmp_path / "gone.db").exists()
    code, _, error = migrate("store", "in", "--langgraph", "x.db", "--treehold", "nonsense://x", cwd=tmp_path)
    assert code == 2 and error.startswith("error: ")
    code, text, _ = migrate("--help", cwd=tmp_path)
    assert code == 0 and "exit codes:" in text
