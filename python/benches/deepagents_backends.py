"""Compares our backends with deepagents' own, in one process and run.

    python benches/deepagents_backends.py [--files 2000] [--rounds 30]

Each file has 4 KB, each directory 200 files, and one file in 100 holds the text that is searched for. Each round measures every
backend in turn, so that a busy machine slows all of them alike, and repeats what is fast until 20 ms have passed. The table gives
medians in milliseconds, and how many times faster ours are.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from deepagents.backends import FilesystemBackend as TheirFilesystemBackend
from deepagents.backends import StoreBackend as TheirStoreBackend
from deepagents.backends.protocol import BackendProtocol
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

import treehold
from treehold.deepagents import FilesystemBackend, StoreBackend
from treehold.langgraph import TreeholdStore

LINE = "It was a bright cold day in April, and the clocks were striking thirteen.\n"
BODY = LINE * 56
PER_DIRECTORY = 200

TURN_SECONDS = 0.02
"""How long an operation is repeated in each turn."""

Operation: TypeAlias = Callable[[BackendProtocol, int], Any]

OPERATIONS: dict[str, Operation] = {
    "read": lambda backend, n: backend.read(path(n), 0, 100),
    "aread": lambda backend, n: asyncio.get_event_loop().run_until_complete(backend.aread(path(n), 0, 100)),
    "edit": lambda backend, n: backend.edit(path(n), "bright", "bright", True),
    "write": lambda backend, n: backend.write(path(n), BODY),
    "ls of 200": lambda backend, _: backend.ls("/d000"),
    "glob **/*.md": lambda backend, _: backend.glob("**/*.md"),
    "grep": lambda backend, _: backend.grep("needle"),
}

BULK = ("ls of 200", "glob **/*.md", "grep")
"""Operations whose cost grows with the number of files."""


def path(n: int) -> str:
    return f"/d{n // PER_DIRECTORY:03}/f{n:05}.md"


def content(n: int) -> str:
    return BODY + ("a needle in a haystack\n" if n % 100 == 0 else "")


def sqlite_store(file: Path) -> SqliteStore:
    store = SqliteStore(sqlite3.connect(file, check_same_thread=False, isolation_level=None))
    store.setup()
    return store


def backends(directory: Path) -> dict[str, tuple[BackendProtocol, dict[str, BackendProtocol]]]:
    """Returns each of deepagents' backends, with ours that may take its place."""

    def theirs(store: BaseStore) -> BackendProtocol:
        return TheirStoreBackend(namespace=lambda _: ("bench",), store=store)

    def ours(store: BaseStore) -> BackendProtocol:
        return StoreBackend(namespace=lambda _: ("bench",), store=store)

    def indexed(store: TreeholdStore) -> BackendProtocol:
        return StoreBackend(namespace=lambda _: ("bench",), store=store, index="trigram")

    return {
        "filesystem": (TheirFilesystemBackend(root_dir=directory / "a"), {"filesystem": FilesystemBackend(root_dir=directory / "b")}),
        "in-memory store": (
            theirs(InMemoryStore()),
            {
                "same store": ours(InMemoryStore()),
                "treehold, memory": ours(TreeholdStore(treehold.Store.open("memory:"))),
            },
        ),
        "SQLite store": (
            theirs(sqlite_store(directory / "theirs.db")),
            {
                "same store": ours(sqlite_store(directory / "same.db")),
                "treehold, SQLite": ours(TreeholdStore(treehold.Store.open(f"sqlite:{directory / 'ours.db'}"))),
                "treehold, indexed": indexed(TreeholdStore(treehold.Store.open(f"sqlite:{directory / 'indexed.db'}"))),
            },
        ),
    }


def measure(made: dict[str, BackendProtocol], operation: Operation, files: int, rounds: int) -> dict[str, float]:
    """Returns the median time of an operation on each backend, in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in made}
    for turn in range(rounds + 1):
        for name, backend in made.items():
            began = time.perf_counter()
            repeats, passed = 0, 0.0
            while passed < TURN_SECONDS:
                result = operation(backend, (turn * 37 + repeats * 7) % files)
                assert result.error is None, result.error
                repeats += 1
                passed = time.perf_counter() - began
            times[name].append(passed / repeats * 1000)
    # The first turn warms up.
    return {name: statistics.median(each[1:]) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    asyncio.set_event_loop(asyncio.new_event_loop())
    directory = Path(tempfile.mkdtemp())
    try:
        print(f"{options.files} files of 4 KB; ripgrep: {shutil.which('rg') or 'not installed'}\n")
        print("| operation | deepagents | ms | ours | ms | times faster |")
        print("| --- | --- | --- | --- | --- | --- |")
        for kind, (theirs, ours) in backends(directory).items():
            made = {kind: theirs, **{f"ours: {name}": backend for name, backend in ours.items()}}
            for backend in made.values():
                backend.upload_files([(path(n), content(n).encode()) for n in range(options.files)])
            for name, operation in OPERATIONS.items():
                is_bulk = name in BULK
                if name == "aread" and kind == "SQLite store":
                    # LangGraph's synchronous SQLite store has no asynchronous methods.
                    continue
                found = measure(made, operation, options.files, max(options.rounds // (5 if is_bulk else 1), 3))
                for our_name in ours:
                    own = found[f"ours: {our_name}"]
                    print(f"| {name} | {kind} | {found[kind]:.3f} | {our_name} | {own:.3f} | {found[kind] / own:.1f} |", flush=True)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
