"""Listing the checkpoints of threads, newest first, as steps over the rows of a store."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from langgraph.checkpoint.base import CheckpointTuple

from treehold import Row
from treehold._io import GetMany, Namespace, Scan, Steps

from . import _keys as keys
from ._records import decode_record
from ._threads import PAGE_CHECKPOINTS, PAGE_ROWS, Threads


@dataclass(slots=True)
class Listing:
    """A list of checkpoints, newest first, read page by page."""

    find: Callable[[], Steps[Sequence[Threads]]]
    """Returns where to look."""
    thread_id: str | None
    checkpoint_ns: str | None
    checkpoint_id: str | None
    before_id: str | None
    metadata: Mapping[str, Any]
    limit: int | None
    _found: Sequence[Threads] | None = None
    _places: Iterator[tuple[str, Namespace, str, int]] | None = None
    _scanned_to: str | None = None
    _is_done: bool = False

    def page(self) -> Steps[list[CheckpointTuple]]:
        """Reads the next page. The list has ended once `is_done`."""
        found: list[CheckpointTuple] = []
        if self._found is None:
            self._found = yield from self.find()
        rows = yield from self._rows(self._found)
        for threads, thread_id, row in rows:
            if self.limit is not None and self.limit <= 0:
                self._is_done = True
                break
            record = decode_record(threads.serde, row)
            stored = cast("Mapping[str, Any]", record.metadata)
            if any(stored.get(name) != value for name, value in self.metadata.items()):
                continue
            # A checkpoint that is removed meanwhile is not listed.
            loaded = yield from threads.load(thread_id, record.checkpoint_ns, record.checkpoint_id)
            if loaded is not None:
                found.append(loaded)
                if self.limit is not None:
                    self.limit -= 1
        return found

    @property
    def is_done(self) -> bool:
        """Whether there are no more pages."""
        return self._is_done or (self.limit is not None and self.limit <= 0)

    def _rows(self, found: Sequence[Threads]) -> Steps[list[tuple[Threads, str, Row]]]:
        """Reads the rows of the next page."""
        size = PAGE_CHECKPOINTS
        if self.limit is not None and not self.metadata:
            size = min(size, self.limit)
        if self.thread_id is not None and self.checkpoint_ns is not None:
            return (yield from self._rows_of_namespace(found[0], self.thread_id, self.checkpoint_ns, size))
        if self._places is None:
            places = yield from self._all_places(found)
            self._places = iter(places)
        some = list(islice(self._places, size))
        self._is_done = len(some) < size
        rows: list[tuple[Threads, str, Row]] = []
        for _, namespace, key, index in some:
            got: Sequence[Row | None] = yield GetMany(namespace, [key])
            thread_id = self.thread_id
            if thread_id is None:
                thread_id = yield from found[index].thread_id(namespace)
            if got[0] is not None and thread_id is not None:
                rows.append((found[index], thread_id, got[0]))
        return rows

    def _rows_of_namespace(
        self, threads: Threads, thread_id: str, checkpoint_ns: str, size: int
    ) -> Steps[list[tuple[Threads, str, Row]]]:
        namespace = threads.namespace(thread_id)
        if self.checkpoint_id is not None:
            self._is_done = True
            if self.before_id is not None and self.checkpoint_id >= self.before_id:
                return []
            row = yield from threads.row(namespace, checkpoint_ns, self.checkpoint_id)
            return [] if row is None else [(threads, thread_id, row)]
        after = self._scanned_to
        if after is None and self.before_id is not None:
            after = keys.checkpoint_key(checkpoint_ns, self.before_id)
        page = yield Scan(namespace, keys.namespace_prefix(keys.CHECKPOINT, checkpoint_ns), after, limit=size)
        self._scanned_to = page.next
        self._is_done = page.next is None
        return [(threads, thread_id, row) for row in page.rows]

    def _all_places(self, found: Sequence[Threads]) -> Steps[list[tuple[str, Namespace, str, int]]]:
        """Finds the checkpoints of all namespaces of a thread or of all threads, newest first."""
        spaces: list[tuple[Namespace, int]] = []
        for index, threads in enumerate(found):
            if self.thread_id is not None:
                spaces.append((threads.namespace(self.thread_id), index))
                continue
            after: Namespace | None = None
            while True:
                more, after = yield from threads.namespaces(after)
                spaces.extend((space, index) for space in more)
                if after is None:
                    break
        only = None if self.checkpoint_id is None else keys.descending(self.checkpoint_id)
        before = None if self.before_id is None else keys.descending(self.before_id)
        places: list[tuple[str, Namespace, str, int]] = []
        for space, index in spaces:
            for key in (yield from found[index].keys_of(space, keys.CHECKPOINT)):
                order = key.rsplit(keys.SEPARATOR, 1)[1]
                if (only is None or order == only) and (before is None or order > before):
                    places.append((order, space, key, index))
            if self.limit is not None and not self.metadata and len(places) > 2 * self.limit + PAGE_ROWS:
                places = heapq.nsmallest(self.limit, places)
        return sorted(places)
