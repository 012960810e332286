"""Finding items and namespaces in order, as steps over the rows of a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from treehold import Page, Row
from treehold._io import FoundRows, GetMany, Namespace, Namespaces, Scan, Search, Steps

from ._filter import Filter
from ._items import is_item, value_of
from ._keys import labels_of
from ._plan import ItemSearch, NamespaceList, Place

PAGE_ROWS = 500
"""How many rows are read at once."""

NAMESPACES_AHEAD = 100
"""How many namespaces are listed at once while their items are read."""


@dataclass(frozen=True, slots=True)
class Found:
    """A found item."""

    namespace: Namespace
    row: Row
    value: dict[str, Any]
    score: float | None = None

    @property
    def place(self) -> Place:
        """Where the item lies."""
        return self.namespace, self.row.key


class Finder:
    """Finds the items beneath one root."""

    def __init__(self, root: Namespace) -> None:
        self._root = root

    def in_order(self, search: ItemSearch, skip: int, count: int) -> Steps[list[Found]]:
        """Skips the first items by namespace and key, and finds those that follow."""
        found: list[Found] = []
        space, after = search.after or (None, None)
        start: Namespace | None = None
        while True:
            spaces: list[Namespace] = []
            if space is not None:
                # Continue within the namespace of the cursor, and then after it.
                spaces.append(space)
                start, space = (*self._root, *space), None
            else:
                page = yield Namespaces((*self._root, *search.prefix), start, limit=NAMESPACES_AHEAD)
                spaces.extend(self._labels(page.namespaces))
                start = page.next
            for namespace in spaces:
                while True:
                    # Without a filter, bodies are read only of what is returned.
                    is_skipping = skip > 0 and search.filter.is_empty
                    wanted = skip if is_skipping else count - len(found) + skip
                    rows: Page | FoundRows = yield self._rows(namespace, search.filter, after, wanted, with_values=not is_skipping)
                    after = rows.next
                    if is_skipping:
                        skip -= sum(map(is_item, rows.rows))
                    else:
                        matching = _matching(namespace, rows.rows, search.filter)
                        found.extend(matching[skip:])
                        skip = max(0, skip - len(matching))
                    if len(found) >= count:
                        return found[:count]
                    if after is None:
                        break
            if start is None:
                return found

    def latest(self, search: ItemSearch) -> Steps[list[Found]]:
        """Finds the items that were updated last."""
        rows: list[tuple[Namespace, Row]] = []
        for space in (yield from self._spaces(search.prefix)):
            cursor: str | None = None
            while True:
                # Without a filter, bodies are read only of what is returned.
                page = yield self._rows(space, search.filter, cursor, PAGE_ROWS, with_values=not search.filter.is_empty)
                if search.filter.is_empty:
                    rows.extend((space, row) for row in page.rows if is_item(row))
                else:
                    rows.extend((at.namespace, at.row) for at in _matching(space, page.rows, search.filter))
                cursor = page.next
                if cursor is None:
                    break
        rows.sort(key=lambda entry: (-entry[1].version, entry[0], entry[1].key))
        some = rows[search.offset : search.offset + search.limit]
        return (yield from self.at([(space, row.key) for space, row in some], Filter(None)))

    def at(self, places: Sequence[Place], filter: Filter) -> Steps[list[Found]]:
        """Reads items, in the order of their places. Those that are gone or do not match are left out."""
        spaces: dict[Namespace, list[str]] = {}
        for space, key in places:
            spaces.setdefault(space, []).append(key)
        read: dict[Place, Found] = {}
        for space, wanted in spaces.items():
            for start in range(0, len(wanted), PAGE_ROWS):
                rows: Sequence[Row | None] = yield GetMany((*self._root, *space), wanted[start : start + PAGE_ROWS])
                for at in _matching(space, [row for row in rows if row is not None], filter):
                    read[at.place] = at
        return [read[place] for place in places if place in read]

    def namespaces(self, listed: NamespaceList) -> Steps[tuple[list[Namespace], bool]]:
        """Lists namespaces in order. Returns whether more may follow."""
        found: list[Namespace] = []
        passed = 0
        last: Namespace | None = None
        start: Namespace | None = None if listed.after is None else (*self._root, *listed.after)
        if listed.limit == 0:
            return [], True
        while True:
            page = yield Namespaces((*self._root, *listed.prefix), start)
            for namespace in self._labels(page.namespaces):
                if not all(_does_match(kind, path, namespace) for kind, path in listed.conditions):
                    continue
                shown = namespace if listed.depth is None else namespace[: listed.depth]
                # Those with a common beginning follow each other.
                if shown == last:
                    continue
                if len(found) == listed.limit:
                    return found, True
                last = shown
                passed += 1
                if passed > listed.offset:
                    found.append(shown)
            start = page.next
            if start is None:
                return found, False

    def _spaces(self, prefix: Namespace) -> Steps[list[Namespace]]:
        """Lists the namespaces with items at and below a prefix."""
        found: list[Namespace] = []
        start: Namespace | None = None
        while True:
            page = yield Namespaces((*self._root, *prefix), start)
            found.extend(self._labels(page.namespaces))
            start = page.next
            if start is None:
                return found

    def _labels(self, spaces: Iterable[Sequence[str]]) -> Iterable[Namespace]:
        """Returns the namespaces of items among those of the store."""
        return (labels for space in spaces if (labels := labels_of(self._root, space)) is not None)

    def _rows(self, space: Namespace, filter: Filter, after: str | None, wanted: int, *, with_values: bool) -> Scan | Search:
        """Asks for a page of rows: those of a namespace, or those that may match."""
        place, limit = (*self._root, *space), min(PAGE_ROWS, wanted)
        if filter.native is not None:
            return Search(place, filter.native, after, limit)
        return Scan(place, "", after, limit if filter.is_empty else PAGE_ROWS, with_values)


def _matching(space: Namespace, rows: Iterable[Row], filter: Filter) -> list[Found]:
    found: list[Found] = []
    for row in rows:
        value = value_of(row)
        if value is not None and filter.matches(value):
            found.append(Found(space, row, value))
    return found


def _does_match(kind: str, path: Sequence[str], namespace: Namespace) -> bool:
    if len(path) > len(namespace):
        return False
    labels = namespace[: len(path)] if kind == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, labels, strict=True))
