"""A store whose commits fail, and rows at the places of earlier versions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from treehold import Batch, Store


class Stopped(Exception):
    """The process is killed."""


class Failing:
    """A store whose commits after some fail, before or after their effect."""

    def __init__(self, store: Store, commits: int, moment: str) -> None:
        self._store = store
        self._commits = commits
        self._moment = moment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, batch: Batch) -> list[int]:
        """Commits a batch, or fails."""
        self._commits -= 1
        if self._commits < 0 and self._moment == "before":
            raise Stopped
        versions = self._store.commit(batch)
        if self._commits < 0:
            raise Stopped
        return versions

    async def acommit(self, batch: Batch) -> list[int]:
        """Commits a batch, or fails."""
        return self.commit(batch)


class Counting:
    """A store that counts the requests of others."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] = getattr(self._store, name)

        def called(*arguments: Any, **options: Any) -> Any:
            self.calls.append(name)
            return method(*arguments, **options)

        return called


def relocate(store: Store, source: tuple[str, ...], target: tuple[str, ...]) -> None:
    """Puts the rows of a namespace where an earlier version kept them."""
    put, delete = Batch(), Batch()
    for row in store.scan(source, limit=10_000).rows:
        seconds = None if row.expires_at is None else (row.expires_at - row.created_at).total_seconds()
        put.put(target, row.key, row.body, meta=row.meta, ttl_seconds=seconds)
        delete.delete(source, row.key)
    store.commit(put)
    store.commit(delete)


def archived(directory: Path, url: str) -> str:
    """Exports a store and imports the archive into another one, whose URL it returns."""
    archive, other = str(directory / "archive.tar"), f"sqlite:{directory / 'imported.db'}"
    for command, at in (("export", url), ("import", other)):
        subprocess.run([sys.executable, "-m", "treehold", "store", command, "--store", at, archive], check=True)
    return other


def versions(store: Store) -> dict[tuple[str, ...], int]:
    """Returns the newest commit of each partition with rows."""
    spaces, _ = store.namespaces(limit=10_000)
    return {space[:2]: store.current_version(space) for space in spaces}


def contents(store: Store) -> dict[tuple[tuple[str, ...], str], tuple[bytes, bytes]]:
    """Returns all rows of a store, without their times and versions."""
    spaces, _ = store.namespaces(limit=10_000)
    return {(space, row.key): (row.meta, row.body) for space in spaces for row in store.scan(space, limit=10_000).rows}
