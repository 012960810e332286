"""The items of stores, as records to move."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from langgraph.store.base import BaseStore, GetOp, Item, PutOp, SearchItem, SearchOp

from treehold import Batch, Corrupt, InvalidArgument, Row
from treehold.langgraph import TreeholdStore
from treehold.langgraph._items import (
    body_of,
    checked_namespace,
    is_item,
    key_from,
    key_of,
    meta_of,
    ttl_of,
    utc_now,
    value_of,
)
from treehold.langgraph._keys import is_valid, labels_of, vectors_of
from treehold.langgraph._types import is_dict

from ._compare import are_same
from ._engine import Source, Target
from ._sql import Database, PostgresDatabase, foreign_errors

BYTES_AT_ONCE = 8 << 20
"""How many bytes of values are read and written at once, but for one larger value."""

EXPIRY_TOLERANCE = timedelta(minutes=1)
"""How far the ends of two lives may be apart: LangGraph's stores keep whole seconds, and a commit takes time."""

TTL_TOLERANCE_MINUTES = 0.5
"""How far two times to live may be apart: LangGraph's PostgreSQL store keeps whole minutes."""


@dataclass(frozen=True, slots=True)
class ItemRecord:
    """An item."""

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any]
    ttl_minutes: float | None = None
    expires_at: datetime | None = None

    @property
    def place(self) -> str:
        """The namespace and key."""
        return f"the item {self.key!r} of {self.namespace!r}"

    @property
    def is_expired(self) -> bool:
        """Whether the life of the item is over."""
        return self.expires_at is not None and self.expires_at <= utc_now()

    @property
    def parts(self) -> dict[str, int]:
        """Nothing: an item is one value."""
        return {}


class SqlItems(Source[ItemRecord]):
    """The items in a table of LangGraph's SQLite or PostgreSQL store."""

    def __init__(self, database: Database) -> None:
        self.name = database.name
        self._database = database
        columns = database.columns("store")
        # Stores of old versions have no lives.
        lives = "expires_at, ttl_minutes" if "ttl_minutes" in columns else "NULL, NULL"
        # The text of JSON is decoded here, because drivers would turn large numbers into others.
        value = "value::text" if isinstance(database, PostgresDatabase) else "value"
        self._select = f"SELECT prefix, key, {value}, {lives} FROM store"

    def batches(self, size: int) -> Iterator[list[ItemRecord]]:
        batch: list[ItemRecord] = []
        held = 0
        # The item updated first is written first, so that the order of updates stays.
        for row in self._database.stream(f"{self._select} ORDER BY updated_at, prefix, key"):
            batch.append(self._record(row))
            held += len(row[2])
            if len(batch) == size or held >= BYTES_AT_ONCE:
                yield batch
                batch, held = [], 0
        if batch:
            yield batch

    def find(self, records: Sequence[ItemRecord]) -> list[ItemRecord | None]:
        spaces: dict[str, list[str]] = {}
        for record in records:
            spaces.setdefault(".".join(record.namespace), []).append(record.key)
        found: dict[tuple[tuple[str, ...], str], ItemRecord] = {}
        for prefix, names in spaces.items():
            for start in range(0, len(names), 500):
                some = names[start : start + 500]
                marks = ", ".join("?" * len(some))
                for row in self._database.select(f"{self._select} WHERE prefix = ? AND key IN ({marks})", [prefix, *some]):
                    record = self._record(row)
                    found[record.namespace, record.key] = record
        return [found.get((record.namespace, record.key)) for record in records]

    def _record(self, row: Sequence[Any]) -> ItemRecord:
        prefix, key, text, expires_at, ttl = row
        try:
            value: Any = json.loads(text)
        except ValueError as error:
            raise Corrupt(f"the value of {key!r} in {prefix!r} is not JSON; repair or remove it in the source") from error
        if not is_dict(value):
            raise Corrupt(f"the value of {key!r} in {prefix!r} is not a JSON object; repair or remove it in the source")
        namespace = tuple(prefix.split(".")) if prefix else ()
        end = _time(expires_at)
        return ItemRecord(namespace, key, value, (float(ttl) if ttl else None) if end else None, end)


