#!/usr/bin/env python3
"""Compares checkpoints of many files with LangGraph's SQLite saver, in one process and run.

    python python/benches/langgraph_checkpoints.py [--files 5000] [--rounds 15]

Needs langgraph-checkpoint-sqlite. Both savers keep a database file on the same disk, with its usual durability. Compare
ratios, not times, because machines differ. On a machine that does other work too, the best of all rounds says more than
the median.

- *put*: one file of 4 KB changed, and the checkpoint stored.
- *resume*: the latest checkpoint read. *warm*: by the saver that stored it, as a server does between two turns of a
  conversation; *cold*: by a new saver on a new connection, as after a restart.
- *files in the tree*: the files are in the state tier of a session instead of a channel. A put writes the changed file
  and commits both; a resume reads the checkpoint and one of the files, because nothing loads the others.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import statistics
import string
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot as DeltaSnapshot

from treehold import Store, Workspace
from treehold.langgraph import TreeholdSaver

WORKSPACE = """
[threads]
store = "default"
durability = "exit"

[stores.default]
url = "sqlite:{data}/tree.db"

[routes."/"]
type = "state"
"""

CONFIG: Any = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}
FILE_BYTES = 4096


def text(seed: int) -> str:
    return "".join(random.Random(seed).choices(string.ascii_lowercase + " \n", k=FILE_BYTES))


def file(seed: int) -> dict[str, str]:
    return {
        "content": text(seed),
        "encoding": "utf-8",
        "created_at": "2026-01-01T00:00:00+00:00",
        "modified_at": "2026-01-01T00:00:00+00:00",
    }


def checkpoint(values: dict[str, Any], version: Any) -> Any:
    return {
        "v": 4,
        "id": str(uuid6()),
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, version),
        "versions_seen": {},
        "updated_channels": sorted(values),
    }


def milliseconds(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = action()
    return (time.perf_counter() - start) * 1000, result


class Contestant:
    """A saver with a thread of many files."""

    def __init__(self, name: str, open_saver: Callable[[], tuple[Any, Callable[[], None]]], is_snapshot: bool) -> None:
        self.name = name
        self.open_saver = open_saver
        self.saver, self.close = open_saver()
        self.is_snapshot = is_snapshot
        self.config = CONFIG
        self.version: Any = None
        self.times: dict[str, list[float]] = {"put": [], "resume warm": [], "resume cold": []}

    def put(self, files: dict[str, Any]) -> float:
        self.version = self.saver.get_next_version(self.version, None)
        values = {"files": DeltaSnapshot(files) if self.is_snapshot else files, "turn": self.version}
        stored = checkpoint(values, self.version)
        versions = dict.fromkeys(values, self.version)
        taken, self.config = milliseconds(lambda: self.saver.put(self.config, stored, {"source": "loop", "step": 0}, versions))
        return taken

    def resume(self, expected: dict[str, Any], is_cold: bool) -> float:
        saver, close = self.open_saver() if is_cold else (self.saver, lambda: None)
        taken, found = milliseconds(lambda: saver.get_tuple(CONFIG))
        files = found.checkpoint["channel_values"]["files"]
        assert (files.value if self.is_snapshot else files) == expected
        close()
        return taken


class Tree:
    """A saver with a session whose tree has the files."""

    name = "TreeholdSaver, files in the tree"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.workspace = self.open()
        self.session, self.saver = self.resumed(self.workspace)
        self.config = CONFIG
        self.version: Any = None
        self.times: dict[str, list[float]] = {"put": [], "resume warm": [], "resume cold": []}

    def open(self) -> Workspace:
        workspace = Workspace.open(config=WORKSPACE, data=self.directory)
        # A server opens its store once, for all threads.
        workspace.session(thread="another").close()
        return workspace

    def resumed(self, workspace: Workspace) -> tuple[Any, TreeholdSaver]:
        session = workspace.session(thread="bench")
        return session, TreeholdSaver(session.store, sessions=lambda config: session)

    def put(self, changed: dict[str, dict[str, str]]) -> float:
        def action() -> Any:
            for path, content in changed.items():
                self.session.write(path, content["content"])
            self.version = self.saver.get_next_version(self.version, None)
            values = {"turn": self.version}
            stored = checkpoint(values, self.version)
            return self.saver.put(self.config, stored, {"source": "loop", "step": 0}, dict.fromkeys(values, self.version))

        taken, self.config = milliseconds(action)
        return taken

    def resume(self, expected: dict[str, Any], is_cold: bool) -> float:
        path = next(reversed(expected))
        workspace = self.open() if is_cold else self.workspace

        def action() -> Any:
            session, saver = self.resumed(workspace) if is_cold else (self.session, self.saver)
            return session, saver.get_tuple(CONFIG), session.read(path).text()

        taken, (session, found, content) = milliseconds(action)
        assert found.checkpoint["channel_values"] == {"turn": self.version}
        assert content == expected[path]["content"]
        if is_cold:
            session.close()
            workspace.close()
        return taken

    def close(self) -> None:
        self.session.close()
        self.workspace.close()


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        theirs, ours = Path(directory) / "theirs.db", Path(directory) / "ours.db"

        def open_theirs() -> tuple[Any, Callable[[], None]]:
            connection = sqlite3.connect(theirs, check_same_thread=False)
            return SqliteSaver(connection), connection.close

        def open_ours() -> tuple[Any, Callable[[], None]]:
            store = Store.open(f"sqlite:{ours}")
            return TreeholdSaver(store), store.close

        contestants: list[Any] = [Contestant("SqliteSaver", open_theirs, False), Contestant("TreeholdSaver", open_ours, False)]
        tree = Tree(Path(directory))
        files = {f"/dir{number % 50}/file{number}.md": file(number) for number in range(options.files)}
        for contestant in (*contestants, tree):
            print(f"{contestant.name}: first put of {options.files} files {contestant.put(files):.0f} ms")
        for turn in range(options.rounds):
            path = f"/dir{turn % 50}/file{turn}.md"
            changed = {path: file(options.files + turn)}
            files = {**files, **changed}
            # The contestants take turns, so that all meet the same load of the machine.
            for contestant in (*contestants, tree):
                contestant.times["put"].append(contestant.put(changed if contestant is tree else files))
                contestant.times["resume warm"].append(contestant.resume(files, False))
                contestant.times["resume cold"].append(contestant.resume(files, True))
        contestants.append(tree)
        for contestant in contestants:
            contestant.close()
        sizes = [
            sum(part.stat().st_size for part in Path(directory).glob(f"{name}.db*")) / 1e6 for name in ("theirs", "ours", "tree")
        ]
    print(f"\n| {options.files} files of 4 KB | " + " | ".join(contestant.name for contestant in contestants) + " |\n|---|---|---|---|")
    for name in contestants[0].times:
        for kind, chosen in (("median", statistics.median), ("best", min)):
            theirs_ms, *others = (chosen(contestant.times[name]) for contestant in contestants)
            cells = [f"{theirs_ms:.2f} ms", *(f"{other:.2f} ms, {theirs_ms / other:.1f} x" for other in others)]
            print(f"| {name}, {kind} | " + " | ".join(cells) + " |")
    cells = [f"{sizes[0]:.0f} MB", *(f"{size:.0f} MB, {sizes[0] / size:.1f} x" for size in sizes[1:])]
    print(f"| on disk after {options.rounds + 1} checkpoints | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
