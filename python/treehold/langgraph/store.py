"""LangGraph's long-term memory on any treehold store."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

from langchain_core.embeddings import Embeddings
from langgraph.store.base import (
    NOT_PROVIDED,
    BaseStore,
    GetOp,
    ListNamespacesOp,
    NotProvided,
    Op,
    PutOp,
    Result,
    SearchOp,
    TTLConfig,
)
from typing_extensions import Self

from treehold import Batch, Conflict, Error, InvalidArgument, Page, Row, Store
from treehold._io import (
    Commit,
    CurrentVersion,
    FoundRows,
    GetMany,
    Namespace,
    Namespaces,
    Scan,
    Search,
    Steps,
    Work,
    arun,
    run,
)
from treehold._moving import Move, move

from ._filter import Filter
from ._items import (
    InvalidNamespace,
    TreeholdSearchItem,
    body_of,
    checked_namespace,
    found_item_of,
    is_item,
    is_worth_refreshing,
    item_of,
    key_of,
    meta_of,
    seconds_of,
    ttl_of,
    utc_now,
    value_of,
)
from ._keys import is_reserved, is_valid, items_of, left_vectors_of, root_of, vectors_of
from ._types import are_texts
from ._urls import store_url
from ._vectors import Embed, Index, TreeholdIndexConfig, Vectors, VectorTables, mark_of, read_vectors, vectors_row

logger = logging.getLogger(__name__)

T = TypeVar("T")

Order: TypeAlias = Literal["key", "updated_at"]

PAGE_ROWS = 500
"""How many rows are read at once."""

NAMESPACES_AHEAD = 100
"""How many namespaces are listed at once while their items are read."""

CONSISTENT_ATTEMPTS = 4
"""How often the reads of a batch start again when somebody commits in between."""

UPDATE_ATTEMPTS = 64
"""How often an update starts again when somebody changes the item in between."""

SWEPT_ROWS = 1000
"""How many expired rows are removed at once."""

_FORMER_VECTORS = "~vectors"
"""What earlier versions extended the last component of the namespace of items by for their vectors."""


_LEFT = "left"
"""The key of the row that says which namespaces of such vectors stay."""


class SearchPage(NamedTuple):
    """A page of found items."""

    items: list[TreeholdSearchItem]
    next: str | None
    """The cursor of the next page; `None` at the end."""


class NamespacesPage(NamedTuple):
    """A page of namespaces."""

    namespaces: list[tuple[str, ...]]
    next: str | None
    """The cursor of the next page; `None` at the end."""


@dataclass(frozen=True, slots=True)
class _Put:
    """A checked put, or a removal without a body."""

    namespace: Namespace
    key: str
    body: bytes | None
    ttl_seconds: float | None
    texts: Sequence[tuple[str, str]]
    condition: tuple[int | None] | None = None
    """The version that the item must have, if any; `(None,)` for an item that must not exist."""


@dataclass(frozen=True, slots=True)
class _Get:
    namespace: Namespace
    key: str
    refreshes: bool


@dataclass(frozen=True, slots=True)
class _Search:
    prefix: Namespace
    filter: Filter
    limit: int
    offset: int
    query: str | None
    refreshes: bool
    after: tuple[Namespace, str] | None = None


@dataclass(frozen=True, slots=True)
class _List:
    prefix: Namespace
    """The labels that all listed namespaces start with."""
    conditions: Sequence[tuple[str, Sequence[str]]]
    depth: int | None
    limit: int
    offset: int
    after: Namespace | None = None


@dataclass(slots=True)
class _Plan:
    """The checked operations of a batch."""

    count: int = 0
    gets: dict[int, _Get] = field(default_factory=dict[int, _Get])
    searches: dict[int, _Search] = field(default_factory=dict[int, _Search])
    lists: dict[int, _List] = field(default_factory=dict[int, _List])
    puts: dict[tuple[Namespace, str], _Put] = field(default_factory=dict[tuple[Namespace, str], _Put])

    @property
    def reads(self) -> int:
        """The number of reads that have to show one moment."""
        spaces = {get.namespace for get in self.gets.values()}
        return len(spaces) + len(self.searches) + len(self.lists)


@dataclass(frozen=True, slots=True)
class _Found:
    namespace: Namespace
    row: Row
    value: dict[str, Any]
    score: float | None = None


class TreeholdStore(BaseStore):
    """Keeps items as rows of a treehold store.

    All puts of a batch to one partition are one commit, and its reads show one moment; a search over several partitions shows
    each at a moment of its own. A partition is the first two
    components of a namespace, so all items beneath a `namespace` of two or more are in one. Items are ordinary JSON items, so
    the command line and the server show them too. All methods have a native async twin, and may be called from any thread,
    loop or process.

    The vectors of items lie beside them, in the same partition. Those that an earlier version stored elsewhere are moved at
    the first use; if that fails, its error is raised, nothing is lost, and the next use continues.
    """

    __slots__ = (
        "_has_moved",
        "_index",
        "_left",
        "_owns_store",
        "_stop_sweeper",
        "_sweeper",
        "_tables",
        "index_config",
        "namespace",
        "order",
        "store",
        "ttl_config",
    )

    supports_ttl = True

    def __init__(
        self,
        store: Store,
        *,
        namespace: Sequence[str] = ("langgraph", "store"),
        index: TreeholdIndexConfig | None = None,
        ttl: TTLConfig | None = None,
        order: Order = "key",
    ) -> None:
        """Keeps items in `store`.

        Args:
            store: The store.
            namespace: Where the rows lie; the namespaces of items begin below it. Stores with different namespaces do
                not see each other's items, so use one for each tenant or user. An empty second component says that the first
                alone is the partition: `("acme", "", "handbook")`.
            index: How items are embedded, for searches by meaning. Without it, queries are ignored.
            ttl: How long items live. Expired items are absent at once; a sweep removes them from the disk.
            order: The order of found items without a query: by namespace and key, which is stable while somebody pages,
                or the last updated first, which reads the keys of all items below the searched namespace.
        """
        super().__init__()
        self.store = store
        self.namespace: Namespace = _root(namespace)
        if order not in ("key", "updated_at"):
            raise InvalidArgument(f"`{order}` is not an order; use `key` or `updated_at`")
        self.order: Order = order
        self.index_config: TreeholdIndexConfig | None = None
        self._index: Index | None = None
        self._tables: VectorTables | None = None
        if index is not None:
            self.index_config = index.copy()
            self._index = Index(cast("Mapping[str, Any]", index))
            self._tables = VectorTables(self._index)
        self.ttl_config: TTLConfig | None = ttl
        if ttl is not None:
            seconds_of(ttl.get("default_ttl"))
        self._has_moved = False
        self._left: Collection[Namespace] = ()
        self._owns_store = False
        self._sweeper: threading.Thread | None = None
        self._stop_sweeper = threading.Event()

    @classmethod
    def from_conn_string(
        cls,
        conn_string: str,
        *,
        namespace: Sequence[str] = ("langgraph", "store"),
        index: TreeholdIndexConfig | None = None,
        ttl: TTLConfig | None = None,
        order: Order = "key",
    ) -> Self:
        """Opens a store and keeps items in it. Use it as a context manager, which closes the store.

        Args:
            conn_string: The URL of a store, such as `sqlite:agent.db` or `postgres://…`. A path without a scheme is an
                SQLite file and `:memory:` a store in memory, as for LangGraph's own stores.
            namespace: As in the constructor.
            index: As in the constructor.
            ttl: As in the constructor.
            order: As in the constructor.
        """
        store = Store.open(store_url(conn_string))
        items = cls(store, namespace=namespace, index=index, ttl=ttl, order=order)
        items._owns_store = True
        return items

    @property
    def embeddings(self) -> Embeddings | None:
        """What embeds items and queries."""
        return None if self._index is None else self._index.embeddings

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def close(self) -> None:
        """Stops the sweeper, and closes the store if it was opened here."""
        self.stop_ttl_sweeper()
        if self._owns_store:
            self.store.close()

    async def aclose(self) -> None:
        """Stops the sweeper, and closes the store if it was opened here."""
        await asyncio.to_thread(self.stop_ttl_sweeper)
        if self._owns_store:
            await asyncio.to_thread(self.store.close)

    def setup(self) -> None:
        """Does nothing: a store has no tables to create. It is there because other stores need it."""

    async def asetup(self) -> None:
        """Does nothing, as `setup`."""

    # LangGraph's interface.

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Executes operations. Reads show what was there before the puts, as of one moment.

        All puts to one partition are one commit. Only beneath a `namespace` of one component can there be several partitions;
        they are committed in the order of their first puts. If a commit fails, its error is raised and those before it stay.

        All operations are checked before anything is read or stored. Of several puts of one item, the last counts.

        Cost: a read for each namespace of gets; one for each 500 items that searches and lists pass; one commit for each
        partition; at the first use one more read.
        """
        return run(self._execute(self._plan(ops)), self.store)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Executes operations, as `batch`."""
        return await arun(self._execute(self._plan(ops)), self.store)

    # Beyond LangGraph's interface.

    def put_if(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        *,
        version: int | None,
        index: Literal[False] | list[str] | None = None,
        ttl: float | None | NotProvided = NOT_PROVIDED,
    ) -> int:
        """Stores an item if its version is still `version`, or if it does not exist, given `None`. Returns its version.

        Raises:
            Conflict: The item has another version, which is `current_version` of the error.
        """
        return run(self._put_if(self._conditional(namespace, key, value, version, index, ttl)), self.store)

    async def aput_if(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        *,
        version: int | None,
        index: Literal[False] | list[str] | None = None,
        ttl: float | None | NotProvided = NOT_PROVIDED,
    ) -> int:
        """Stores an item if its version is still the same, as `put_if`."""
        return await arun(self._put_if(self._conditional(namespace, key, value, version, index, ttl)), self.store)

    def update(
        self, namespace: tuple[str, ...], key: str, change: Callable[[dict[str, Any] | None], Mapping[str, Any]]
    ) -> int:
        """Replaces an item by the result of `change`, which receives its value or `None`. Returns its version.

        If somebody changes the item meanwhile, `change` is called again with the new value, so no update is lost. The
        item keeps its time to live.
        """
        for attempt in range(UPDATE_ATTEMPTS):
            row, value = run(self._current(namespace, key), self.store)
            put = self._conditional(namespace, key, change(value), _version(row), None, _ttl_minutes(row, self._default_ttl))
            try:
                return run(self._put_if(put), self.store)
            except Conflict:
                if attempt == UPDATE_ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def aupdate(
        self,
        namespace: tuple[str, ...],
        key: str,
        change: Callable[[dict[str, Any] | None], Mapping[str, Any] | Awaitable[Mapping[str, Any]]],
    ) -> int:
        """Replaces an item by the result of `change`, as `update`. `change` may be async."""
        for attempt in range(UPDATE_ATTEMPTS):
            row, value = await arun(self._current(namespace, key), self.store)
            changed = change(value)
            if isinstance(changed, Awaitable):
                changed = await changed
            put = self._conditional(namespace, key, changed, _version(row), None, _ttl_minutes(row, self._default_ttl))
            try:
                return await arun(self._put_if(put), self.store)
            except Conflict:
                if attempt == UPDATE_ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def search_page(
        self,
        namespace_prefix: tuple[str, ...],
        /,
        *,
        filter: dict[str, Any] | None = None,
        limit: int = 100,
        after: str | None = None,
        refresh_ttl: bool | None = None,
    ) -> SearchPage:
        """Returns a page of the items below a namespace by namespace and key, and the cursor of the next.

        Unlike an offset, a cursor misses no item that is there all the time, and reads no page again.
        """
        return run(self._search_page(self._paged(namespace_prefix, filter, limit, after, refresh_ttl)), self.store)

    async def asearch_page(
        self,
        namespace_prefix: tuple[str, ...],
        /,
        *,
        filter: dict[str, Any] | None = None,
        limit: int = 100,
        after: str | None = None,
        refresh_ttl: bool | None = None,
    ) -> SearchPage:
        """Returns a page of items, as `search_page`."""
        steps = self._search_page(self._paged(namespace_prefix, filter, limit, after, refresh_ttl))
        return await arun(steps, self.store)

    def namespaces_page(
        self, prefix: tuple[str, ...] = (), *, limit: int = 100, after: str | None = None
    ) -> NamespacesPage:
        """Returns a page of the namespaces that hold items and start with `prefix`, and the cursor of the next."""
        return run(self._namespaces_page(prefix, limit, after), self.store)

    async def anamespaces_page(
        self, prefix: tuple[str, ...] = (), *, limit: int = 100, after: str | None = None
    ) -> NamespacesPage:
        """Returns a page of namespaces, as `namespaces_page`."""
        return await arun(self._namespaces_page(prefix, limit, after), self.store)

    def sweep_ttl(self) -> int:
        """Removes expired rows from the disk, and returns how many. They are absent already."""
        swept = 0
        while True:
            some = self.store.sweep(SWEPT_ROWS)
            swept += some
            if some < SWEPT_ROWS:
                return swept

    async def asweep_ttl(self) -> int:
        """Removes expired rows, as `sweep_ttl`."""
        swept = 0
        while True:
            some = await self.store.asweep(SWEPT_ROWS)
            swept += some
            if some < SWEPT_ROWS:
                return swept

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Starts a thread that sweeps at intervals, until `stop_ttl_sweeper` or `close`.

        The interval is that of the configuration by default, and else five minutes. Returns a future that is done once
        the thread ends.
        """
        minutes = sweep_interval_minutes
        if minutes is None:
            minutes = (self.ttl_config or {}).get("sweep_interval_minutes") or 5
        seconds = seconds_of(minutes)
        ended: Future[None] = Future()
        if self._sweeper is not None and self._sweeper.is_alive():
            raise InvalidArgument("the sweeper runs already; stop it first")
        self._stop_sweeper.clear()

        def sweep() -> None:
            while not self._stop_sweeper.wait(seconds):
                try:
                    self.sweep_ttl()
                except Error as error:
                    logger.warning("removing expired items failed: %s", error)
            ended.set_result(None)

        self._sweeper = threading.Thread(target=sweep, name="treehold-ttl-sweeper", daemon=True)
        self._sweeper.start()
        return ended

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stops the sweeper. Returns whether it has ended within `timeout` seconds."""
        self._stop_sweeper.set()
        sweeper = self._sweeper
        if sweeper is None:
            return True
        sweeper.join(timeout)
        if sweeper.is_alive():
            return False
        self._sweeper = None
        return True

    # Checking.

    @property
    def _default_ttl(self) -> float | None:
        return (self.ttl_config or {}).get("default_ttl")

    def _plan(self, ops: Iterable[Op]) -> _Plan:
        plan = _Plan()
        for place, op in enumerate(ops):
            plan.count += 1
            match op:
                case GetOp():
                    namespace = checked_namespace(op.namespace, self.namespace)
                    plan.gets[place] = _Get(namespace, key_of(op.key), op.refresh_ttl)
                case PutOp():
                    put = self._put(op.namespace, op.key, op.value, op.index, op.ttl)
                    # The last put of an item counts.
                    plan.puts.pop((put.namespace, put.key), None)
                    plan.puts[put.namespace, put.key] = put
                case SearchOp():
                    plan.searches[place] = self._search(op)
                case ListNamespacesOp():
                    plan.lists[place] = self._list(op)
                case _:
                    raise InvalidArgument(f"`{type(op).__name__}` is not an operation of a store")
        return plan

    def _put(
        self,
        namespace: Sequence[str],
        key: str,
        value: Mapping[str, Any] | None,
        index: Any,
        ttl: float | None,
        condition: tuple[int | None] | None = None,
    ) -> _Put:
        checked = checked_namespace(namespace, self.namespace)
        stored_key = key_of(key)
        seconds = seconds_of(ttl)
        if index is not None and index is not False and not are_texts(index):
            raise InvalidArgument(f"`index` is `{index!r}`; use a list of paths, False, or None for the default")
        if value is None:
            return _Put(checked, stored_key, None, None, (), condition)
        body = body_of(key, value)
        texts: Sequence[tuple[str, str]] = ()
        if self._index is not None and index is not False:
            texts = self._index.texts(value, index)
        if texts and not is_valid(vectors_of((*self.namespace, *checked))):
            raise InvalidNamespace(f"the namespace `{checked}` leaves no room for one of vectors; use fewer or shorter labels, or index=False")
        return _Put(checked, stored_key, body, seconds, texts, condition)

    def _conditional(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        version: int | None,
        index: Literal[False] | list[str] | None,
        ttl: float | None | NotProvided,
    ) -> _Put:
        if not namespace or namespace[0] == "langgraph":
            raise InvalidNamespace("the namespace is empty or begins with `langgraph`; LangGraph allows neither")
        minutes = self._default_ttl if isinstance(ttl, NotProvided) else ttl
        return self._put(namespace, key, value, index, minutes, (version,))

    def _search(self, op: SearchOp) -> _Search:
        prefix = checked_namespace(op.namespace_prefix, self.namespace)
        limit, offset = _count("limit", op.limit), _count("offset", op.offset)
        query = op.query if op.query and self._index is not None else None
        return _Search(prefix, Filter(op.filter), limit, offset, query, op.refresh_ttl)

    def _paged(
        self,
        namespace_prefix: tuple[str, ...],
        filter: dict[str, Any] | None,
        limit: int,
        after: str | None,
        refresh_ttl: bool | None,
    ) -> _Search:
        prefix = checked_namespace(namespace_prefix, self.namespace)
        refreshes = (self.ttl_config or {}).get("refresh_on_read", True) if refresh_ttl is None else refresh_ttl
        start = None if after is None else _read_cursor(after, prefix)
        return _Search(prefix, Filter(filter), max(_count("limit", limit), 1), 0, None, refreshes, start)

    def _list(self, op: ListNamespacesOp) -> _List:
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
        return _List(prefix, conditions, depth, _count("limit", op.limit), _count("offset", op.offset))

    # Executing.

    def _execute(self, plan: _Plan) -> Steps[list[Result]]:
        yield from self._move_vectors()
        vectors = yield from self._embed(plan.puts.values(), plan.searches.values())
        results: list[Result] = [None] * plan.count
        refreshed: dict[tuple[Namespace, str], Row] = {}
        for attempt in range(CONSISTENT_ATTEMPTS):
            partitions = self._partitions(plan) if plan.reads > 1 and attempt < CONSISTENT_ATTEMPTS - 1 else []
            before = yield from self._versions(partitions)
            refreshed = yield from self._read(plan, vectors, results)
            if before == (yield from self._versions(partitions)):
                break
        for puts in self._by_partition(plan.puts).values():
            yield Commit(self._batch(puts.values(), vectors))
            yield from self._remove_left_vectors(puts.values())
        for place in plan.puts:
            refreshed.pop(place, None)
        yield from self._refresh(refreshed)
        return results

    def _embed(self, puts: Iterable[_Put], searches: Iterable[_Search]) -> Steps[dict[tuple[bool, str], Any]]:
        if self._index is None:
            return {}
        texts = list(dict.fromkeys(text for put in puts for _, text in put.texts))
        queries = list(dict.fromkeys(search.query for search in searches if search.query is not None))
        if not texts and not queries:
            return {}
        vectors: dict[tuple[bool, str], Any] = yield Embed(self._index, texts, queries)
        return vectors

    def _partitions(self, plan: _Plan) -> list[Namespace]:
        """Returns the partitions that the reads of a batch name."""
        read = [(*self.namespace, *get.namespace) for get in plan.gets.values()]
        prefixes = [search.prefix for search in plan.searches.values()] + [listed.prefix for listed in plan.lists.values()]
        above = [(*self.namespace, *prefix) for prefix in prefixes]
        return sorted({root_of(place)[:2] for place in read} | {place[:2] for place in above if len(place) > 1})

    def _versions(self, partitions: Iterable[Namespace]) -> Steps[tuple[tuple[Namespace, int], ...]]:
        versions: list[tuple[Namespace, int]] = []
        for partition in partitions:
            version: int = yield CurrentVersion(partition if partition[-1] else partition[:1])
            versions.append((partition, version))
        return tuple(versions)

    def _by_partition(self, rows: Mapping[tuple[Namespace, str], T]) -> dict[Namespace, dict[tuple[Namespace, str], T]]:
        """Groups what concerns rows by the partition of the rows, in the order of the first of each."""
        groups: dict[Namespace, dict[tuple[Namespace, str], T]] = {}
        for place, about in rows.items():
            groups.setdefault((*self.namespace, *place[0])[:2], {})[place] = about
        return groups

    def _move_vectors(self) -> Steps[None]:
        """Moves the vectors that an earlier version stored in another partition than their items, once."""
        if self._has_moved:
            return
        # Earlier versions had no namespaces with an empty component, and the former one would be a partition of its own.
        if "" not in self.namespace:
            yield from self._move_former_vectors(self._former_vectors())
        self._has_moved = True

    def _former_vectors(self, labels: Namespace = ()) -> Namespace:
        """Returns where earlier versions stored the vectors of a namespace of items."""
        return (*self.namespace[:-1], self.namespace[-1] + _FORMER_VECTORS, *labels)

    def _move_former_vectors(self, former: Namespace) -> Steps[None]:
        stuck: list[Namespace] = []
        after: Namespace | None = None
        while True:
            page = yield Namespaces(former, after)
            for space in map(tuple, page.namespaces):
                labels = self._labels((*self.namespace, *space[len(former) :]))
                if labels is None:
                    continue
                items = (*self.namespace, *labels)
                if is_valid(vectors_of(items)):
                    # Nobody sees the vectors of an item that is removed meanwhile, so there is no fence.
                    yield from move([Move(space, vectors_of(items), wanted=partial(_present, items))], None)
                else:
                    stuck.append(labels)
            after = page.next
            if after is None:
                break
        if stuck:
            yield from self._leave_vectors(former, stuck)

    def _leave_vectors(self, former: Namespace, stuck: Sequence[Namespace]) -> Steps[None]:
        """Removes vectors whose items are gone from namespaces that leave no room for new ones, and takes note of the rest.

        The items are found without these vectors.
        """
        place = left_vectors_of(self.namespace)
        if is_valid(place):
            rows: Sequence[Row | None] = yield GetMany(place, [_LEFT])
            if rows[0] is not None and rows[0].body == _digest(stuck):
                self._left = frozenset(stuck)
                return
        left: list[Namespace] = []
        for labels in stuck:
            if (yield from _remove_orphans((*former, *labels), (*self.namespace, *labels))):
                left.append(labels)
        self._left = frozenset(left)
        if is_valid(place):
            yield Commit(Batch().put(place, _LEFT, _digest(left)) if left else Batch().delete(place, _LEFT))

    def _remove_left_vectors(self, puts: Iterable[_Put]) -> Steps[None]:
        """Removes vectors that could not move once their items change. They lie in another partition."""
        batches: dict[Namespace, Batch] = {}
        for put in puts:
            if put.namespace in self._left:
                vectors = self._former_vectors(put.namespace)
                batches.setdefault(vectors[:2], Batch()).delete(vectors, put.key)
        for batch in batches.values():
            yield Commit(batch)

    def _batch(self, puts: Iterable[_Put], vectors: Mapping[tuple[bool, str], Any]) -> Batch:
        batch = Batch()
        for put in puts:
            items = (*self.namespace, *put.namespace)
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

    def _put_if(self, put: _Put) -> Steps[int]:
        yield from self._move_vectors()
        vectors = yield from self._embed([put], [])
        versions: list[int] = yield Commit(self._batch([put], vectors))
        yield from self._remove_left_vectors([put])
        return versions[0]

    def _current(self, namespace: tuple[str, ...], key: str) -> Steps[tuple[Row | None, dict[str, Any] | None]]:
        checked = checked_namespace(namespace, self.namespace)
        rows: Sequence[Row | None] = yield GetMany((*self.namespace, *checked), [key_of(key)])
        return (None, None) if rows[0] is None else (rows[0], item_of(checked, rows[0]).value)

    def _read(
        self, plan: _Plan, vectors: Mapping[tuple[bool, str], Any], results: list[Result]
    ) -> Steps[dict[tuple[Namespace, str], Row]]:
        """Reads what the operations ask for. Returns the rows whose life the reads extend."""
        refreshed: dict[tuple[Namespace, str], Row] = {}
        spaces: dict[Namespace, list[tuple[int, _Get]]] = {}
        for place, get in plan.gets.items():
            spaces.setdefault(get.namespace, []).append((place, get))
        for namespace, gets in spaces.items():
            rows: Sequence[Row | None] = yield GetMany((*self.namespace, *namespace), [get.key for _, get in gets])
            for (place, get), row in zip(gets, rows, strict=True):
                results[place] = None if row is None else item_of(namespace, row)
                if row is not None and get.refreshes:
                    refreshed[namespace, get.key] = row
        for place, search in plan.searches.items():
            found = yield from self._find(search, vectors)
            results[place] = cast("Result", [found_item_of(at.namespace, at.row, at.value, at.score) for at in found])
            if search.refreshes:
                refreshed.update({(at.namespace, at.row.key): at.row for at in found})
        for place, listed in plan.lists.items():
            namespaces, _ = yield from self._namespaces(listed)
            results[place] = namespaces
        return refreshed

    def _refresh(self, rows: Mapping[tuple[Namespace, str], Row]) -> Steps[None]:
        """Extends the life of items just read. A failure is only logged, because what was read is correct."""
        now = utc_now()
        young = {place: row for place, row in rows.items() if is_worth_refreshing(row, now)}
        for group in self._by_partition(young).values():
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

    def _touches(self, rows: Mapping[tuple[Namespace, str], Row]) -> Batch:
        batch = Batch()
        for (namespace, key), row in rows.items():
            items = (*self.namespace, *namespace)
            beside = vectors_of(items)
            batch.require(items, key, row.version).touch(items, key, ttl_of(row))
            if is_valid(beside):
                batch.touch(beside, key, ttl_of(row))
        return batch

    # Searching.

    def _find(self, search: _Search, vectors: Mapping[tuple[bool, str], Any]) -> Steps[list[_Found]]:
        if search.limit == 0:
            return []
        if search.query is not None and self._index is not None and self._tables is not None:
            return (yield from self._find_nearest(search, vectors[True, search.query], self._index, self._tables))
        if self.order == "updated_at":
            return (yield from self._find_latest(search))
        return (yield from self._find_in_order(search, search.offset, search.limit))

    def _labels(self, space: Sequence[str]) -> Namespace | None:
        """Returns the namespace of items in a namespace of the store; `None` where no item can be."""
        root = self.namespace
        # Beneath a tenant are also its own namespaces, with an empty label, and the program's rows.
        if is_reserved(space) or "" in space[len(root) :]:
            return None
        return tuple(space[len(root) :])

    def _spaces(self, prefix: Namespace) -> Steps[list[Namespace]]:
        """Lists the namespaces with items at and below a prefix."""
        found: list[Namespace] = []
        start: Namespace | None = None
        while True:
            page = yield Namespaces((*self.namespace, *prefix), start)
            found.extend(labels for space in page.namespaces if (labels := self._labels(space)) is not None)
            start = page.next
            if start is None:
                return found

    def _vector_spaces(self, prefix: Namespace) -> Steps[list[Namespace]]:
        """Lists the namespaces of items at and below a prefix that have vectors."""
        above = (*self.namespace, *prefix)
        found: list[Namespace] = []
        if not is_valid(vectors_of(above)):
            return found
        start: Namespace | None = None
        while True:
            # One component may be above several partitions, each with vectors.
            page = yield Namespaces(above if len(above) == 1 else vectors_of(above), start)
            for space in map(tuple, page.namespaces):
                items = items_of(space)
                if items is not None and (labels := self._labels(items)) is not None:
                    found.append(labels)
            start = page.next
            if start is None:
                return found

    def _find_in_order(self, search: _Search, skip: int, count: int) -> Steps[list[_Found]]:
        """Skips the first items by namespace and key, and finds those that follow."""
        found: list[_Found] = []
        space, after = search.after or (None, None)
        start: Namespace | None = None
        while True:
            spaces: list[Namespace] = []
            if space is not None:
                # Continue within the namespace of the cursor, and then after it.
                spaces.append(space)
                start, space = (*self.namespace, *space), None
            else:
                page = yield Namespaces((*self.namespace, *search.prefix), start, limit=NAMESPACES_AHEAD)
                spaces.extend(labels for space in page.namespaces if (labels := self._labels(space)) is not None)
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

    def _rows(self, space: Namespace, filter: Filter, after: str | None, wanted: int, *, with_values: bool) -> Scan | Search:
        """Asks for a page of rows: those of a namespace, or those that may match."""
        place, limit = (*self.namespace, *space), min(PAGE_ROWS, wanted)
        if filter.native is not None:
            return Search(place, filter.native, after, limit)
        return Scan(place, "", after, limit if filter.is_empty else PAGE_ROWS, with_values)

    def _find_latest(self, search: _Search) -> Steps[list[_Found]]:
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
        return (yield from self._with_values([(space, row.key) for space, row in some], Filter(None)))

    def _with_values(self, places: Sequence[tuple[Namespace, str]], filter: Filter) -> Steps[list[_Found]]:
        """Reads items, in the order of their places. Those that are gone or do not match are left out."""
        spaces: dict[Namespace, list[str]] = {}
        for space, key in places:
            spaces.setdefault(space, []).append(key)
        read: dict[tuple[Namespace, str], _Found] = {}
        for space, wanted in spaces.items():
            for start in range(0, len(wanted), PAGE_ROWS):
                rows: Sequence[Row | None] = yield GetMany((*self.namespace, *space), wanted[start : start + PAGE_ROWS])
                for at in _matching(space, [row for row in rows if row is not None], filter):
                    read[space, at.row.key] = at
        return [read[place] for place in places if place in read]

    def _find_nearest(self, search: _Search, query: Any, index: Index, tables: VectorTables) -> Steps[list[_Found]]:
        """Finds the items whose vectors are nearest, and then items without vectors."""
        spaces = yield from self._load_vectors(search.prefix, index, tables)
        wanted = search.offset + search.limit
        count: int | None = wanted if search.filter.is_empty else 4 * wanted
        while True:
            scored: list[tuple[float, Namespace, str]] = yield Work(partial(_nearest, tables, spaces, query, count), True)
            found, seen = yield from self._verified(scored, search, tables, wanted)
            if len(found) >= wanted or count is None:
                break
            # Expired items, and those that do not match, took the places of others.
            count = None if count > 16 * wanted else 4 * count
        if len(found) < wanted:
            rest = yield from self._find_in_order(search, 0, wanted - len(found) + len(seen))
            found.extend(at for at in rest if (at.namespace, at.row.key) not in seen)
        return found[search.offset : wanted]

    def _verified(
        self, scored: Sequence[tuple[float, Namespace, str]], search: _Search, tables: VectorTables, wanted: int
    ) -> Steps[tuple[list[_Found], set[tuple[Namespace, str]]]]:
        """Reads the items of scored vectors, until enough match."""
        found: list[_Found] = []
        seen: set[tuple[Namespace, str]] = set()
        for start in range(0, len(scored), max(wanted, 32)):
            some = scored[start : start + max(wanted, 32)]
            read = yield from self._with_values([(space, key) for _, space, key in some], search.filter)
            scores = {(space, key): score for score, space, key in some}
            for at in read:
                place = at.namespace, at.row.key
                # Items that were put by other means since have no vectors.
                item = tables.table(at.namespace).items.get(at.row.key)
                if item is not None and item.mark == mark_of(at.row.body):
                    found.append(_Found(at.namespace, at.row, at.value, scores[place]))
                    seen.add(place)
            if len(found) >= wanted:
                break
        return found[:wanted], seen

    def _load_vectors(self, prefix: Namespace, index: Index, tables: VectorTables) -> Steps[list[Namespace]]:
        """Brings the tables of the namespaces at and below a prefix up to date."""
        above = (*self.namespace, *prefix)
        listed = (yield from self._vector_spaces(prefix)) if len(above) == 1 else None
        within = [(*self.namespace, *space) for space in listed] if listed is not None else [above]
        versions = yield from self._versions(sorted({root_of(place)[:2] for place in within}))
        loaded = tables.loaded(prefix, versions)
        # A namespace may have been added after the list was read.
        if loaded is not None and (listed is None or loaded == listed):
            return loaded
        spaces = (yield from self._vector_spaces(prefix)) if listed is None else listed
        for space in spaces:
            table = tables.table(space)
            beside = vectors_of((*self.namespace, *space))
            present: dict[str, int] = {}
            cursor: str | None = None
            while True:
                page = yield Scan(beside, "", cursor, limit=PAGE_ROWS, with_values=False)
                present.update({row.key: row.version for row in page.rows})
                cursor = page.next
                if cursor is None:
                    break
            with tables.lock:
                changed = [key for key, version in present.items() if _table_version(table, key) != version]
                for key in [key for key in table.items if key not in present]:
                    table.remove(key)
            for start in range(0, len(changed), PAGE_ROWS):
                rows: Sequence[Row | None] = yield GetMany(beside, changed[start : start + PAGE_ROWS])
                with tables.lock:
                    for row in rows:
                        if row is not None:
                            mark, vectors = read_vectors(row, index.dims)
                            table.put(row.key, Vectors(row.version, mark, vectors))
        tables.set_loaded(prefix, versions, spaces)
        tables.forget(spaces)
        return spaces

    # Pages.

    def _search_page(self, search: _Search) -> Steps[SearchPage]:
        yield from self._move_vectors()
        found = yield from self._find_in_order(search, 0, search.limit + 1)
        has_more = len(found) > search.limit
        found = found[: search.limit]
        if search.refreshes:
            yield from self._refresh({(at.namespace, at.row.key): at.row for at in found})
        items = [found_item_of(at.namespace, at.row, at.value, None) for at in found]
        cursor = _cursor((found[-1].namespace, found[-1].row.key)) if has_more else None
        return SearchPage(items, cursor)

    def _namespaces_page(self, prefix: tuple[str, ...], limit: int, after: str | None) -> Steps[NamespacesPage]:
        checked = checked_namespace(prefix, self.namespace)
        start = None if after is None else _read_cursor(after, checked)[0]
        listed = _List(checked, [("prefix", checked)], None, max(_count("limit", limit), 1), 0, start)
        found, has_more = yield from self._namespaces(listed)
        return NamespacesPage(found, _cursor((found[-1], "")) if has_more and found else None)

    def _namespaces(self, listed: _List) -> Steps[tuple[list[tuple[str, ...]], bool]]:
        """Lists namespaces in order. Returns whether more may follow."""
        found: list[tuple[str, ...]] = []
        passed = 0
        last: tuple[str, ...] | None = None
        start: Namespace | None = None if listed.after is None else (*self.namespace, *listed.after)
        if listed.limit == 0:
            return [], True
        while True:
            page = yield Namespaces((*self.namespace, *listed.prefix), start)
            for space in page.namespaces:
                namespace = self._labels(space)
                if namespace is None or not all(_does_match(kind, path, namespace) for kind, path in listed.conditions):
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


def _digest(spaces: Sequence[Namespace]) -> bytes:
    return sha256(json.dumps(spaces).encode("utf-8")).digest()


def _remove_orphans(vectors: Namespace, items: Namespace) -> Steps[bool]:
    """Removes vectors whose items do not exist. Returns whether others are left."""
    is_left = False
    after: str | None = None
    while True:
        page = yield Scan(vectors, "", after, limit=PAGE_ROWS, with_values=False)
        present: set[str] = yield from _present(items, page.rows)
        batch = Batch()
        for row in page.rows:
            if row.key not in present:
                batch.delete(vectors, row.key)
        if len(batch) > 0:
            yield Commit(batch)
        is_left = is_left or bool(present)
        after = page.next
        if after is None:
            return is_left


def _present(items: Namespace, vectors: Sequence[Row]) -> Steps[set[str]]:
    """Returns the keys of vectors whose items exist."""
    keys = [row.key for row in vectors]
    rows: Sequence[Row | None] = yield GetMany(items, keys, with_values=False)
    return {row.key for row in rows if row is not None}


def _matching(space: Namespace, rows: Iterable[Row], filter: Filter) -> list[_Found]:
    found: list[_Found] = []
    for row in rows:
        value = value_of(row)
        if value is not None and filter.matches(value):
            found.append(_Found(space, row, value))
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


def _table_version(table: Any, key: str) -> int | None:
    item: Vectors | None = table.items.get(key)
    return None if item is None else item.version


def _does_match(kind: str, path: Sequence[str], namespace: Namespace) -> bool:
    if len(path) > len(namespace):
        return False
    labels = namespace[: len(path)] if kind == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, labels, strict=True))


def _root(namespace: Any) -> Namespace:
    # An empty second component of several more names the partition.
    is_partition = are_texts(namespace) and len(namespace) > 2 and namespace[1] == ""
    if not are_texts(namespace) or not namespace or not all((*namespace[:1], *namespace[2:]) if is_partition else namespace):
        raise InvalidArgument("the namespace of a store must be a sequence of nonempty texts, such as ('acme', 'ada')")
    for reserved in (_FORMER_VECTORS, "~files"):
        if namespace[-1].endswith(reserved):
            raise InvalidArgument(f"the namespace of a store ends with `{reserved}`, where other rows lie; choose another")
    return tuple(namespace)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidArgument(f"`{name}` is `{value!r}`; use a whole number from 0")
    return value


def _version(row: Row | None) -> int | None:
    return None if row is None else row.version


def _ttl_minutes(row: Row | None, default: float | None) -> float | None:
    if row is None:
        return default
    seconds = ttl_of(row)
    return None if seconds is None else seconds / 60


def _cursor(place: tuple[Namespace, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps([list(place[0]), place[1]]).encode("utf-8")).decode("ascii")


def _read_cursor(cursor: str, prefix: Namespace) -> tuple[Namespace, str]:
    try:
        labels, key = json.loads(base64.urlsafe_b64decode(cursor.encode("ascii")))
        place = tuple(str(label) for label in labels), str(key)
    except (ValueError, TypeError):
        raise InvalidArgument("the cursor cannot be read; pass the one of the last page") from None
    if place[0][: len(prefix)] != prefix:
        raise InvalidArgument("the cursor belongs to another search; pass the one of this search's last page")
    return place
