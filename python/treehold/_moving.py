"""Moves rows to the namespaces that this version keeps them in.

A commit changes rows of one partition. Earlier versions kept some rows in another partition than those that they change with, so
an adapter moves them when it first uses them. No commit spans both places: a row is put at its new place, unless one is there, and
is then deleted at the old one. A move that is interrupted continues where it stopped, and a failure loses nothing.

Two processes may move the same rows. A process with an outdated page must not put a row that was moved by another one and then
deleted by its users. So each writes a row of its own first, the fence, and every put requires that version of it. A row is in use
only once the old place is empty and the fence is gone. All processes must run this version or a later one, since earlier ones go on
using the old place.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial

from treehold import Batch, Conflict, Row
from treehold._io import Commit, GetMany, Namespace, Scan, Steps, Work

PAGE_ROWS = 50
"""How many rows are read at once."""

BATCH_BYTES = 8 << 20
"""Once the rows of a batch have this size, it is committed."""

ATTEMPTS_MAX = 64
"""How often a move starts again after another process interrupted it."""

WAIT_SECONDS_MAX = 0.2
"""The longest wait before a move starts again."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The row that says who moves rows at the moment. It lies in the partition that they move to."""

    namespace: Namespace
    key: str


@dataclass(frozen=True, slots=True)
class Move:
    """Rows of one namespace that move to another, under the same keys."""

    source: Namespace
    target: Namespace
    prefixes: Sequence[str] = ("",)
    """What the keys of rows that move start with."""
    keys: Sequence[str] = ()
    """The keys of other rows that move."""
    wanted: Callable[[Sequence[Row]], Steps[Collection[str]]] | None = None
    """Returns the keys of those rows that are worth keeping; without it all are."""


class _Interrupted(Exception):
    """Another process moves the rows now."""


def is_moved(sources: Sequence[Namespace], fence: Fence) -> Steps[bool]:
    """Returns whether nothing is left at the old places, and nobody is moving rows.

    Cost: one read for each of them.
    """
    for source in sources:
        page = yield Scan(source, limit=1, with_values=False)
        if page.rows:
            return False
    rows: Sequence[Row | None] = yield GetMany(fence.namespace, [fence.key], with_values=False)
    return rows[0] is None


def move(moves: Sequence[Move], fence: Fence | None) -> Steps[None]:
    """Moves rows with their metadata, bodies and remaining lives. A row that exists at its new place already is only deleted.

    Pass no fence for rows that are harmless if one of them returns after its removal.

    Cost: a read and two commits for each 50 rows, and two commits for the fence.

    Raises:
        Conflict: Other processes interrupted the move again and again.
    """
    for attempt in range(ATTEMPTS_MAX):
        try:
            version: int | None = None
            if fence is not None:
                versions: list[int] = yield Commit(Batch().put(fence.namespace, fence.key, b""))
                version = versions[0]
            for each in moves:
                yield from _move_rows(each, fence, version)
            if fence is not None:
                # Another process may have written it since. It starts again when its next put fails, and finds nothing left.
                yield Commit(Batch().delete(fence.namespace, fence.key))
            return
        except _Interrupted:
            if attempt == ATTEMPTS_MAX - 1:
                raise Conflict("other processes are moving the same rows; try again later") from None
        yield Work(partial(time.sleep, random.uniform(0, WAIT_SECONDS_MAX)), True)


def _move_rows(each: Move, fence: Fence | None, version: int | None) -> Steps[None]:
    for start in range(0, len(each.keys), PAGE_ROWS):
        some: Sequence[Row | None] = yield GetMany(each.source, each.keys[start : start + PAGE_ROWS])
        yield from _move_page(each, [row for row in some if row is not None], fence, version)
    for prefix in each.prefixes:
        while True:
            page = yield Scan(each.source, prefix, limit=PAGE_ROWS)
            yield from _move_page(each, page.rows, fence, version)
            if page.next is None:
                break


def _move_page(each: Move, rows: Sequence[Row], fence: Fence | None, version: int | None) -> Steps[None]:
    if not rows:
        return
    wanted: Collection[str] = {row.key for row in rows}
    if each.wanted is not None:
        wanted = yield from each.wanted(rows)
    for some in _groups([row for row in rows if row.key in wanted]):
        yield from _put(each.target, some, fence, version)
    batch = Batch()
    for row in rows:
        batch.delete(each.source, row.key)
    yield Commit(batch)


def _groups(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Splits rows into groups of about the size of a batch."""
    group: list[Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += len(row.body)
        if size >= BATCH_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _put(target: Namespace, rows: Sequence[Row], fence: Fence | None, version: int | None) -> Steps[None]:
    """Puts rows that are absent. Expired ones are left out."""
    while rows:
        batch = Batch()
        for row in rows:
            seconds = _remaining_seconds(row)
            if seconds is None or seconds > 0:
                batch.require(target, row.key, None)
                batch.put(target, row.key, row.body, meta=row.meta, ttl_seconds=seconds)
        if len(batch) == 0:
            return
        if fence is not None:
            batch.require(fence.namespace, fence.key, version)
        try:
            yield Commit(batch)
            return
        except Conflict:
            pass
        present: Sequence[Row | None] = yield GetMany(target, [row.key for row in rows], with_values=False)
        absent = [row for row, found in zip(rows, present, strict=True) if found is None]
        if len(absent) == len(rows):
            raise _Interrupted
        rows = absent


def _remaining_seconds(row: Row) -> float | None:
    return None if row.expires_at is None else (row.expires_at - datetime.now(timezone.utc)).total_seconds()