class ForeignItems(Target[ItemRecord]):
    """The items of any store of LangGraph."""

    def __init__(self, store: BaseStore, name: str, table: Source[ItemRecord] | None = None) -> None:
        """Reads through `table`, if the store has one, and else through the methods of the store."""
        self.name = name
        self._store = store
        self._table = table

    def batches(self, size: int) -> Iterator[list[ItemRecord]]:
        if self._table is not None:
            yield from self._table.batches(size)
            return
        offset = 0
        while True:
            with foreign_errors(self.name):
                found = self._store.batch([SearchOp((), None, size, offset, None, False)])[0]
            batch = [_of_item(item) for item in found if isinstance(item, SearchItem)] if isinstance(found, list) else []
            if batch:
                yield batch
            if len(batch) < size:
                return
            offset += len(batch)

    def find(self, records: Sequence[ItemRecord]) -> list[ItemRecord | None]:
        if self._table is not None:
            return self._table.find(records)
        with foreign_errors(self.name):
            found = self._store.batch([GetOp(record.namespace, record.key, False) for record in records])
        return [_of_item(item) if isinstance(item, Item) else None for item in found]

    def is_empty(self) -> bool:
        return next(self.batches(1), None) is None

    def check(self, record: ItemRecord) -> None:
        if record.ttl_minutes is not None and not self._store.supports_ttl:
            raise InvalidArgument(f"{record.place} has a time to live, which {self.name} cannot keep; remove it first")
        if not record.namespace and self._table is not None:
            raise InvalidArgument(f"{record.place} has no namespace, which {self.name} cannot keep; move it first")

    def write(self, records: Sequence[ItemRecord]) -> None:
        with foreign_errors(self.name):
            self._store.batch(
                [PutOp(record.namespace, record.key, record.value, None, record.ttl_minutes) for record in records]
            )

    def difference(self, record: ItemRecord, found: ItemRecord) -> str | None:
        # Writing restarts a life, because the interface has no other way.
        return _difference(record, found, compares_ends=False)

    def is_part(self, record: ItemRecord, found: ItemRecord) -> bool:
        return False


