"""The operations of a batch, checked before anything is read or stored."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from langgraph.store.base import GetOp, ListNamespacesOp, Op, PutOp, SearchOp

from treehold import InvalidArgument
from treehold._io import Namespace

from ._filter import Filter
from ._items import InvalidNamespace, body_of, checked_namespace, key_of, seconds_of
from ._keys import is_valid, vectors_of
from ._types import are_texts
from ._vectors import Index

Place: TypeAlias = tuple[Namespace, str]
"""The namespace and the key of an item."""


@dataclass(frozen=True, slots=True)
class ItemPut:
    """A put, or a removal without a body."""

    namespace: Namespace
    key: str
    body: bytes | None
    ttl_seconds: float | None
    texts: Sequence[tuple[str, str]]
    condition: tuple[int | None] | None = None
    """The version that the item must have, if any; `(None,)` for an item that must not exist."""


@dataclass(frozen=True, slots=True)
class ItemGet:
    """A read of one item."""

    namespace: Namespace
    key: str
    refreshes: bool


@dataclass(frozen=True, slots=True)
class ItemSearch:
    """A search of the items below a namespace."""

    prefix: Namespace
    filter: Filter
    limit: int
    offset: int
    query: str | None
    refreshes: bool
    after: Place | None = None


@dataclass(frozen=True, slots=True)
class NamespaceList:
    """A list of namespaces with items."""

    prefix: Namespace
    """The labels that all listed namespaces start with."""
    conditions: Sequence[tuple[str, Sequence[str]]]
    depth: int | None
    limit: int
    offset: int
    after: Namespace | None = None


@dataclass(slots=True)
class Plan:
    """The operations of a batch. Reads are numbered by their positions."""

    count: int = 0
    gets: dict[int, ItemGet] = field(default_factory=dict[int, ItemGet])
    searches: dict[int, ItemSearch] = field(default_factory=dict[int, ItemSearch])
    lists: dict[int, NamespaceList] = field(default_factory=dict[int, NamespaceList])
    puts: dict[Place, ItemPut] = field(default_factory=dict[Place, ItemPut])

    @property
    def reads(self) -> int:
        """The number of reads that have to show one moment."""
        spaces = {get.namespace for get in self.gets.values()}
        return len(spaces) + len(self.searches) + len(self.lists)


class Planner:
    """Checks operations on the items beneath one root."""

    def __init__(self, root: Namespace, index: Index | None) -> None:
        self._root = root
        self._index = index

    def plan(self, ops: Iterable[Op]) -> Plan:
        """Checks the operations of a batch."""
        plan = Plan()
        for position, op in enumerate(ops):
            plan.count += 1
            match op:
                case GetOp():
                    plan.gets[position] = ItemGet(*self.place(op.namespace, op.key), op.refresh_ttl)
                case PutOp():
                    put = self._put(op.namespace, op.key, op.value, op.index, op.ttl)
                    # The last put of an item counts.
                    plan.puts.pop((put.namespace, put.key), None)
                    plan.puts[put.namespace, put.key] = put
                case SearchOp():
                    plan.searches[position] = self._search(op)
                case ListNamespacesOp():
                    plan.lists[position] = self._list(op)
                case _:
                    raise InvalidArgument(f"`{type(op).__name__}` is not an operation of a store")
        return plan

    def place(self, namespace: Sequence[str], key: str) -> Place:
        """Checks the namespace and the key of an item."""
        return checked_namespace(namespace, self._root), key_of(key)

    def conditional(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        version: int | None,
        index: Literal[False] | list[str] | None,
        ttl: float | None,
    ) -> ItemPut:
        """Checks a put of an item that must have a version, or must not exist."""
        if not namespace or namespace[0] == "langgraph":
            raise InvalidNamespace("the namespace is empty or begins with `langgraph`; LangGraph allows neither")
        return self._put(namespace, key, value, index, ttl, (version,))

    def search_page(
        self,
        namespace_prefix: tuple[str, ...],
        filter: dict[str, Any] | None,
        limit: int,
        after: str | None,
        *,
        refreshes: bool,
    ) -> ItemSearch:
        """Checks a search that starts at a cursor."""
        prefix = checked_namespace(namespace_prefix, self._root)
        start = None if after is None else _read_cursor(after, prefix)
        return ItemSearch(prefix, Filter(filter), max(_count("limit", limit), 1), 0, None, refreshes, start)

    def namespaces_page(self, prefix: tuple[str, ...], limit: int, after: str | None) -> NamespaceList:
        """Checks a list of namespaces that starts at a cursor."""
        checked = checked_namespace(prefix, self._root)
        start = None if after is None else _read_cursor(after, checked)[0]
        return NamespaceList(checked, [("prefix", checked)], None, max(_count("limit", limit), 1), 0, start)

    def _put(
        self,
        namespace: Sequence[str],
        key: str,
        value: Mapping[str, Any] | None,
        index: Any,
        ttl: float | None,
        condition: tuple[int | None] | None = None,
    ) -> ItemPut:
        checked, stored_key = self.place(namespace, key)
        seconds = seconds_of(ttl)
        if index is not None and index is not False and not are_texts(index):
            raise InvalidArgument(f"`index` is `{index!r}`; use a list of paths, False, or None for the default")
        if value is None:
            return ItemPut(checked, stored_key, None, None, (), condition)
        body = body_of(key, value)
        texts: Sequence[tuple[str, str]] = ()
        if self._index is not None and index is not False:
            texts = self._index.texts(value, index)
        if texts and not is_valid(vectors_of((*self._root, *checked))):
            raise InvalidNamespace(f"the namespace `{checked}` leaves no room for one of vectors; use fewer or shorter labels, or index=False")
        return ItemPut(checked, stored_key, body, seconds, texts, condition)

    def _search(self, op: SearchOp) -> ItemSearch:
        prefix = checked_namespace(op.namespace_prefix, self._root)
        limit, offset = _count("limit", op.limit), _count("offset", op.offset)
        query = op.query if op.query and self._index is not None else None
        return ItemSearch(prefix, Filter(op.filter), limit, offset, query, op.refresh_ttl)

    def _list(self, op: ListNamespacesOp) -> NamespaceList:
        conditions: list[tuple[str, Sequence[str]]] = []
        prefix: Namespace = ()
        for condition in op.match_conditions or ():
            path = checked_namespace(condition.path, ())
            if condition.match_type not in ("prefix", "suffix"):
                raise InvalidArgument(f"`{condition.match_type}` is not a way to match; use prefix or suffix")
            conditions.append((condition.match_type, path))
            if condition.match_type == "prefix":
                literal = path[: path.index("*")] if "*" in path else path
                prefix = max(prefix, literal, key=len)
        depth = None if op.max_depth is None else _count("max_depth", op.max_depth)
        return NamespaceList(prefix, conditions, depth, _count("limit", op.limit), _count("offset", op.offset))


def cursor_of(place: Place) -> str:
    """Writes the cursor of the page that follows a place."""
    return base64.urlsafe_b64encode(json.dumps([list(place[0]), place[1]]).encode("utf-8")).decode("ascii")


def _read_cursor(cursor: str, prefix: Namespace) -> Place:
    try:
        labels, key = json.loads(base64.urlsafe_b64decode(cursor.encode("ascii")))
        place = tuple(str(label) for label in labels), str(key)
    except (ValueError, TypeError):
        raise InvalidArgument("the cursor cannot be read; pass the one of the last page") from None
    if place[0][: len(prefix)] != prefix:
        raise InvalidArgument("the cursor belongs to another search; pass the one of this search's last page")
    return place


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidArgument(f"`{name}` is `{value!r}`; use a whole number from 0")
    return value
