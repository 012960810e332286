"""Executing checked operations, as steps over the rows of a store."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from langgraph.store.base import Result

from treehold import Batch, Conflict, Error, Row
from treehold._io import Commit, GetMany, Namespace, Steps

from ._find import Finder, Found
from ._former_vectors import FormerVectors
from ._items import TreeholdSearchItem, found_item_of, is_worth_refreshing, item_of, meta_of, ttl_of, utc_now
from ._keys import is_valid, vectors_of
from ._nearest import NearestFinder
from ._partitions import by_partition, partitions_read, versions_of
from ._plan import ItemGet, ItemPut, ItemSearch, NamespaceList, Place, Plan, cursor_of
from ._vectors import Embed, Index, VectorTables, vectors_row

# The name of the public module, which programs configure.
logger = logging.getLogger("treehold.langgraph.store")

CONSISTENT_ATTEMPTS = 4
"""How often the reads of a batch start again when somebody commits in between."""


class Executor:
    """Executes operations on the items beneath one root."""

    def __init__(self, root: Namespace, index: Index | None, tables: VectorTables | None, *, is_latest_first: bool) -> None:
        self._root = root
        self._index = index
        self._is_latest_first = is_latest_first
        self._former = FormerVectors(root)
        self._finder = Finder(root)
        self._nearest: NearestFinder | None = None
        if index is not None and tables is not None:
            self._nearest = NearestFinder(root, index, tables, self._finder)

    def execute(self, plan: Plan) -> Steps[list[Result]]:
        """Executes a batch: its reads as of one moment, and then its puts, one commit for each partition."""
        yield from self._former.move()
        vectors = yield from self._embed(plan.puts.values(), plan.searches.values())
        results: list[Result] = [None] * plan.count
        refreshed: dict[Place, Row] = {}
        for attempt in range(CONSISTENT_ATTEMPTS):
            partitions = partitions_read(self._root, plan) if plan.reads > 1 and attempt < CONSISTENT_ATTEMPTS - 1 else []
            before = yield from versions_of(partitions)
            refreshed = yield from self._read(plan, vectors, results)
            if before == (yield from versions_of(partitions)):
                break
        for puts in by_partition(self._root, plan.puts).values():
            yield Commit(self._batch(puts.values(), vectors))
            yield from self._former.remove_left(puts.values())
        for place in plan.puts:
            refreshed.pop(place, None)
        yield from self._refresh(refreshed)
        return results

    def put(self, put: ItemPut) -> Steps[int]:
        """Puts one item. Returns its version."""
        yield from self._former.move()
        vectors = yield from self._embed([put], [])
        versions: list[int] = yield Commit(self._batch([put], vectors))
        yield from self._former.remove_left([put])
        return versions[0]

    def current(self, place: Place) -> Steps[tuple[Row | None, dict[str, Any] | None]]:
        """Reads one item: its row and its value."""
        namespace, key = place
        rows: Sequence[Row | None] = yield GetMany((*self._root, *namespace), [key])
        return (None, None) if rows[0] is None else (rows[0], item_of(namespace, rows[0]).value)

    def search_page(self, search: ItemSearch) -> Steps[tuple[list[TreeholdSearchItem], str | None]]:
        """Finds items by namespace and key. Returns the cursor of the next page too."""
        yield from self._former.move()
        found = yield from self._finder.in_order(search, 0, search.limit + 1)
        has_more = len(found) > search.limit
        found = found[: search.limit]
        if search.refreshes:
            yield from self._refresh({at.place: at.row for at in found})
        items = [found_item_of(at.namespace, at.row, at.value, None) for at in found]
        return items, cursor_of(found[-1].place) if has_more else None

    def namespaces_page(self, listed: NamespaceList) -> Steps[tuple[list[Namespace], str | None]]:
        """Lists namespaces. Returns the cursor of the next page too."""
        found, has_more = yield from self._finder.namespaces(listed)
        return found, cursor_of((found[-1], "")) if has_more and found else None

    def _embed(self, puts: Iterable[ItemPut], searches: Iterable[ItemSearch]) -> Steps[dict[tuple[bool, str], Any]]:
        if self._index is None:
            return {}
        texts = list(dict.fromkeys(text for put in puts for _, text in put.texts))
        queries = list(dict.fromkeys(search.query for search in searches if search.query is not None))
        if not texts and not queries:
            return {}
        vectors: dict[tuple[bool, str], Any] = yield Embed(self._index, texts, queries)
        return vectors

    def _batch(self, puts: Iterable[ItemPut], vectors: Mapping[tuple[bool, str], Any]) -> Batch:
        batch = Batch()
        for put in puts:
            items = (*self._root, *put.namespace)
            beside = vectors_of(items)
            if put.condition is not None:
                batch.require(items, put.key, put.condition[0])
            if put.body is None:
                batch.delete(items, put.key)
            else:
                batch.put(items, put.key, put.body, meta=meta_of(put.ttl_seconds), ttl_seconds=put.ttl_seconds)
            if put.texts and put.body is not None:
                places = [place for place, _ in put.texts]
                meta, body = vectors_row(put.body, places, [vectors[False, text] for _, text in put.texts])
                batch.put(beside, put.key, body, meta=meta, ttl_seconds=put.ttl_seconds)
            elif is_valid(beside):
                batch.delete(beside, put.key)
        return batch

    def _read(self, plan: Plan, vectors: Mapping[tuple[bool, str], Any], results: list[Result]) -> Steps[dict[Place, Row]]:
        """Reads what the operations ask for. Returns the rows whose life the reads extend."""
        refreshed: dict[Place, Row] = {}
        spaces: dict[Namespace, list[tuple[int, ItemGet]]] = {}
        for position, get in plan.gets.items():
            spaces.setdefault(get.namespace, []).append((position, get))
        for namespace, gets in spaces.items():
            rows: Sequence[Row | None] = yield GetMany((*self._root, *namespace), [get.key for _, get in gets])
            for (position, get), row in zip(gets, rows, strict=True):
                results[position] = None if row is None else item_of(namespace, row)
                if row is not None and get.refreshes:
                    refreshed[namespace, get.key] = row
        for position, search in plan.searches.items():
            found = yield from self._find(search, vectors)
            results[position] = cast("Result", [found_item_of(at.namespace, at.row, at.value, at.score) for at in found])
            if search.refreshes:
                refreshed.update({at.place: at.row for at in found})
        for position, listed in plan.lists.items():
            results[position], _ = yield from self._finder.namespaces(listed)
        return refreshed

    def _find(self, search: ItemSearch, vectors: Mapping[tuple[bool, str], Any]) -> Steps[list[Found]]:
        if search.limit == 0:
            return []
        if search.query is not None and self._nearest is not None:
            return (yield from self._nearest.find(search, vectors[True, search.query]))
        if self._is_latest_first:
            return (yield from self._finder.latest(search))
        return (yield from self._finder.in_order(search, search.offset, search.limit))

    def _refresh(self, rows: Mapping[Place, Row]) -> Steps[None]:
        """Extends the life of items just read. A failure is only logged, because what was read is correct."""
        now = utc_now()
        young = {place: row for place, row in rows.items() if is_worth_refreshing(row, now)}
        for group in by_partition(self._root, young).values():
            try:
                yield Commit(self._touches(group))
                continue
            except Conflict:
                pass
            except Error as error:
                logger.warning("extending the life of items after a read failed: %s", error)
                return
            # Somebody changed one of the items. It has a new life already.
            for place, row in group.items():
                try:
                    yield Commit(self._touches({place: row}))
                except Conflict:
                    continue
                except Error as error:
                    logger.warning("extending the life of an item after a read failed: %s", error)
                    return

    def _touches(self, rows: Mapping[Place, Row]) -> Batch:
        batch = Batch()
        for (namespace, key), row in rows.items():
            items = (*self._root, *namespace)
            beside = vectors_of(items)
            batch.require(items, key, row.version).touch(items, key, ttl_of(row))
            if is_valid(beside):
                batch.touch(beside, key, ttl_of(row))
        return batch
