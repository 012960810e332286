"""Moves rows to the namespaces that this version keeps them in.

A commit changes rows of one partition. Earlier versions kept some rows in another partition than those that they change with, so
an adapter moves them when it first uses them. No commit spans both places: a row is put at its new place, unless one is there, and
is then deleted at the old one. A move that is interrupted continues where it stopped, and a failure loses nothing.

Two processes may move the same rows. A process with an outdated page must not put a row that was moved by another one and then
deleted by its users. So each writes a row of its own first, the fence, and every put requires that version of it. A row is in use
only once the old place is empty and the fence is gone. All processes must run this version or a later one, since earlier ones go on
using the old place.

A row may still be written at the old place while it is moved, so it is deleted there only at the version that was put at the new
place. The later version replaces what a move put before, but never what users put at the new place. The fence tells one from the
other: it holds the digests of the rows that a move put and has not deleted at the old place yet.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from hashlib import sha256

from treehold import Batch, Conflict, Row
from treehold._io import Commit, GetMany, Namespace, Scan, Steps, Work

PAGE_ROWS = 50
"""How many rows are read at once."""

BATCH_BYTES = 8 << 20
"""Once the rows of a batch have this size, it is committed."""

ATTEMPTS_MAX = 64
"""How often a move starts again after another process interrupted it, or reads rows again that changed."""

WAIT_SECONDS_MIN = 0.05
"""The longest wait before a move starts again the first time. It doubles each time."""

WAIT_SECONDS_MAX = 5.0
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


def is_moved(moves: Sequence[Move], fence: Fence) -> Steps[bool]:
    """Returns whether nothing is left to move, and nobody is moving rows.

    Cost: one read for each old place, and one for the fence. Where an old place has rows of others, one more for each prefix and one
    for the keys that move.
    """
    for each in moves:
        if (yield from has_rows(each)):
            return False
    rows: Sequence[Row | None] = yield GetMany(fence.namespace, [fence.key], with_values=False)
    return rows[0] is None


def has_rows(each: Move) -> Steps[bool]:
    """Returns whether rows that move are at their old place."""
    page = yield Scan(each.source, limit=1, with_values=False)
    if not page.rows:
        return False
    for prefix in each.prefixes:
        page = yield Scan(each.source, prefix, limit=1, with_values=False)
        if page.rows:
            return True
    if not each.keys:
        return False
    rows: Sequence[Row | None] = yield GetMany(each.source, each.keys, with_values=False)
    return any(row is not None for row in rows)


def move(moves: Sequence[Move], fence: Fence | None) -> Steps[None]:
    """Moves rows with their metadata, bodies and remaining lives. A row that exists at its new place already is only deleted.

    A row that is written at the old place meanwhile moves too, and replaces what a move put for it.

    Pass no fence for rows that are harmless if one of them returns after its removal.

    Cost: a read and two commits for each 50 rows; a read and two commits for the fence.

    Raises:
        Conflict: Other processes interrupted the move again and again.
    """
    mover = _Mover(fence)
    for attempt in range(ATTEMPTS_MAX):
        try:
            yield from mover.start()
            for each in moves:
                yield from mover.move(each)
            yield from mover.end()
            return
        except _Interrupted:
            if attempt == ATTEMPTS_MAX - 1:
                raise Conflict("other processes are moving the same rows; try again later") from None
        yield Work(partial(time.sleep, _wait_seconds(attempt)), True)


def _wait_seconds(attempt: int) -> float:
    """Returns how long to wait before a move starts again: longer each time, so that one of several gets to its end."""
    return random.uniform(0.5, 1) * min(WAIT_SECONDS_MAX, WAIT_SECONDS_MIN * 2.0**attempt)


class _Mover:
    """A move, and what moves have put at the new places."""

    def __init__(self, fence: Fence | None) -> None:
        self._fence = fence
        self._version: int | None = None
        self._put: dict[str, str] = {}
        """The digests of the rows that were put, by the digests of their places."""
        self._open: dict[str, str] = {}
        """Those that may still be at their old places too. The fence holds them, for the process that continues."""

    def start(self) -> Steps[None]:
        """Writes the fence, and takes over what it says."""
        if self._fence is None:
            return
        space, key = self._fence.namespace, self._fence.key
        rows: Sequence[Row | None] = yield GetMany(space, [key])
        found = rows[0]
        self._open = {} if found is None or not found.body else json.loads(found.body)
        self._put.update(self._open)
        batch = Batch().require(space, key, None if found is None else found.version)
        try:
            versions: list[int] = yield Commit(batch.put(space, key, json.dumps(self._open)))
        except Conflict:
            raise _Interrupted from None
        self._version = versions[0]

    def end(self) -> Steps[None]:
        """Deletes the fence."""
        if self._fence is None:
            return
        space, key = self._fence.namespace, self._fence.key
        try:
            yield Commit(Batch().require(space, key, self._version).delete(space, key))
        except Conflict:
            raise _Interrupted from None

    def move(self, each: Move) -> Steps[None]:
        """Moves the rows of one namespace."""
        for start in range(0, len(each.keys), PAGE_ROWS):
            some: Sequence[Row | None] = yield GetMany(each.source, each.keys[start : start + PAGE_ROWS])
            yield from self._move_page(each, [row for row in some if row is not None])
        for prefix in each.prefixes:
            while True:
                page = yield Scan(each.source, prefix, limit=PAGE_ROWS)
                yield from self._move_page(each, page.rows)
                if page.next is None:
                    break

    def _move_page(self, each: Move, rows: Sequence[Row]) -> Steps[None]:
        """Puts rows, and deletes them at the old place unless they changed; those that did are put again."""
        changed = rows
        for _ in range(ATTEMPTS_MAX):
            if not rows:
                return
            wanted: Collection[str] = {row.key for row in changed}
            if each.wanted is not None and changed:
                wanted = yield from each.wanted(changed)
            for some in _groups([row for row in changed if row.key in wanted]):
                yield from self._put_rows(each.target, some)
            batch = Batch()
            for row in rows:
                batch.require(each.source, row.key, row.version).delete(each.source, row.key)
            try:
                yield Commit(batch)
            except Conflict:
                known = {row.key: row.version for row in rows}
                again: Sequence[Row | None] = yield GetMany(each.source, list(known))
                rows = [row for row in again if row is not None]
                changed = [row for row in rows if row.version != known[row.key]]
                continue
            for row in rows:
                self._open.pop(_place(each.target, row.key), None)
            return
        raise _Interrupted

    def _put_rows(self, target: Namespace, rows: Sequence[Row]) -> Steps[None]:
        """Puts rows that are absent, or of which a move put an earlier version. Expired ones are left out."""
        present: dict[str, int] = {}
        for _ in range(ATTEMPTS_MAX):
            batch, put = Batch(), dict[str, str]()
            for row in rows:
                seconds = _remaining_seconds(row)
                if seconds is None or seconds > 0:
                    batch.require(target, row.key, present.get(row.key))
                    batch.put(target, row.key, row.body, meta=row.meta, ttl_seconds=seconds)
                    put[_place(target, row.key)] = _digest(row)
            if not put:
                return
            if self._fence is not None:
                batch.require(self._fence.namespace, self._fence.key, self._version)
                batch.put(self._fence.namespace, self._fence.key, json.dumps(self._open | put))
            try:
                versions: list[int] = yield Commit(batch)
            except Conflict:
                yield from self._check_fence()
                found: Sequence[Row | None] = yield GetMany(target, [row.key for row in rows])
                at = {row.key: row for row in found if row is not None}
                rows = [row for row in rows if row.key not in at or self._is_replaceable(target, at[row.key], row)]
                present = {key: row.version for key, row in at.items()}
                continue
            self._put.update(put)
            self._open.update(put)
            if self._fence is not None:
                self._version = versions[-1]
            return
        raise _Interrupted

    def _check_fence(self) -> Steps[None]:
        if self._fence is not None:
            rows: Sequence[Row | None] = yield GetMany(self._fence.namespace, [self._fence.key], with_values=False)
            if rows[0] is None or rows[0].version != self._version:
                raise _Interrupted

    def _is_replaceable(self, target: Namespace, found: Row, row: Row) -> bool:
        """Returns whether a row at the new place is what a move put, and another is to be there now."""
        digest = _digest(found)
        return self._put.get(_place(target, found.key)) == digest != _digest(row)


def _place(namespace: Namespace, key: str) -> str:
    return sha256(json.dumps([namespace, key]).encode("utf-8")).hexdigest()[:32]


def _digest(row: Row) -> str:
    return sha256(len(row.meta).to_bytes(8, "big") + row.meta + row.body).hexdigest()[:32]


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


def _remaining_seconds(row: Row) -> float | None:
    return None if row.expires_at is None else (row.expires_at - datetime.now(timezone.utc)).total_seconds()
