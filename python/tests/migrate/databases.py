"""Fills LangGraph's own stores and savers, and reads them back by their own means."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.base import BaseStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore  # pyright: ignore[reportMissingTypeStubs]


@contextmanager
def their_store(place: str) -> Generator[BaseStore, None, None]:
    """Opens LangGraph's own store."""
    if place.startswith("postgres"):
        with PostgresStore.from_conn_string(place) as store:
            store.setup()
            yield store
    else:
        with SqliteStore.from_conn_string(place) as store:
            store.setup()
            yield store


@contextmanager
def their_saver(place: str) -> Generator[BaseCheckpointSaver[Any], None, None]:
    """Opens LangGraph's own saver."""
    if place.startswith("postgres"):
        with PostgresSaver.from_conn_string(place) as saver:
            saver.setup()
            yield saver
    else:
        with SqliteSaver.from_conn_string(place) as saver:
            saver.setup()
            yield saver


def contents(place: str) -> Any:
    """Returns a digest of a file, or the rows of all tables of a schema."""
    if not place.startswith("postgres"):
        with sqlite3.connect(f"file:{Path(place).absolute()}?mode=ro", uri=True) as connection:
            return hashlib.sha256("\n".join(connection.iterdump()).encode()).hexdigest()
    import psycopg

    with psycopg.connect(place) as connection:
        tables: Sequence[tuple[str]] = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() ORDER BY 1"
        ).fetchall()
        rows: dict[str, list[str]] = {}
        for (name,) in tables:
            statement: Any = f"SELECT * FROM {name}"
            rows[name] = sorted(map(repr, connection.execute(statement).fetchall()))
        return rows


def put_checkpoint(
    saver: BaseCheckpointSaver[Any],
    thread_id: str,
    number: int,
    values: dict[str, Any],
    *,
    parent: str | None = None,
    checkpoint_ns: str = "",
    writes: Sequence[tuple[str, Any]] = (),
) -> str:
    """Stores a checkpoint with pending writes. Returns its id."""
    name = f"1f0{number:05x}-0000-6000-8000-000000000000"
    config: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns}}
    if parent is not None:
        config["configurable"]["checkpoint_id"] = parent
    versions: dict[str, Any] = {channel: f"{number:032}.{number:016}" for channel in values}
    checkpoint: Any = {
        "v": 4,
        "id": name,
        "ts": "2026-01-02T03:04:05+00:00",
        "channel_values": values,
        "channel_versions": versions,
        "versions_seen": {"node": dict(versions)},
        "updated_channels": sorted(values),
    }
    metadata: Any = {"source": "loop", "step": number, "parents": {}, "run_id": f"run-{number // 3}"}
    stored = saver.put(config, checkpoint, metadata, versions)
    if writes:
        saver.put_writes(stored, writes, f"task-{number}", f"path-{number}")
    return name


KILLED = """
import os, signal, sys
from treehold import migrate
from treehold.langgraph import TreeholdSaver, TreeholdStore

kind, place, url, after = sys.argv[1:]

def progress(at):
    if at.step == "copy" and at.records >= int(after):
        os.kill(os.getpid(), signal.SIGKILL)

if kind == "store":
    with migrate.open_store(place) as source, TreeholdStore.from_conn_string(url) as target:
        migrate.copy_store(source, target, page=20, progress=progress)
else:
    with migrate.open_saver(place) as source, TreeholdSaver.from_conn_string(url) as target:
        migrate.copy_saver(source, target, progress=progress)
"""
