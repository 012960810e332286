#!/usr/bin/env python3
"""Runs LangGraph's own tests, of a checkout of its repository, on the classes of `treehold.langgraph`.

    git clone https://github.com/langchain-ai/langgraph
    python python/tests/langgraph/upstream.py langgraph [--url sqlite:]

It runs

- the conformance suite for checkpointers, with the tests of delta channels that no release has;
- the tests of the in-memory store, of the SQLite store, and those of its time to live, with our store in the place of
  theirs. Tests of theirs that look into tables of SQLite cannot pass; they are listed in `THEIR_OWN` with the reason.

Nothing of the checkout is changed or kept. Needs pytest, pytest-asyncio and pytest-mock.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent

THEIR_OWN = {
    "test_vector_store_initialization": "lists the tables of SQLite",
    "test_nonnull_migrations": "reads the SQL of their migrations",
    "test_escape_glob_literal": "escapes their SQL",
    "test_namespace_match_pattern": "makes a regular expression for their SQL",
    "test_list_namespaces_prefix_uses_indexable_condition": "reads their SQL",
    "test_sql_injection_vulnerability": "expects that odd names of fields are refused; here they are looked up like any other",
    "test_filter_keys_with_hyphens_and_digits": "expects that a dot in the name of a field reaches into it, as in no other store of theirs",
    "test_ttl_override_default": "expects that a read does not extend the life of an item unless the configuration says so; the"
    " documentation of `TTLConfig` says that it does",
}
"""Tests of their SQLite store that no other store passes, and why."""

SWAP = '''
"""Puts the classes of treehold.langgraph in the place of LangGraph's own."""

import inspect
import os
import uuid
from contextlib import asynccontextmanager, contextmanager

import langgraph.store.memory

from treehold import Store
from treehold.langgraph import TreeholdStore

URL = os.environ["TREEHOLD_UPSTREAM_URL"]


def new_url():
    if URL == "sqlite:":
        return f"sqlite:{os.path.join(os.environ['TREEHOLD_UPSTREAM_DIRECTORY'], uuid.uuid4().hex)}.db"
    if URL.startswith("postgres"):
        return URL + ("&" if "?" in URL else "?") + "schema=t_" + uuid.uuid4().hex
    return URL


class InMemoryStore(TreeholdStore):
    def __init__(self, *, index=None):
        super().__init__(Store.open(new_url()), index=index)


langgraph.store.memory.InMemoryStore = InMemoryStore

try:
    import langgraph.store.sqlite
    import langgraph.store.sqlite.aio
except ImportError:
    pass
else:

    class SqliteStore(TreeholdStore):
        @classmethod
        @contextmanager
        def from_conn_string(cls, conn_string, *, index=None, ttl=None):
            with cls(Store.open(new_url()), index=index, ttl=ttl) as store:
                yield store

    class AsyncSqliteStore(TreeholdStore):
        # Its tests await what is synchronous here.
        @classmethod
        @asynccontextmanager
        async def from_conn_string(cls, conn_string, *, index=None, ttl=None):
            async with cls(Store.open(new_url()), index=index, ttl=ttl) as store:
                yield store

        async def setup(self):
            pass

        async def sweep_ttl(self):
            return await super().asweep_ttl()

        async def start_ttl_sweeper(self, minutes=None):
            return super().start_ttl_sweeper(minutes)

        async def stop_ttl_sweeper(self, timeout=None):
            return super().stop_ttl_sweeper(timeout)

    langgraph.store.sqlite.SqliteStore = SqliteStore
    langgraph.store.sqlite.AsyncSqliteStore = AsyncSqliteStore
    langgraph.store.sqlite.aio.AsyncSqliteStore = AsyncSqliteStore
'''


def run_tests(checkout: Path, library: str, files: list[str], url: str, deselected: dict[str, str]) -> int:
    """Copies tests beside nothing else, so that the installed packages are tested, and runs them."""
    with tempfile.TemporaryDirectory() as directory:
        shutil.copytree(checkout / "libs" / library / "tests", Path(directory) / "tests")
        (Path(directory) / "treehold_swap.py").write_text(SWAP)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([directory, os.environ.get("PYTHONPATH", "")]),
            "TREEHOLD_UPSTREAM_URL": url,
            "TREEHOLD_UPSTREAM_DIRECTORY": directory,
        }
        for name, reason in deselected.items():
            print(f"left out: {name}: {reason}")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "treehold_swap", "-p", "no:cacheprovider"]
        command += ["-o", "asyncio_mode=auto", "-W", "ignore"]
        command += [f"tests/{file}" for file in files]
        command += ["-k", " and ".join(f"not {name}" for name in deselected)] if deselected else []
        return subprocess.run(command, cwd=directory, env=environment, check=False).returncode


def main() -> int:
    """Runs everything, and returns the status of the process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a checkout of github.com/langchain-ai/langgraph")
    parser.add_argument("--url", default="memory:", help="where items are kept: memory:, sqlite: or the URL of a PostgreSQL server")
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    print("conformance suite for checkpointers, on each engine")
    environment = {**os.environ, "TREEHOLD_LANGGRAPH_CHECKOUT": str(checkout)}
    command = [sys.executable, "-m", "pytest", "-q", "-rP", "-o", "asyncio_mode=auto", "-W", "ignore", str(HERE / "test_conformance.py")]
    failed = subprocess.run(command, env=environment, check=False).returncode
    print(f"tests of the in-memory store, on {options.url}")
    failed |= run_tests(checkout, "checkpoint", ["test_store.py"], options.url, {})
    print(f"tests of the SQLite store, on {options.url}")
    failed |= run_tests(checkout, "checkpoint-sqlite", ["test_store.py", "test_ttl.py"], options.url, THEIR_OWN)
    return failed


if __name__ == "__main__":
    sys.exit(main())
