"""LangGraph's long-term memory on any treehold store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from langchain_core.embeddings import Embeddings
from langgraph.store.base import NOT_PROVIDED, BaseStore, NotProvided, Op, Result, TTLConfig
from typing_extensions import Self

from treehold import Conflict, InvalidArgument, Row, Store
from treehold._io import Namespace, arun, run

from ._execution import Executor
from ._former_vectors import FORMER_VECTORS
from ._items import TreeholdSearchItem, seconds_of, ttl_of
from ._plan import ItemPut, ItemSearch, Planner
from ._sweeper import Sweeper
from ._types import are_texts
from ._urls import store_url
from ._vectors import Index, TreeholdIndexConfig, VectorTables

Order: TypeAlias = Literal["key", "updated_at"]

UPDATE_ATTEMPTS = 64
"""How often an update starts again when somebody changes the item in between."""

SWEPT_ROWS = 1000
"""How many expired rows are removed at once."""


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
        "_executor",
        "_index",
        "_owns_store",
        "_planner",
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
        self._planner = Planner(self.namespace, self._index)
        self._executor = Executor(self.namespace, self._index, self._tables, is_latest_first=order == "updated_at")
        self._owns_store = False
        self._sweeper = Sweeper()

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
        return run(self._executor.execute(self._planner.plan(ops)), self.store)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Executes operations, as `batch`."""
        return await arun(self._executor.execute(self._planner.plan(ops)), self.store)

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
        return run(self._executor.put(self._conditional(namespace, key, value, version, index, ttl)), self.store)

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
        return await arun(self._executor.put(self._conditional(namespace, key, value, version, index, ttl)), self.store)

    def update(
        self, namespace: tuple[str, ...], key: str, change: Callable[[dict[str, Any] | None], Mapping[str, Any]]
    ) -> int:
        """Replaces an item by the result of `change`, which receives its value or `None`. Returns its version.

        If somebody changes the item meanwhile, `change` is called again with the new value, so no update is lost. The
        item keeps its time to live.
        """
        for attempt in range(UPDATE_ATTEMPTS):
            row, value = run(self._executor.current(self._planner.place(namespace, key)), self.store)
            put = self._replacement(namespace, key, change(value), row)
            try:
                return run(self._executor.put(put), self.store)
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
            row, value = await arun(self._executor.current(self._planner.place(namespace, key)), self.store)
            changed = change(value)
            if isinstance(changed, Awaitable):
                changed = await changed
            put = self._replacement(namespace, key, changed, row)
            try:
                return await arun(self._executor.put(put), self.store)
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
        search = self._paged(namespace_prefix, filter, limit, after, refresh_ttl)
        return SearchPage(*run(self._executor.search_page(search), self.store))

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
        search = self._paged(namespace_prefix, filter, limit, after, refresh_ttl)
        return SearchPage(*await arun(self._executor.search_page(search), self.store))

    def namespaces_page(
        self, prefix: tuple[str, ...] = (), *, limit: int = 100, after: str | None = None
    ) -> NamespacesPage:
        """Returns a page of the namespaces that hold items and start with `prefix`, and the cursor of the next."""
        listed = self._planner.namespaces_page(prefix, limit, after)
        return NamespacesPage(*run(self._executor.namespaces_page(listed), self.store))

    async def anamespaces_page(
        self, prefix: tuple[str, ...] = (), *, limit: int = 100, after: str | None = None
    ) -> NamespacesPage:
        """Returns a page of namespaces, as `namespaces_page`."""
        listed = self._planner.namespaces_page(prefix, limit, after)
        return NamespacesPage(*await arun(self._executor.namespaces_page(listed), self.store))

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
        return self._sweeper.start(self.sweep_ttl, seconds_of(minutes))

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stops the sweeper. Returns whether it has ended within `timeout` seconds."""
        return self._sweeper.stop(timeout)

    @property
    def _default_ttl(self) -> float | None:
        return (self.ttl_config or {}).get("default_ttl")

    def _conditional(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        version: int | None,
        index: Literal[False] | list[str] | None,
        ttl: float | None | NotProvided,
    ) -> ItemPut:
        minutes = self._default_ttl if isinstance(ttl, NotProvided) else ttl
        return self._planner.conditional(namespace, key, value, version, index, minutes)

    def _replacement(self, namespace: tuple[str, ...], key: str, value: Mapping[str, Any], row: Row | None) -> ItemPut:
        """Checks a put in place of what was read. The item keeps its time to live."""
        if row is None:
            return self._planner.conditional(namespace, key, value, None, None, self._default_ttl)
        seconds = ttl_of(row)
        minutes = None if seconds is None else seconds / 60
        return self._planner.conditional(namespace, key, value, row.version, None, minutes)

    def _paged(
        self,
        namespace_prefix: tuple[str, ...],
        filter: dict[str, Any] | None,
        limit: int,
        after: str | None,
        refresh_ttl: bool | None,
    ) -> ItemSearch:
        refreshes = (self.ttl_config or {}).get("refresh_on_read", True) if refresh_ttl is None else refresh_ttl
        return self._planner.search_page(namespace_prefix, filter, limit, after, refreshes=refreshes)


def _root(namespace: Any) -> Namespace:
    # An empty second component of several more names the partition.
    is_partition = are_texts(namespace) and len(namespace) > 2 and namespace[1] == ""
    if not are_texts(namespace) or not namespace or not all((*namespace[:1], *namespace[2:]) if is_partition else namespace):
        raise InvalidArgument("the namespace of a store must be a sequence of nonempty texts, such as ('acme', 'ada')")
    for reserved in (FORMER_VECTORS, "~files"):
        if namespace[-1].endswith(reserved):
            raise InvalidArgument(f"the namespace of a store ends with `{reserved}`, where other rows lie; choose another")
    return tuple(namespace)
