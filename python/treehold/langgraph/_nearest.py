"""Finding the items whose vectors are nearest to a query, as steps over the rows of a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from treehold import Row
from treehold._io import GetMany, Namespace, Namespaces, Scan, Steps, Work

from ._find import PAGE_ROWS, Finder, Found
from ._keys import is_valid, items_of, labels_of, root_of, vectors_of
from ._partitions import versions_of
from ._plan import ItemSearch, Place
from ._vectors import Index, Table, Vectors, VectorTables, mark_of, read_vectors


class NearestFinder:
    """Finds the nearest items beneath one root."""

    def __init__(self, root: Namespace, index: Index, tables: VectorTables, finder: Finder) -> None:
        self._root = root
        self._index = index
        self._tables = tables
        self._finder = finder

    def find(self, search: ItemSearch, query: Any) -> Steps[list[Found]]:
        """Finds the items whose vectors are nearest, and then items without vectors."""
        spaces = yield from self._load(search.prefix)
        wanted = search.offset + search.limit
        count: int | None = wanted if search.filter.is_empty else 4 * wanted
        while True:
            scored: list[tuple[float, Namespace, str]] = yield Work(partial(_nearest, self._tables, spaces, query, count), True)
            found, seen = yield from self._verified(scored, search, wanted)
            if len(found) >= wanted or count is None:
                break
            # Expired items, and those that do not match, took the places of others.
            count = None if count > 16 * wanted else 4 * count
        if len(found) < wanted:
            rest = yield from self._finder.in_order(search, 0, wanted - len(found) + len(seen))
            found.extend(at for at in rest if at.place not in seen)
        return found[search.offset : wanted]

    def _verified(
        self, scored: Sequence[tuple[float, Namespace, str]], search: ItemSearch, wanted: int
    ) -> Steps[tuple[list[Found], set[Place]]]:
        """Reads the items of scored vectors, until enough match."""
        found: list[Found] = []
        seen: set[Place] = set()
        for start in range(0, len(scored), max(wanted, 32)):
            some = scored[start : start + max(wanted, 32)]
            read = yield from self._finder.at([(space, key) for _, space, key in some], search.filter)
            scores = {(space, key): score for score, space, key in some}
            for at in read:
                # Items that were put by other means since have no vectors.
                item = self._tables.table(at.namespace).items.get(at.row.key)
                if item is not None and item.mark == mark_of(at.row.body):
                    found.append(Found(at.namespace, at.row, at.value, scores[at.place]))
                    seen.add(at.place)
            if len(found) >= wanted:
                break
        return found[:wanted], seen

    def _load(self, prefix: Namespace) -> Steps[list[Namespace]]:
        """Brings the tables of the namespaces at and below a prefix up to date."""
        above = (*self._root, *prefix)
        listed = (yield from self._spaces(prefix)) if len(above) == 1 else None
        within = [(*self._root, *space) for space in listed] if listed is not None else [above]
        versions = yield from versions_of(sorted({root_of(place)[:2] for place in within}))
        loaded = self._tables.loaded(prefix, versions)
        # A namespace may have been added after the list was read.
        if loaded is not None and (listed is None or loaded == listed):
            return loaded
        spaces = (yield from self._spaces(prefix)) if listed is None else listed
        for space in spaces:
            yield from self._load_table(self._tables.table(space), vectors_of((*self._root, *space)))
        self._tables.set_loaded(prefix, versions, spaces)
        self._tables.forget(spaces)
        return spaces

    def _load_table(self, table: Table, stored: Namespace) -> Steps[None]:
        """Brings one table up to date with the rows of its vectors."""
        present: dict[str, int] = {}
        cursor: str | None = None
        while True:
            page = yield Scan(stored, "", cursor, limit=PAGE_ROWS, with_values=False)
            present.update({row.key: row.version for row in page.rows})
            cursor = page.next
            if cursor is None:
                break
        with self._tables.lock:
            changed = [key for key, version in present.items() if _table_version(table, key) != version]
            for key in [key for key in table.items if key not in present]:
                table.remove(key)
        for start in range(0, len(changed), PAGE_ROWS):
            rows: Sequence[Row | None] = yield GetMany(stored, changed[start : start + PAGE_ROWS])
            with self._tables.lock:
                for row in rows:
                    if row is not None:
                        mark, vectors = read_vectors(row, self._index.dims)
                        table.put(row.key, Vectors(row.version, mark, vectors))

    def _spaces(self, prefix: Namespace) -> Steps[list[Namespace]]:
        """Lists the namespaces of items at and below a prefix that have vectors."""
        above = (*self._root, *prefix)
        found: list[Namespace] = []
        if not is_valid(vectors_of(above)):
            return found
        start: Namespace | None = None
        while True:
            # One component may be above several partitions, each with vectors.
            page = yield Namespaces(above if len(above) == 1 else vectors_of(above), start)
            for space in map(tuple, page.namespaces):
                items = items_of(space)
                if items is not None and (labels := labels_of(self._root, items)) is not None:
                    found.append(labels)
            start = page.next
            if start is None:
                return found


def _nearest(
    tables: VectorTables, spaces: Iterable[Namespace], query: Any, count: int | None
) -> list[tuple[float, Namespace, str]]:
    scored: list[tuple[float, Namespace, str]] = []
    with tables.lock:
        for space in spaces:
            scored.extend((score, space, key) for score, key in tables.table(space).nearest(query, count))
    scored.sort(key=lambda entry: (-entry[0], entry[1], entry[2]))
    return scored


def _table_version(table: Table, key: str) -> int | None:
    item = table.items.get(key)
    return None if item is None else item.version