class TreeholdItems(Target[ItemRecord]):
    """The items of our store."""

    def __init__(self, store: TreeholdStore) -> None:
        self.name = f"treehold {store.store.name} at {'/'.join(store.namespace)}"
        self._items = store
        self._root = store.namespace

    def batches(self, size: int) -> Iterator[list[ItemRecord]]:
        for space in self._spaces():
            cursor: str | None = None
            while True:
                page = self._items.store.scan(space, after=cursor, limit=size, bytes_max=BYTES_AT_ONCE)
                batch = [self._record(space, row) for row in page.rows if is_item(row)]
                if batch:
                    yield batch
                cursor = page.next
                if cursor is None:
                    break

    def _spaces(self) -> Iterator[tuple[str, ...]]:
        """Lists the namespaces that items may be in. Beneath the root are also those of others, such as the program's own."""
        after: tuple[str, ...] | None = None
        more = True
        while more:
            spaces, more = self._items.store.namespaces(prefix=self._root, after=after, limit=100)
            for space in map(tuple, spaces):
                after = space
                if labels_of(self._root, space) is not None:
                    yield space

    def find(self, records: Sequence[ItemRecord]) -> list[ItemRecord | None]:
        spaces: dict[tuple[str, ...], list[str]] = {}
        for record in records:
            spaces.setdefault(record.namespace, []).append(record.key)
        found: dict[tuple[tuple[str, ...], str], ItemRecord] = {}
        for namespace, names in spaces.items():
            # What our store cannot hold is not there.
            try:
                space = (*self._root, *checked_namespace(namespace, self._root))
                stored = [key_of(name) for name in names]
            except InvalidArgument:
                continue
            for row in self._items.store.get_many(space, stored):
                if row is not None:
                    record = self._record(space, row)
                    found[record.namespace, record.key] = record
        return [found.get((record.namespace, record.key)) for record in records]

    def is_empty(self) -> bool:
        return next(self._spaces(), None) is None

    def check(self, record: ItemRecord) -> None:
        checked_namespace(record.namespace, self._root)
        key_of(record.key)
        body_of(record.key, record.value)

    def write(self, records: Sequence[ItemRecord]) -> None:
        if self._items.index_config is not None:
            # The store embeds what it puts.
            self._items.batch(
                [PutOp(record.namespace, record.key, record.value, None, record.ttl_minutes) for record in records]
            )
            self._end_lives(records)
            return
        batches: dict[tuple[str, ...], Batch] = {}
        for record in records:
            remaining = _remaining_seconds(record)
            if remaining is not None and remaining <= 0:
                continue
            ttl = remaining if record.ttl_minutes is None else record.ttl_minutes * 60
            items = (*self._root, *record.namespace)
            batches.setdefault(items[:2], Batch()).put(
                items,
                key_of(record.key),
                body_of(record.key, record.value),
                meta=meta_of(ttl),
                ttl_seconds=remaining,
            )
        for batch in batches.values():
            self._items.store.commit(batch)

    def _end_lives(self, records: Sequence[ItemRecord]) -> None:
        batches: dict[tuple[str, ...], Batch] = {}
        for record in records:
            remaining = _remaining_seconds(record)
            if remaining is not None:
                key, remaining = key_of(record.key), max(remaining, 0.001)
                items = (*self._root, *record.namespace)
                batch = batches.setdefault(items[:2], Batch()).touch(items, key, remaining)
                if is_valid(vectors_of(items)):
                    batch.touch(vectors_of(items), key, remaining)
        for batch in batches.values():
            self._items.store.commit(batch)

    def difference(self, record: ItemRecord, found: ItemRecord) -> str | None:
        return _difference(record, found, compares_ends=True)

    def is_part(self, record: ItemRecord, found: ItemRecord) -> bool:
        # With an index, lives end only after a second commit.
        return self._items.index_config is not None and _difference(record, found, compares_ends=False) is None

    def _record(self, space: tuple[str, ...], row: Row) -> ItemRecord:
        value = value_of(row)
        if value is None:
            raise Corrupt(f"the row {row.key!r} of {space!r} is not an item; it was written by other means")
        seconds = ttl_of(row)
        minutes = None if seconds is None else seconds / 60
        return ItemRecord(space[len(self._root) :], key_from(row.key), value, minutes, row.expires_at)


def _of_item(item: Item) -> ItemRecord:
    # Stores in memory may hold what only Python knows; it is checked when it is written.
    return ItemRecord(item.namespace, item.key, item.value)


def _difference(record: ItemRecord, found: ItemRecord, *, compares_ends: bool) -> str | None:
    if not are_same(record.value, found.value):
        return "the values differ"
    one, other = record.ttl_minutes, found.ttl_minutes
    if one is not None and (other is None or abs(one - other) > TTL_TOLERANCE_MINUTES):
        return "the times to live differ"
    if (record.expires_at is None) != (found.expires_at is None):
        return "one of them expires"
    if compares_ends and record.expires_at is not None and found.expires_at is not None:
        if abs(record.expires_at - found.expires_at) > EXPIRY_TOLERANCE:
            return "they expire at different times"
    return None


def _remaining_seconds(record: ItemRecord) -> float | None:
    return None if record.expires_at is None else (record.expires_at - utc_now()).total_seconds()


def _time(stored: Any) -> datetime | None:
    """Reads a time as SQLite's texts and PostgreSQL's times have it."""
    if stored is None:
        return None
    try:
        time = stored if isinstance(stored, datetime) else datetime.fromisoformat(str(stored))
    except ValueError as error:
        raise Corrupt(f"the time {stored!r} of an item cannot be read; repair it in the source") from error
    return time.replace(tzinfo=timezone.utc) if time.tzinfo is None else time.astimezone(timezone.utc)


