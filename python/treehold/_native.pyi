"""The native part of treehold.

Every method that reaches a tree or a store blocks the calling thread without the interpreter's lock, and Ctrl-C ends it. Each has an
asynchronous twin of the same name with an `a` in front, which returns a coroutine: `await tree.aread("/notes/a.md")`. Cancelling the
coroutine cancels the work; a change that has begun leaves the old content or the new, never half.

Errors are subclasses of `treehold.Error`, one for each code. Versions are opaque numbers: compare them for equality only.
Times are `datetime` objects in UTC. A path begins with `/`.
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from os import PathLike
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar, final, type_check_only

from typing_extensions import Buffer, NotRequired, Self, Unpack

from treehold.errors import Error
from treehold.traces._runner import TraceRunner
from treehold.traces._values import (
    Added,
    EventsPage,
    ExportReport,
    Goal,
    GoalTree,
    GoalUpdate,
    ImportReport,
    Message,
    MessagesPage,
    MessageUpdate,
    NewGoal,
    NewMessage,
    NewTrace,
    RunResult,
    Trace,
    TraceEvent,
    TraceMode,
    TracePage,
    TraceStatus,
    TraceUpdate,
)

_T = TypeVar("_T")
_Async: TypeAlias = Coroutine[Any, Any, _T]

_Path: TypeAlias = str | PathLike[str]
"""A path of a tree: a text or a path object. It begins with `/`."""

_HostPath: TypeAlias = str | PathLike[str]
"""A path of this machine."""

_Content: TypeAlias = str | Buffer
"""The content of a file or a row. Text is stored as UTF-8; `bytes` and `str` are not copied."""

_NamespaceLike: TypeAlias = str | Sequence[str]
"""A namespace: its components, or their text with slashes, such as `acme/ada/memories`.

The first two components are its partition. An empty second one says that it is the first alone: `("acme", "", "policies")` is
`acme//policies`.
"""

_Seconds: TypeAlias = float | timedelta
"""A duration in seconds."""

_Json: TypeAlias = Any
"""A value that JSON can hold."""

__all__ = [
    "AgentTool",
    "Backend",
    "Batch",
    "CachedRemoteStore",
    "Capabilities",
    "Change",
    "Changed",
    "Checkpoint",
    "CompositeBackend",
    "DatabaseTraceStore",
    "Entry",
    "Failure",
    "FeedEvent",
    "FeedPage",
    "FeedTail",
    "FileRead",
    "FilesystemBackend",
    "GrepFile",
    "GrepLine",
    "GrepResult",
    "HybridTraceStore",
    "JsonFilter",
    "JsonItem",
    "JsonPage",
    "JsonRows",
    "JsonStore",
    "Listing",
    "OverlayBackend",
    "Page",
    "Peers",
    "RemoteTraceStore",
    "Row",
    "Rule",
    "RunContext",
    "SearchHit",
    "SearchResult",
    "Session",
    "StateBackend",
    "Store",
    "StoreBackend",
    "Subtree",
    "ToolResult",
    "TraceRuns",
    "TraceStore",
    "TraceWatch",
    "Tree",
    "Watch",
    "Window",
    "Workspace",
    "__version__",
    "audit",
    "edit_text",
    "limit",
    "main",
    "parse_trace_id",
    "permissions",
    "quota",
    "read_only",
    "retry",
    "timeout",
    "tools",
]

__version__: Final[str]

# Rows

@final
class Row:
    """A row of a store."""

    @property
    def key(self) -> str:
        """The key."""
    @property
    def meta(self) -> bytes:
        """Small metadata, which every read returns."""
    @property
    def body(self) -> bytes:
        """The body; empty if the read did not ask for it."""
    @property
    def version(self) -> int:
        """The version of the put that wrote the row."""
    @property
    def created_at(self) -> datetime:
        """When the key first appeared."""
    @property
    def updated_at(self) -> datetime:
        """When the row was last put."""
    @property
    def expires_at(self) -> datetime | None:
        """When the row expires."""
    @property
    def created_at_us(self) -> int:
        """`created_at` as microseconds since 1970."""
    @property
    def updated_at_us(self) -> int:
        """`updated_at` as microseconds since 1970."""
    @property
    def expires_at_us(self) -> int | None:
        """`expires_at` as microseconds since 1970."""

@final
class Page:
    """A page of the rows of one namespace, in key order."""

    @property
    def rows(self) -> list[Row]:
        """The rows."""
    @property
    def groups(self) -> list[str]:
        """The groups of a scan with a delimiter: what their keys share, up to and including the delimiter."""
    @property
    def next(self) -> str | None:
        """The `after` of the next page; `None` at the end."""
    def __len__(self) -> int: ...

@final
class Batch:
    """Conditions and writes of a store that apply all or not at all, in the order in which they are added.

    Each method returns the batch, so calls can be chained.
    """

    def __new__(cls) -> Self: ...
    def require(self, namespace: _NamespaceLike, key: str, version: int | bool | None) -> Self:
        """Requires a version of a row, that it exists (`True`), or that it is absent (`None`)."""
    def require_none_beneath(self, namespace: _NamespaceLike, prefix: str) -> Self:
        """Requires that no row has a key that starts with `prefix` and is longer."""
    def require_none_beneath_since(self, namespace: _NamespaceLike, prefix: str, version: int) -> Self:
        """Requires that no row beneath `prefix` is newer than a version that `Store.current_version` returned."""
    def put(
        self,
        namespace: _NamespaceLike,
        key: str,
        body: _Content,
        *,
        meta: _Content | None = None,
        ttl_seconds: _Seconds | None = None,
        created_at: datetime | None = None,
    ) -> Self:
        """Creates a row, or replaces it and keeps its creation time unless `created_at` is given."""
    def append(
        self,
        namespace: _NamespaceLike,
        body: _Content,
        *,
        meta: _Content | None = None,
        ttl_seconds: _Seconds | None = None,
    ) -> Self:
        """Appends a row to a log. Its key is its version, so the rows are in the order of their commits."""
    def touch(self, namespace: _NamespaceLike, key: str, ttl_seconds: _Seconds | None = None) -> Self:
        """Changes only when a row expires. `None` means never."""
    def delete(self, namespace: _NamespaceLike, key: str) -> Self:
        """Removes a row, if it exists."""
    def delete_prefix(self, namespace: _NamespaceLike, prefix: str = ...) -> Self:
        """Removes every row whose key starts with `prefix`."""
    def extend(self, other: Batch) -> Self:
        """Adds the conditions and writes of another batch."""
    def __len__(self) -> int:
        """The number of writes."""

@final
class Watch:
    """A watch of one namespace."""

    def changed(self, timeout_seconds: _Seconds | None = None) -> bool:
        """Waits for a commit that a read started before might have missed. Returns `False` if the time is up."""

    def achanged(self, timeout_seconds: _Seconds | None = None) -> _Async[bool]:
        """Does what `changed` does, on the running event loop."""

    def __aiter__(self) -> Self: ...
    def __anext__(self) -> _Async[bool]: ...

@final
class JsonFilter:
    """Conditions on JSON values, as `JsonStore.search` takes them.

    `{"status": "open", "size": {"$gte": 10}}`: a field equals a value, or operators such as `$eq`, `$ne`, `$gt`, `$gte`, `$lt` and
    `$lte` hold.
    """

    def __new__(cls, conditions: Mapping[str, _Json]) -> Self: ...
    def matches(self, body: _Content) -> bool:
        """Returns whether a body is JSON that meets the conditions."""

@final
class JsonItem:
    """A JSON value of a store."""

    @property
    def namespace(self) -> tuple[str, ...]:
        """The namespace."""
    @property
    def key(self) -> str:
        """The key."""
    @property
    def value(self) -> _Json:
        """The value."""
    @property
    def version(self) -> int:
        """The version of the put that wrote it."""
    @property
    def created_at(self) -> datetime:
        """When the key first appeared."""
    @property
    def updated_at(self) -> datetime:
        """When it was last put."""
    @property
    def expires_at(self) -> datetime | None:
        """When it expires. If the read extended its life, the expiry before."""

@final
class JsonPage:
    """A page of items, ordered by namespace and key."""

    @property
    def items(self) -> list[JsonItem]:
        """The items."""
    @property
    def next(self) -> tuple[tuple[str, ...], str] | None:
        """The `after` of the next page: a namespace and a key; `None` at the end."""
    def __len__(self) -> int: ...

@final
class JsonRows:
    """A page of rows that hold JSON, not decoded, ordered by namespace and key."""

    @property
    def rows(self) -> list[tuple[tuple[str, ...], Row]]:
        """The rows, each with its namespace."""
    @property
    def next(self) -> tuple[tuple[str, ...], str] | None:
        """The `after` of the next page: a namespace and a key; `None` at the end."""
    def __len__(self) -> int: ...

@final
class JsonStore:
    """JSON values in a store, by namespace and key."""

    def get(self, namespace: _NamespaceLike, key: str) -> JsonItem | None:
        """Returns an item. A read restarts its time to live, unless the view was made with `refresh_on_read=False`."""

    def aget(self, namespace: _NamespaceLike, key: str) -> _Async[JsonItem | None]:
        """Does what `get` does, on the running event loop."""

    def put(
        self,
        namespace: _NamespaceLike,
        key: str,
        value: _Json,
        *,
        ttl_seconds: _Seconds | None = None,
        if_version: int | bool | None = ...,
    ) -> int:
        """Creates or replaces an item and returns its version.

        `if_version` is a version that the item must have, or `None` to create only.
        `ttl_seconds` replaces the time to live of the view for this item.
        """

    def aput(
        self,
        namespace: _NamespaceLike,
        key: str,
        value: _Json,
        *,
        ttl_seconds: _Seconds | None = None,
        if_version: int | bool | None = ...,
    ) -> _Async[int]:
        """Does what `put` does, on the running event loop."""

    def delete(self, namespace: _NamespaceLike, key: str, *, if_version: int | bool | None = ...) -> None:
        """Removes an item, if it exists."""

    def adelete(self, namespace: _NamespaceLike, key: str, *, if_version: int | bool | None = ...) -> _Async[None]:
        """Does what `delete` does, on the running event loop."""

    def search(
        self,
        namespace: _NamespaceLike,
        *,
        filter: Mapping[str, _Json] | JsonFilter | None = None,
        prefix: str = ...,
        beneath: bool = False,
        after: tuple[_NamespaceLike, str] | None = None,
        limit: int = 100,
        rows_max: int = 10_000,
    ) -> JsonPage:
        """Returns the items of a namespace, and with `beneath` of those below it, that meet a filter.

        A page ends after `limit` items, or after `rows_max` rows were examined.
        """

    def asearch(
        self,
        namespace: _NamespaceLike,
        *,
        filter: Mapping[str, _Json] | JsonFilter | None = None,
        prefix: str = ...,
        beneath: bool = False,
        after: tuple[_NamespaceLike, str] | None = None,
        limit: int = 100,
        rows_max: int = 10_000,
    ) -> _Async[JsonPage]:
        """Does what `search` does, on the running event loop."""

    def search_rows(
        self,
        namespace: _NamespaceLike,
        *,
        filter: Mapping[str, _Json] | JsonFilter | None = None,
        prefix: str = ...,
        beneath: bool = False,
        after: tuple[_NamespaceLike, str] | None = None,
        limit: int = 100,
        rows_max: int = 10_000,
    ) -> JsonRows:
        """Returns what `search` finds as rows. Their bodies are JSON. Reading them restarts no time to live."""

    def asearch_rows(
        self,
        namespace: _NamespaceLike,
        *,
        filter: Mapping[str, _Json] | JsonFilter | None = None,
        prefix: str = ...,
        beneath: bool = False,
        after: tuple[_NamespaceLike, str] | None = None,
        limit: int = 100,
        rows_max: int = 10_000,
    ) -> _Async[JsonRows]:
        """Does what `search_rows` does, on the running event loop."""

    def namespaces(
        self,
        *,
        prefix: Sequence[str] = ...,
        suffix: Sequence[str] = ...,
        depth_max: int | None = None,
        after: _NamespaceLike | None = None,
        limit: int = 100,
    ) -> tuple[list[tuple[str, ...]], tuple[str, ...] | None]:
        """Lists namespaces by their first and last components; `*` stands for any component. Returns them and the `after` of the next page."""

    def anamespaces(
        self,
        *,
        prefix: Sequence[str] = ...,
        suffix: Sequence[str] = ...,
        depth_max: int | None = None,
        after: _NamespaceLike | None = None,
        limit: int = 100,
    ) -> _Async[tuple[list[tuple[str, ...]], tuple[str, ...] | None]]:
        """Does what `namespaces` does, on the running event loop."""

class Store:
    """Namespaced rows with conditional, atomic batches, in an engine that its URL names.

    `memory:`, `sqlite:agent.db`, `sled:directory`, `postgres://…`, `mysql://…`, `redis://…`.
    """

    @staticmethod
    def open(url: str, *, directory: _HostPath | None = None, create: bool = True) -> Store:
        """Opens a store. Relative paths are relative to `directory`, by default the current one."""

    @staticmethod
    def aopen(url: str, *, directory: _HostPath | None = None, create: bool = True) -> _Async[Store]:
        """Does what `open` does, on the running event loop."""

    @property
    def name(self) -> str:
        """The URL without secrets."""
    @property
    def is_shared(self) -> bool:
        """Whether several processes may use the same data."""
    @property
    def durability(self) -> str:
        """What an acknowledged commit survives."""

    def get(self, namespace: _NamespaceLike, key: str) -> Row | None:
        """Returns a row with its body."""

    def aget(self, namespace: _NamespaceLike, key: str) -> _Async[Row | None]:
        """Does what `get` does, on the running event loop."""

    def get_many(self, namespace: _NamespaceLike, keys: Sequence[str], *, with_values: bool = True) -> list[Row | None]:
        """Returns rows in the order of their keys, all as of one moment; `None` for each that is absent."""

    def aget_many(
        self,
        namespace: _NamespaceLike,
        keys: Sequence[str],
        *,
        with_values: bool = True,
    ) -> _Async[list[Row | None]]:
        """Does what `get_many` does, on the running event loop."""

    def scan(
        self,
        namespace: _NamespaceLike,
        *,
        prefix: str = ...,
        after: str | None = None,
        limit: int = 1000,
        with_values: bool = True,
        delimiter: str | None = None,
        bytes_max: int | None = None,
    ) -> Page:
        """Returns a page of the rows of one namespace in key order, as of one moment.

        With a `delimiter`, keys that contain it after the prefix are grouped, and each group is named once.
        """

    def ascan(
        self,
        namespace: _NamespaceLike,
        *,
        prefix: str = ...,
        after: str | None = None,
        limit: int = 1000,
        with_values: bool = True,
        delimiter: str | None = None,
        bytes_max: int | None = None,
    ) -> _Async[Page]:
        """Does what `scan` does, on the running event loop."""

    def namespaces(
        self,
        *,
        prefix: _NamespaceLike | None = None,
        after: _NamespaceLike | None = None,
        limit: int = 1000,
    ) -> tuple[list[tuple[str, ...]], bool]:
        """Returns the namespaces that hold a row, in order, and whether more follow. With `prefix`, that namespace and those below."""

    def anamespaces(
        self,
        *,
        prefix: _NamespaceLike | None = None,
        after: _NamespaceLike | None = None,
        limit: int = 1000,
    ) -> _Async[tuple[list[tuple[str, ...]], bool]]:
        """Does what `namespaces` does, on the running event loop."""

    def commit(self, batch: Batch) -> list[int]:
        """Applies a batch, all or nothing. Returns the versions of its puts and appends.

        A batch lies in one partition, which the first two components of its namespaces name. Raises `Unsupported` for one over two, and
        `Conflict` if a condition does not hold; `change` is its index and `current_version` what was found instead.
        """

    def acommit(self, batch: Batch) -> _Async[list[int]]:
        """Does what `commit` does, on the running event loop."""

    def current_version(self, namespace: _NamespaceLike) -> int:
        """Returns the version of the newest commit in the partition of a namespace.

        A store with one counter for all partitions returns that, so it may also grow with changes elsewhere.
        """

    def acurrent_version(self, namespace: _NamespaceLike) -> _Async[int]:
        """Does what `current_version` does, on the running event loop."""

    def sweep(self, limit: int = 1000) -> int:
        """Removes up to `limit` expired rows and returns their number."""

    def asweep(self, limit: int = 1000) -> _Async[int]:
        """Does what `sweep` does, on the running event loop."""

    def stats(self) -> dict[str, _Json]:
        """Counts the namespaces, rows and bytes."""

    def astats(self) -> _Async[dict[str, _Json]]:
        """Does what `stats` does, on the running event loop."""

    def describe(self) -> dict[str, _Json]:
        """Describes the engine and its settings."""

    def adescribe(self) -> _Async[dict[str, _Json]]:
        """Does what `describe` does, on the running event loop."""

    def watch(self, namespace: _NamespaceLike) -> Watch:
        """Watches a namespace."""

    def awatch(self, namespace: _NamespaceLike) -> _Async[Watch]:
        """Does what `watch` does, on the running event loop."""

    def json(self, *, ttl_seconds: _Seconds | None = None, refresh_on_read: bool = True) -> JsonStore:
        """Returns a view of the store as JSON values that live for `ttl_seconds` after their last put or read."""
    def close(self) -> None:
        """Closes the handle. Trees and workspaces on the store keep it open until they are gone."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def __aenter__(self) -> _Async[Self]: ...
    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> _Async[None]: ...

# Results of trees

_EntryKind: TypeAlias = Literal["file", "directory", "symlink", "other"]

@final
class Entry:
    """A file, a directory, or a link of this machine."""

    def __new__(
        cls,
        path: _Path,
        *,
        kind: _EntryKind | None = None,
        size_bytes: int = 0,
        version: int | None = None,
        created_at: datetime | None = None,
        modified_at: datetime | None = None,
        leads_to: _Path | None = None,
    ) -> Self: ...
    @property
    def path(self) -> str:
        """The full path."""
    @property
    def name(self) -> str:
        """The last segment of the path."""
    @property
    def kind(self) -> _EntryKind:
        """What it is."""
    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
    @property
    def size_bytes(self) -> int:
        """The size; 0 for directories."""
    @property
    def version(self) -> int | None:
        """The version; `None` for directories."""
    @property
    def created_at(self) -> datetime | None:
        """When the path first appeared, if the tier knows."""
    @property
    def modified_at(self) -> datetime | None:
        """When the content last changed, if the tier knows."""
    @property
    def created_at_iso(self) -> str | None:
        """`created_at` as text."""
    @property
    def modified_at_iso(self) -> str | None:
        """`modified_at` as text."""
    @property
    def leads_to(self) -> str | None:
        """The target of a link, if it lies within the tree. Set by `stat`, and by `ls` with `links=True`."""
    @property
    def target(self) -> Entry | None:
        """What a link leads to within the tree: its path, kind and size. Set by `ls` with `links=True`."""

@final
class Window:
    """The lines that a read returned."""

    def __new__(cls, offset: int, lines: int, total_lines: int) -> Self: ...
    @property
    def offset(self) -> int:
        """How many lines precede."""
    @property
    def lines(self) -> int:
        """How many lines were returned."""
    @property
    def total_lines(self) -> int:
        """How many lines the file has."""
    @property
    def next_offset(self) -> int | None:
        """The `offset` of the next lines; `None` at the end of the file."""

@final
class FileRead:
    """The content of a file, or a part of it."""

    def __new__(
        cls,
        content: _Content,
        *,
        version: int,
        size_bytes: int | None = None,
        modified_at: datetime | None = None,
        window: Window | None = None,
    ) -> Self: ...
    @property
    def content(self) -> bytes:
        """The bytes, as stored."""
    def text(self, errors: str = "strict") -> str:
        """Returns the content as text. `errors` is that of `bytes.decode`."""
    @property
    def version(self) -> int:
        """The version of the file."""
    @property
    def size_bytes(self) -> int:
        """The size of the whole file."""
    @property
    def modified_at(self) -> datetime | None:
        """When the content last changed, if the tier knows."""
    @property
    def modified_at_iso(self) -> str | None:
        """`modified_at` as text."""
    @property
    def window(self) -> Window | None:
        """The lines, if lines were asked for."""
    def __len__(self) -> int:
        """The number of bytes returned."""

@final
class Failure:
    """A part of a tree that could not be read."""

    @property
    def path(self) -> str:
        """The file, directory or mount."""
    @property
    def code(self) -> str:
        """The code of the error."""
    @property
    def message(self) -> str:
        """The message of the error."""
    def error(self) -> Error:
        """Returns the failure as an exception."""

@final
class Listing:
    """Entries in path order: of a directory, or those that a glob found."""

    @property
    def entries(self) -> list[Entry]:
        """The entries."""
    @property
    def next(self) -> str | None:
        """The `after` of the rest; `None` if nothing was left out."""
    @property
    def failures(self) -> list[Failure]:
        """The parts of the tree that could not be read."""
    def infos(self) -> list[dict[str, str | int]]:
        """Returns the entries as dicts in the form of agent frameworks, by path: `path` (that of a directory ends in `/`), `is_dir`,
        `size` in bytes, and `modified_at` in ISO 8601. Cheaper than to ask each entry.
        """
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Entry]: ...
    def __getitem__(self, index: int, /) -> Entry: ...

@final
class Tree:
    """A directory with what is beneath it, in path order."""

    @property
    def entries(self) -> list[Entry]:
        """The entries."""
    @property
    def truncated(self) -> bool:
        """Whether there were more than the limit."""
    @property
    def failures(self) -> list[Failure]:
        """What could not be listed."""

@final
class GrepLine:
    """A line that matches, or a line of its context."""

    @property
    def line(self) -> int:
        """The number of the line, from 1."""
    @property
    def byte_offset(self) -> int:
        """Where the line begins in the file, in bytes."""
    @property
    def text(self) -> str:
        """The line without its end; invalid UTF-8 is replaced."""
    @property
    def content(self) -> bytes:
        """The bytes of the line."""
    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The matches as ranges of bytes of `content`."""
    @property
    def is_match(self) -> bool:
        """Whether the line matches; otherwise it is context."""

@final
class GrepFile:
    """The matches in one file."""

    @property
    def path(self) -> str:
        """The file."""
    @property
    def count(self) -> int:
        """How many lines match."""
    @property
    def lines(self) -> list[GrepLine]:
        """The lines in order."""

@final
class GrepResult:
    """What a grep found, by file in path order."""

    @property
    def files(self) -> list[GrepFile]:
        """The files with a match."""
    @property
    def matches(self) -> list[tuple[str, int, str]]:
        """The matching lines of all files: path, number and text."""
    @property
    def files_searched(self) -> int:
        """How many files were searched."""
    @property
    def files_binary(self) -> int:
        """How many binary files were skipped."""
    @property
    def files_too_large(self) -> int:
        """How many files were skipped because of their size."""
    @property
    def next(self) -> str | None:
        """The `cursor` of the rest; `None` if nothing was left out."""
    @property
    def failures(self) -> list[Failure]:
        """The parts of the tree that could not be read."""
    def __len__(self) -> int:
        """The number of matching lines, or of files if the result has no lines."""

@final
class SearchHit:
    """A file that a search found."""

    @property
    def path(self) -> str:
        """The file."""
    @property
    def score(self) -> float:
        """The relevance; comparable only within one result."""
    @property
    def size_bytes(self) -> int:
        """The size."""
    @property
    def version(self) -> int:
        """The version that was searched."""
    @property
    def modified_at(self) -> datetime | None:
        """When the content last changed, if the tier knows."""
    @property
    def snippets(self) -> list[tuple[int, str]]:
        """Lines with words of the query: their numbers and texts."""

@final
class SearchResult:
    """What a search found, best first."""

    @property
    def hits(self) -> list[SearchHit]:
        """The files."""
    @property
    def words(self) -> list[str]:
        """The words of the query in normalized form."""
    @property
    def near(self) -> dict[str, list[str]]:
        """Words of the query that no file contains, each with words that were found instead."""
    @property
    def files_searched(self) -> int:
        """How many files were searched."""
    @property
    def is_near_omitted(self) -> bool:
        """Whether words spelled nearly alike were not looked for, because there is too much to read."""
    @property
    def failures_of_meaning(self) -> int:
        """How many of the failures are of search by meaning alone: words were looked for there all the same."""
    @property
    def next(self) -> str | None:
        """The `offset` of the rest as text; `None` if nothing was left out."""
    @property
    def failures(self) -> list[Failure]:
        """The parts of the tree that could not be read."""
    def __len__(self) -> int: ...

_ChangeKind: TypeAlias = Literal["write", "append", "edit", "create_dir", "delete", "move", "copy"]
_WriteMode: TypeAlias = Literal["overwrite", "create"]
_Edit: TypeAlias = tuple[str, str] | tuple[str, str, bool]
"""A replacement: old text, new text, and whether to replace every occurrence."""

@final
class Change:
    """One change of a batch."""

    @staticmethod
    def write(
        path: _Path,
        content: _Content,
        *,
        mode: _WriteMode | None = None,
        if_version: int | None = None,
    ) -> Change:
        """Writes a whole file, creating missing parents."""
    @staticmethod
    def append(path: _Path, content: _Content) -> Change:
        """Appends to a file, creating it and missing parents."""
    @staticmethod
    def edit(path: _Path, *edits: _Edit, if_version: int | None = None) -> Change:
        """Replaces texts in a file, all or none."""
    @staticmethod
    def create_dir(path: _Path) -> Change:
        """Creates a directory and missing parents."""
    @staticmethod
    def delete(path: _Path, *, recursive: bool = False, if_version: int | None = None) -> Change:
        """Removes a file, a link or a directory."""
    @staticmethod
    def move(source: _Path, target: _Path, *, overwrite: bool = False) -> Change:
        """Moves a file or directory."""
    @staticmethod
    def copy(source: _Path, target: _Path, *, overwrite: bool = False) -> Change:
        """Copies a file or directory."""
    @property
    def kind(self) -> _ChangeKind:
        """What it does."""
    @property
    def path(self) -> str:
        """The path; of a move or copy, the source."""
    @property
    def target(self) -> str | None:
        """The target of a move or copy."""
    @property
    def content(self) -> bytes | None:
        """The content of a write or append."""
    @property
    def edits(self) -> list[tuple[str, str, bool]]:
        """The replacements of an edit."""
    @property
    def if_version(self) -> int | None:
        """The version that the file must have."""
@final
class Changed:
    """What a change did."""

    @property
    def operation(self) -> str:
        """The operation."""
    @property
    def path(self) -> str:
        """The path that was written or removed; of a move or copy, the target."""
    @property
    def version(self) -> int | None:
        """The new version of the file; `None` for directories and deletes."""
    @property
    def size_bytes(self) -> int:
        """The size of the file afterwards."""
    @property
    def created(self) -> bool:
        """Whether the path did not exist before."""
    @property
    def replacements(self) -> int:
        """How many occurrences an edit replaced."""
    @property
    def entries(self) -> int:
        """How many files and directories were affected."""

@final
class Capabilities:
    """What a tree offers."""

    @property
    def atomic_batch(self) -> bool:
        """Whether a batch takes effect as a whole or not at all."""
    @property
    def writable(self) -> bool:
        """Whether changes are accepted."""
    @property
    def durability(self) -> str:
        """What an acknowledged change survives."""
    @property
    def file_bytes_max(self) -> int | None:
        """The largest file in bytes."""
    @property
    def symlinks(self) -> bool:
        """Whether entries may be links of this machine."""
    @property
    def indexed(self) -> bool:
        """Whether an index may choose the files that a grep reads."""

# Trees

class Backend:
    """A file tree.

    A subclass in Python can be a child of a composite or of a layer. It overrides `stat(path)`, which returns an `Entry`; `ls(path)`,
    which returns entries; `read(path)`, which returns the whole content; and to be writable `write(path, content)`,
    `delete(path, *, recursive)` and `create_dir(path)`. Each may be a coroutine function. Windows of lines, edits, moves, globs and
    searches then follow from these. Paths are those of the child. Errors of this package keep their codes.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
    @property
    def capabilities(self) -> Capabilities:
        """What the tree offers."""

    def stat(self, path: _Path, *, refuse_links: bool = False) -> Entry:
        """Describes what is at a path."""

    def astat(self, path: _Path, *, refuse_links: bool = False) -> _Async[Entry]:
        """Does what `stat` does, on the running event loop."""

    def exists(self, path: _Path) -> bool:
        """Returns whether there is anything at a path."""

    def aexists(self, path: _Path) -> _Async[bool]:
        """Does what `exists` does, on the running event loop."""

    def version(self, path: _Path) -> int | None:
        """Returns the version of a file; `None` if there is none."""

    def aversion(self, path: _Path) -> _Async[int | None]:
        """Does what `version` does, on the running event loop."""

    def read(
        self,
        path: _Path,
        *,
        offset: int = 0,
        limit: int | None = None,
        bytes_max: int | None = None,
        unix_lines: bool = False,
        refuse_links: bool = False,
    ) -> FileRead:
        """Reads a file: all of it, or at most `limit` lines after the first `offset`.

        With `unix_lines`, lines that end in `\\r\\n` are shown with `\\n`. An edit finds such text and keeps the file's endings.
        """

    def aread(
        self,
        path: _Path,
        *,
        offset: int = 0,
        limit: int | None = None,
        bytes_max: int | None = None,
        unix_lines: bool = False,
        refuse_links: bool = False,
    ) -> _Async[FileRead]:
        """Does what `read` does, on the running event loop."""

    def read_bytes(self, path: _Path) -> bytes:
        """Reads a whole file."""

    def aread_bytes(self, path: _Path) -> _Async[bytes]:
        """Does what `read_bytes` does, on the running event loop."""

    def read_text(self, path: _Path) -> str:
        """Reads a whole file as UTF-8."""

    def aread_text(self, path: _Path) -> _Async[str]:
        """Does what `read_text` does, on the running event loop."""

    def read_range(self, path: _Path, offset: int, limit: int) -> FileRead:
        """Reads at most `limit` bytes after the first `offset`."""

    def aread_range(self, path: _Path, offset: int, limit: int) -> _Async[FileRead]:
        """Does what `read_range` does, on the running event loop."""

    def read_many(
        self,
        paths: Iterable[_Path],
        *,
        bytes_max: int | None = None,
        unix_lines: bool = False,
    ) -> list[FileRead | Error]:
        """Reads whole files. Returns, in the order of the paths, the content of each or the error of reading it."""

    def aread_many(
        self,
        paths: Iterable[_Path],
        *,
        bytes_max: int | None = None,
        unix_lines: bool = False,
    ) -> _Async[list[FileRead | Error]]:
        """Does what `read_many` does, on the running event loop."""

    def ls(
        self,
        path: _Path | None = None,
        *,
        limit: int = 10_000,
        after: str | None = None,
        links: bool = False,
        partial: bool = False,
        refuse_links: bool = False,
    ) -> Listing:
        """Lists the children of a directory by name.

        With `links`, `Entry.target` says what each link leads to. With `partial`, mounts that fail are listed in
        `failures`; otherwise the first of them fails the call.
        """

    def als(
        self,
        path: _Path | None = None,
        *,
        limit: int = 10_000,
        after: str | None = None,
        links: bool = False,
        partial: bool = False,
        refuse_links: bool = False,
    ) -> _Async[Listing]:
        """Does what `ls` does, on the running event loop."""

    def tree(self, path: _Path | None = None, *, depth: int = 3, limit: int = 10_000) -> Tree:
        """Lists what is beneath a directory, at most `depth` levels deep."""

    def atree(self, path: _Path | None = None, *, depth: int = 3, limit: int = 10_000) -> _Async[Tree]:
        """Does what `tree` does, on the running event loop."""

    def glob(
        self,
        pattern: str,
        path: _Path | None = None,
        *,
        limit: int = 10_000,
        after: _Path | None = None,
        directories: bool = False,
        hidden: bool = False,
        hidden_directories: bool = False,
        ignored: bool = False,
        case_insensitive: bool = False,
        partial: bool = False,
        refuse_links: bool = False,
    ) -> Listing:
        """Finds files by a pattern, in path order.

        A pattern without `/` matches names at any depth. With `hidden`, names that start with a dot match like others. With
        `hidden_directories`, a pattern without `/` also finds names in directories whose names start with a dot. With `ignored`, files
        that `.gitignore` files of the tree exclude are found.
        """

    def aglob(
        self,
        pattern: str,
        path: _Path | None = None,
        *,
        limit: int = 10_000,
        after: _Path | None = None,
        directories: bool = False,
        hidden: bool = False,
        hidden_directories: bool = False,
        ignored: bool = False,
        case_insensitive: bool = False,
        partial: bool = False,
        refuse_links: bool = False,
    ) -> _Async[Listing]:
        """Does what `glob` does, on the running event loop."""

    def grep(
        self,
        pattern: str,
        path: _Path | None = None,
        *,
        regex: bool = False,
        case: Literal["sensitive", "insensitive", "smart"] | None = None,
        word: bool = False,
        whole_line: bool = False,
        invert: bool = False,
        multiline: bool = False,
        before: int = 0,
        after: int = 0,
        include: Sequence[str] = ...,
        exclude: Sequence[str] = ...,
        types: Sequence[str] = ...,
        binary: bool = False,
        encoding: Literal["bytes", "auto"] | None = None,
        size_max_bytes: int | None = None,
        output: Literal["content", "files", "counts"] | None = None,
        matches_max: int = 10_000,
        file_matches_max: int | None = None,
        cursor: str | None = None,
        hidden: bool = False,
        hidden_directories: bool = False,
        ignored: bool = False,
        partial: bool = False,
        refuse_links: bool = False,
    ) -> GrepResult:
        """Finds lines by a literal text, or with `regex` by an expression of linear time."""

    def agrep(
        self,
        pattern: str,
        path: _Path | None = None,
        *,
        regex: bool = False,
        case: Literal["sensitive", "insensitive", "smart"] | None = None,
        word: bool = False,
        whole_line: bool = False,
        invert: bool = False,
        multiline: bool = False,
        before: int = 0,
        after: int = 0,
        include: Sequence[str] = ...,
        exclude: Sequence[str] = ...,
        types: Sequence[str] = ...,
        binary: bool = False,
        encoding: Literal["bytes", "auto"] | None = None,
        size_max_bytes: int | None = None,
        output: Literal["content", "files", "counts"] | None = None,
        matches_max: int = 10_000,
        file_matches_max: int | None = None,
        cursor: str | None = None,
        hidden: bool = False,
        hidden_directories: bool = False,
        ignored: bool = False,
        partial: bool = False,
        refuse_links: bool = False,
    ) -> _Async[GrepResult]:
        """Does what `grep` does, on the running event loop."""

    def search(
        self,
        query: str,
        path: _Path | None = None,
        *,
        limit: int = 10,
        offset: int = 0,
        include: Sequence[str] = ...,
        exclude: Sequence[str] = ...,
        modified_since: datetime | None = None,
        modified_before: datetime | None = None,
        snippets_max: int = 3,
        hidden: bool = False,
        hidden_directories: bool = False,
        ignored: bool = False,
        partial: bool = False,
        refuse_links: bool = False,
        exact: bool = False,
    ) -> SearchResult:
        """Ranks files by the words of a query.

        A word that no file contains also finds those spelled nearly like it, unless `exact`.
        """

    def asearch(
        self,
        query: str,
        path: _Path | None = None,
        *,
        limit: int = 10,
        offset: int = 0,
        include: Sequence[str] = ...,
        exclude: Sequence[str] = ...,
        modified_since: datetime | None = None,
        modified_before: datetime | None = None,
        snippets_max: int = 3,
        hidden: bool = False,
        hidden_directories: bool = False,
        ignored: bool = False,
        partial: bool = False,
        refuse_links: bool = False,
        exact: bool = False,
    ) -> _Async[SearchResult]:
        """Does what `search` does, on the running event loop."""

    def write(
        self,
        path: _Path,
        content: _Content,
        *,
        mode: _WriteMode | None = None,
        if_version: int | None = None,
    ) -> Changed:
        """Creates a file or replaces its content."""

    def awrite(
        self,
        path: _Path,
        content: _Content,
        *,
        mode: _WriteMode | None = None,
        if_version: int | None = None,
    ) -> _Async[Changed]:
        """Does what `write` does, on the running event loop."""

    def write_many(
        self,
        files: Mapping[str, _Content] | Iterable[tuple[str, _Content]],
        *,
        allow_partial: bool = False,
    ) -> list[Changed]:
        """Writes files as one batch."""

    def awrite_many(
        self,
        files: Mapping[str, _Content] | Iterable[tuple[str, _Content]],
        *,
        allow_partial: bool = False,
    ) -> _Async[list[Changed]]:
        """Does what `write_many` does, on the running event loop."""

    def append(self, path: _Path, content: _Content) -> Changed:
        """Appends to a file, or creates it."""

    def aappend(self, path: _Path, content: _Content) -> _Async[Changed]:
        """Does what `append` does, on the running event loop."""

    def edit(
        self,
        path: _Path,
        old: str,
        new: str,
        *,
        replace_all: bool = False,
        if_version: int | None = None,
    ) -> Changed:
        """Replaces the only occurrence of a text, or every one."""

    def aedit(
        self,
        path: _Path,
        old: str,
        new: str,
        *,
        replace_all: bool = False,
        if_version: int | None = None,
    ) -> _Async[Changed]:
        """Does what `edit` does, on the running event loop."""

    def edit_many(self, path: _Path, edits: Sequence[_Edit], *, if_version: int | None = None) -> Changed:
        """Applies replacements in order, all or none."""

    def aedit_many(self, path: _Path, edits: Sequence[_Edit], *, if_version: int | None = None) -> _Async[Changed]:
        """Does what `edit_many` does, on the running event loop."""

    def create_dir(self, path: _Path) -> Changed:
        """Creates a directory and missing parents."""

    def acreate_dir(self, path: _Path) -> _Async[Changed]:
        """Does what `create_dir` does, on the running event loop."""

    def delete(self, path: _Path, *, recursive: bool = False, if_version: int | None = None) -> Changed:
        """Removes a file, a link, or a directory, which is empty unless `recursive`."""

    def adelete(self, path: _Path, *, recursive: bool = False, if_version: int | None = None) -> _Async[Changed]:
        """Does what `delete` does, on the running event loop."""

    def move(self, source: _Path, target: _Path, *, overwrite: bool = False) -> Changed:
        """Moves a file or a directory."""

    def amove(self, source: _Path, target: _Path, *, overwrite: bool = False) -> _Async[Changed]:
        """Does what `move` does, on the running event loop."""

    def copy(self, source: _Path, target: _Path, *, overwrite: bool = False) -> Changed:
        """Copies a file or a directory."""

    def acopy(self, source: _Path, target: _Path, *, overwrite: bool = False) -> _Async[Changed]:
        """Does what `copy` does, on the running event loop."""

    def apply(
        self,
        changes: Sequence[Change],
        *,
        allow_partial: bool = False,
        refuse_links: bool = False,
    ) -> list[Changed]:
        """Applies changes in order as one batch, all or none.

        With `allow_partial`, a batch over several mounts stops at the first failure; `Error.applied` says how many changes took effect.
        """

    def aapply(
        self,
        changes: Sequence[Change],
        *,
        allow_partial: bool = False,
        refuse_links: bool = False,
    ) -> _Async[list[Changed]]:
        """Does what `apply` does, on the running event loop."""

class StateBackend(Backend):
    """Files in memory."""

    def __new__(cls) -> Self: ...

class StoreBackend(Backend):
    """Files as rows of a store.

    With `history`, each change keeps the content that it replaced, in the same commit: `keep_last` contents of each path (by
    default 20, at most 1,000), each for `older_than_seconds` after it was replaced (by default 30 days).

    >>> import treehold
    >>> tree = treehold.StoreBackend(treehold.Store.open("memory:"), ("notes",), history=True)
    >>> for text in ("one", "two"):
    ...     _ = tree.write("/a.md", text)
    >>> tree.at("~1").read("/a.md").text()
    'one'
    >>> [revision["number"] for revision in tree.log("/a.md")]
    [2, 1]
    """

    def __new__(
        cls,
        store: Store,
        namespace: _NamespaceLike,
        *,
        index: Literal["words", "trigram"] | None = None,
        ttl_seconds: _Seconds | None = None,
        file_bytes_max: int | None = None,
        history: bool = False,
        keep_last: int | None = None,
        older_than_seconds: _Seconds | None = None,
    ) -> Self: ...
    def at(self, moment: str | datetime) -> Backend:
        """Returns the tree as it was at a moment, read-only: `~2` (two changes before the newest), `v3` (the third version of a file),
        `latest`, a time, or an age such as `2h`.

        Raises `Unsupported` if the tree keeps no history. What is not known of the past raises `NotFound` when it is read.
        """

    def log(self, path: str) -> list[dict[str, _Json]]:
        """Returns the versions of a file, newest first: number, time, operation, size, and who made the change.

        Raises `Unsupported` if the tree keeps no history.
        """

    def alog(self, path: str) -> _Async[list[dict[str, _Json]]]:
        """Does what `log` does, on the running event loop."""

class FilesystemBackend(Backend):
    """A directory of this machine. Nothing outside it can be reached."""

    def __new__(
        cls,
        root: _HostPath,
        *,
        create_root: bool = False,
        cross_mounts: bool = False,
        sync: Literal["none", "file", "full"] | None = None,
        search_threads: int | None = None,
    ) -> Self: ...

class CompositeBackend(Backend):
    """Several trees behind one root. The longest prefix of a path decides which one has it."""

    def __new__(
        cls, default: Backend, routes: Mapping[str, Backend] | None = None, *, concurrency: int | None = None
    ) -> Self: ...
    @property
    def routes(self) -> list[str]:
        """The prefixes."""

class OverlayBackend(Backend):
    """A tree that shows `lower` and keeps all changes in `upper`."""

    def __new__(cls, lower: Backend, upper: Backend) -> Self: ...

class Subtree(Backend):
    """A part of a tree as a tree of its own."""

    def __new__(cls, tree: Backend, base: _Path) -> Self: ...

# Layers

_Operation: TypeAlias = Literal[
    "stat", "read", "ls", "glob", "grep", "search", "write", "append", "edit", "create_dir", "delete", "rename", "copy"
]

@final
class Rule:
    """A rule of `permissions`: an effect on operations at paths."""

    def __new__(
        cls,
        effect: Literal["allow", "deny", "ask"],
        operations: Sequence[_Operation] | Literal["all", "read", "write"],
        patterns: Sequence[str],
    ) -> Self: ...

def read_only(tree: Backend) -> Backend:
    """Returns a tree that refuses changes."""

def permissions(
    tree: Backend,
    rules: Sequence[Rule],
    *,
    default: Literal["allow", "deny", "ask"] = "allow",
    approver: Callable[[str, list[str]], Any] | None = None,
) -> Backend:
    """Returns a tree whose operations the first matching rule allows, refuses, or has `approver(operation, paths)` decide. It may be a coroutine function."""

def limit(tree: Backend, running_max: int, *, waiting_max: int | None = None) -> Backend:
    """Returns a tree with at most so many operations at once."""

def quota(
    tree: Backend,
    *,
    bytes_max: int | None = None,
    files_max: int | None = None,
    file_bytes_max: int | None = None,
) -> Backend:
    """Returns a tree that refuses changes which would exceed a size or a number of files."""

def timeout(tree: Backend, seconds: _Seconds, *, operations: Mapping[_Operation, _Seconds] | None = None) -> Backend:
    """Returns a tree whose operations end after a time."""

def retry(tree: Backend, attempts_max: int = 3) -> Backend:
    """Returns a tree that repeats what failed for a moment and is safe to repeat."""

def audit(
    tree: Backend,
    sink: _HostPath | Callable[[dict[str, _Json]], None],
    *,
    refuse_on_failure: bool = False,
) -> Backend:
    """Returns a tree that records every operation: as lines of JSON in a file, or by a call."""

# Text and tools

def edit_text(content: str, old: str, new: str, replace_all: bool = False) -> tuple[str, int]:
    """Replaces a text within a text, as `edit` does within a file. Returns the new text and the number of replacements.

    Raises `NoMatch`, or `Ambiguous`, whose `lines` are where the text occurs.
    """

_ToolFormat: TypeAlias = Literal["anthropic", "openai", "mcp"]
_ToolSet: TypeAlias = Literal["default", "memory", "text_editor", "agent"]

def tools(format: _ToolFormat = "openai", *, set: _ToolSet = "default") -> list[dict[str, _Json]]:
    """Returns the schemas of the tools that a model may call, in the format of a vendor."""

@final
class ToolResult:
    """The answer to a tool call."""

    @property
    def text(self) -> str:
        """The answer for the model, of bounded size."""
    @property
    def is_error(self) -> bool:
        """Whether the call failed."""
    @property
    def code(self) -> str | None:
        """The code of the error."""
    @property
    def data(self) -> _Json:
        """The answer as data; the content of files is in the text only."""
    @property
    def error(self) -> Error | None:
        """The error of the call."""
    @property
    def unsaved(self) -> Error | None:
        """Why the changes of the call to its thread are not saved, if they are not."""

# Sessions

@final
class Checkpoint:
    """A saved state of a thread."""

    @property
    def id(self) -> str:
        """The id. Ids of one thread increase with time."""
    @property
    def parent_id(self) -> str | None:
        """The checkpoint that it followed, or was restored or forked from."""
    @property
    def parent_thread(self) -> str | None:
        """The thread of the parent, if it is another one."""
    @property
    def merged(self) -> tuple[str, str] | None:
        """The thread and the id of the checkpoint that was merged into it."""
    @property
    def created_at(self) -> datetime:
        """When it was made."""
    @property
    def label(self) -> str | None:
        """Its label."""
    @property
    def metadata(self) -> dict[str, str]:
        """Its metadata, such as the tool call that made it."""
    @property
    def entries(self) -> int:
        """The number of files and directories."""
    @property
    def size_bytes(self) -> int:
        """The total size of all files."""
    @property
    def versions(self) -> list[int]:
        """The versions of the rows that were put together with it, in their order."""

@final
class FeedEvent:
    """A change, as the feed of a workspace records it."""

    @property
    def position(self) -> int:
        """The version of the commit that added it, in the partition of its log."""
    @property
    def path(self) -> str:
        """The path; of a move or copy, the source."""
    @property
    def operation(self) -> str:
        """What was done; `restore` if the state of a thread was replaced."""
    @property
    def target(self) -> str | None:
        """The target of a move or copy."""
    @property
    def version(self) -> int | None:
        """The new version of the file."""
    @property
    def thread(self) -> str | None:
        """The thread whose state changed."""
    @property
    def actor(self) -> str | None:
        """Who did it."""
    @property
    def at(self) -> datetime:
        """When."""

@final
class FeedPage:
    """Events in their order."""

    @property
    def events(self) -> list[FeedEvent]:
        """The events."""
    @property
    def position(self) -> str:
        """The `after` of the next page, or its `before` when paging backwards."""
    @property
    def more(self) -> bool:
        """Whether more events follow at once."""

@final
class FeedTail:
    """The events of a feed as they come. Iterate over it, also with `async for`."""

    @property
    def position(self) -> str:
        """The `after` of another tail that continues with the first event that this one has not returned."""
    def __iter__(self) -> Iterator[FeedEvent]: ...
    def __next__(self) -> FeedEvent: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> _Async[FeedEvent]: ...

@final
class Session(Backend):
    """One thread of one caller: all methods of its tree, tool calls, and its history.

    Sessions of one thread in one process share its state. `call` saves the thread, unless the workspace saves threads at the end. Other
    changes of the state are saved by `save`, `checkpoint` and `close`, and at the end of a `with` block.
    """

    @property
    def scope(self) -> dict[str, str]:
        """The tenant, user, agent and thread."""
    @property
    def partition(self) -> tuple[str, str]:
        """The partition that the rows of the thread lie in: the first two components of their namespaces.

        They are the tenant and the user, or `-` for one that the scope does not name. A batch of `checkpoint` may change rows of this
        partition only.
        """
    @property
    def store(self) -> Store:
        """The store that keeps the threads."""

    def call(
        self,
        tool: str,
        arguments: Mapping[str, _Json] | None = None,
        *,
        set: _ToolSet = "default",
        call_id: str | None = None,
        actor: str | None = None,
        consented: bool = False,
    ) -> ToolResult:
        """Runs the tool call of a model. A call that fails answers with a result, too.

        `consented` says that a person has agreed to what `question` asks.
        """

    def acall(
        self,
        tool: str,
        arguments: Mapping[str, _Json] | None = None,
        *,
        set: _ToolSet = "default",
        call_id: str | None = None,
        actor: str | None = None,
        consented: bool = False,
    ) -> _Async[ToolResult]:
        """Does what `call` does, on the running event loop."""

    def question(
        self,
        tool: str,
        arguments: Mapping[str, _Json] | None = None,
        *,
        set: _ToolSet = "default",
    ) -> str | None:
        """Returns what to ask a person before a call that destroys much, or changes files that make tools run code."""

    def aquestion(
        self, tool: str, arguments: Mapping[str, _Json] | None = None, *, set: _ToolSet = "default"
    ) -> _Async[str | None]:
        """Does what `question` does, on the running event loop."""

    def tools(self, format: _ToolFormat = "openai", *, set: _ToolSet = "default") -> list[dict[str, _Json]]:
        """Returns the schemas of the tools of this workspace."""

    def checkpoint(
        self,
        label: str | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        batch: Batch | None = None,
    ) -> Checkpoint:
        """Makes a checkpoint of the current state, even if nothing changed.

        The writes of `batch`, which has no conditions, commit together with it. They change rows of `partition` in `store`.

        Raises:
            Unsupported: The batch changes rows of another partition.
        """

    def acheckpoint(
        self,
        label: str | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        batch: Batch | None = None,
    ) -> _Async[Checkpoint]:
        """Does what `checkpoint` does, on the running event loop."""

    def checkpoints(
        self,
        *,
        label: str | None = None,
        metadata: Mapping[str, str] | None = None,
        before: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> list[Checkpoint]:
        """Returns checkpoints, newest first. `before` is the id of the last one of the page before."""

    def acheckpoints(
        self,
        *,
        label: str | None = None,
        metadata: Mapping[str, str] | None = None,
        before: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> _Async[list[Checkpoint]]:
        """Does what `checkpoints` does, on the running event loop."""

    def restore(self, id: str, *, label: str | None = None, metadata: Mapping[str, str] | None = None) -> Checkpoint:
        """Restores the state of a checkpoint, as a new checkpoint."""

    def arestore(
        self,
        id: str,
        *,
        label: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> _Async[Checkpoint]:
        """Does what `restore` does, on the running event loop."""

    def fork(self, thread: str, *, at: str | None = None, label: str | None = None) -> Checkpoint:
        """Starts another thread from a checkpoint of this one."""

    def afork(self, thread: str, *, at: str | None = None, label: str | None = None) -> _Async[Checkpoint]:
        """Does what `fork` does, on the running event loop."""

    def merge(
        self,
        source: str,
        *,
        at: str | None = None,
        strategy: Literal["ours", "theirs", "union", "markers"] | None = None,
        resolutions: Mapping[str, _Content | None] | None = None,
        base: str | None = None,
        dry_run: bool = False,
        label: str | None = None,
        limit: int = 1000,
    ) -> dict[str, _Json]:
        """Merges a checkpoint of another thread into this one, by lines. Nothing is written while a conflict is undecided.

        `resolutions` decide conflicts by path: a content, or `None` to leave nothing there.
        """

    def amerge(
        self,
        source: str,
        *,
        at: str | None = None,
        strategy: Literal["ours", "theirs", "union", "markers"] | None = None,
        resolutions: Mapping[str, _Content | None] | None = None,
        base: str | None = None,
        dry_run: bool = False,
        label: str | None = None,
        limit: int = 1000,
    ) -> _Async[dict[str, _Json]]:
        """Does what `merge` does, on the running event loop."""

    def diff(
        self,
        older: str,
        newer: str | None = None,
        *,
        after: _Path | None = None,
        limit: int = 1000,
    ) -> dict[str, _Json]:
        """Compares two checkpoints, or one with the current state."""

    def adiff(
        self,
        older: str,
        newer: str | None = None,
        *,
        after: _Path | None = None,
        limit: int = 1000,
    ) -> _Async[dict[str, _Json]]:
        """Does what `diff` does, on the running event loop."""

    def history(self, id: str | None = None) -> Backend:
        """Returns the state at a checkpoint, read-only."""

    def ahistory(self, id: str | None = None) -> _Async[Backend]:
        """Does what `history` does, on the running event loop."""

    def log(self, path: str, *, limit: int = 100) -> dict[str, _Json]:
        """Returns the versions of a file as `revisions`, newest first, and as `more` whether there may be older ones.

        A route with a history has all recorded versions, the state of a thread those of its checkpoints. Raises `Unsupported` for
        a route that keeps no past.
        """

    def alog(self, path: str, *, limit: int = 100) -> _Async[dict[str, _Json]]:
        """Does what `log` does, on the running event loop."""

    def as_of(self, moment: str | datetime) -> Backend:
        """Returns the whole tree as it was at a moment, read-only: `~2`, `v3`, `latest`, a time, an age such as `2h`, or the id or
        label of a checkpoint. Calls to routes that keep no past raise `Unsupported`.
        """

    def aas_of(self, moment: str | datetime) -> _Async[Backend]:
        """Does what `as_of` does, on the running event loop."""

    def restore_files(self, paths: Sequence[str], moment: str | datetime) -> list[Changed]:
        """Writes files and directories as they were at a moment, and removes what did not exist then.

        Raises `Unsupported` for a route that keeps no past, and `NotFound` where the past is not known; nothing is changed then.
        """

    def arestore_files(self, paths: Sequence[str], moment: str | datetime) -> _Async[list[Changed]]:
        """Does what `restore_files` does, on the running event loop."""

    def undo(self, *, of: Literal["thread", "user"] = "thread") -> dict[str, _Json]:
        """Reverts the newest call that changed something and is not undone yet: of this thread, over its state and all routes with a
        history, or of the user, from whichever thread, in routes with a history. Returns what was undone.

        Raises `NotFound` if nothing is left to undo, and `Conflict` if somebody changed a file since.
        """

    def aundo(self, *, of: Literal["thread", "user"] = "thread") -> _Async[dict[str, _Json]]:
        """Does what `undo` does, on the running event loop."""

    def memory_prompt(self, sources: Sequence[str] | None = None, *, tokens_max: int | None = None) -> str:
        """Reads memory files and renders them for a system prompt. By default those that the workspace configures."""

    def amemory_prompt(self, sources: Sequence[str] | None = None, *, tokens_max: int | None = None) -> _Async[str]:
        """Does what `memory_prompt` does, on the running event loop."""

    def feed(self, after: str | int | None = None, *, limit: int = 100) -> FeedPage:
        """Returns the changes in this session's tree since a position; without one, only the current position.

        A position is that of a page. A number stands for that version in every partition: 0 is the start.
        """

    def afeed(self, after: str | int | None = None, *, limit: int = 100) -> _Async[FeedPage]:
        """Does what `feed` does, on the running event loop."""

    def timeline(self, before: str | int | None = None, *, since: datetime | None = None, limit: int = 100) -> FeedPage:
        """Returns the changes in this session's tree, newest first."""

    def atimeline(
        self,
        before: str | int | None = None,
        *,
        since: datetime | None = None,
        limit: int = 100,
    ) -> _Async[FeedPage]:
        """Does what `timeline` does, on the running event loop."""

    def follow(self, after: str | int | None = None) -> FeedTail:
        """Follows the changes in this session's tree, from now or from a position."""

    def afollow(self, after: str | int | None = None) -> _Async[FeedTail]:
        """Does what `follow` does, on the running event loop."""

    def save(self) -> bool:
        """Saves the thread. Returns whether anything changed."""

    def asave(self) -> _Async[bool]:
        """Does what `save` does, on the running event loop."""

    def reload(self) -> None:
        """Replaces the state with the last saved one."""

    def areload(self) -> _Async[None]:
        """Does what `reload` does, on the running event loop."""

    def close(self) -> None:
        """Saves the thread and closes the session."""

    def aclose(self) -> _Async[None]:
        """Does what `close` does, on the running event loop."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def __aenter__(self) -> _Async[Self]: ...
    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> _Async[None]: ...

@final
class Workspace:
    """The trees of all callers, as a configuration describes them."""

    @staticmethod
    def open(path: _HostPath | None = None, *, config: str | None = None, data: _HostPath | None = None) -> Workspace:
        """Opens a configuration: a file, the text of one, or without both the built-in configuration.

        `data` is the directory of what the configuration does not place, by default that of the file or the current one.
        """
    @staticmethod
    def of(
        routes: Mapping[str, Backend] | None = None,
        *,
        store: Store | None = None,
        audit: bool = False,
        events: bool = False,
        memory: Sequence[str] | None = None,
        durability: Literal["step", "exit"] = "step",
        agents: AgentTool | None = None,
    ) -> Workspace:
        """Makes a workspace of trees. The state of the thread is at `/` unless there is a route.

        `store` keeps threads, and if asked for the audit log and the events. Without it, threads live in memory. Events are the changes
        of threads and of mounts that are a `StoreBackend`. `agents` adds the tool `agent` to the tools: the trace with the id of a
        session's thread is that of its caller. A session of another user than the owner of the traces is refused by the tool.
        """

    def session(
        self,
        *,
        thread: str | None = None,
        user: str | None = None,
        tenant: str | None = None,
        agent: str | None = None,
    ) -> Session:
        """Opens a session of a thread. What is not given is taken from the configuration."""

    def asession(
        self,
        *,
        thread: str | None = None,
        user: str | None = None,
        tenant: str | None = None,
        agent: str | None = None,
    ) -> _Async[Session]:
        """Does what `session` does, on the running event loop."""

    def threads(self, *, user: str | None = None, tenant: str | None = None) -> list[str]:
        """Returns the saved threads of a user."""

    def athreads(self, *, user: str | None = None, tenant: str | None = None) -> _Async[list[str]]:
        """Does what `threads` does, on the running event loop."""

    def delete_thread(self, thread: str, *, user: str | None = None, tenant: str | None = None) -> None:
        """Removes a thread with all its checkpoints."""

    def adelete_thread(self, thread: str, *, user: str | None = None, tenant: str | None = None) -> _Async[None]:
        """Does what `delete_thread` does, on the running event loop."""

    def tools(self, format: _ToolFormat = "openai", *, set: _ToolSet = "default") -> list[dict[str, _Json]]:
        """Returns the schemas of the tools."""

    def close(self) -> None:
        """Closes the handle. Sessions keep the workspace open until they are closed."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def __aenter__(self) -> _Async[Self]: ...
    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> _Async[None]: ...

# Traces

@type_check_only
class _Agent(TypedDict):
    """A registered agent."""

    url: str
    api_key: NotRequired[str]
    type: NotRequired[str]
    allow_http: NotRequired[bool]

@final
class Peers:
    """The registered agents: the names of servers, and how to reach them.

    `agents` is `{NAME: {"url", "api_key", "type", "allow_http"}}`, and `file` a file of the original, `agents.yaml`. A key is the key
    itself, `env:VARIABLE` or `file:PATH`, and is read when the first request needs it. URLs are `https://HOST[:PORT]`; `http` to other
    machines needs `allow_http`. Hosts that are not registered are refused before anything is sent, unless `unregistered_hosts`
    allows them: by `https`, without a key, and only with public addresses unless `private_hosts`.
    """

    def __new__(
        cls,
        agents: Mapping[str, _Agent] | None = None,
        *,
        file: _HostPath | None = None,
        unregistered_hosts: bool = False,
        private_hosts: bool = False,
    ) -> Self: ...
    @property
    def names(self) -> list[str]:
        """The names of the agents, in order."""
    def check(self, location: str) -> None:
        """Checks that `@AGENT` or `agent://HOST` may be reached, without a connection. Raises `UnknownAgent` otherwise."""

class TraceStore:
    """The traces of one user, wherever they live. The subclasses say where.

    Every id may be qualified: `@AGENT/ID` or `agent://HOST[:PORT]/ID`. What belongs together is one commit: a message, its sequence,
    the head, the totals and the event that reports it.

    Besides the errors of each method: `NotFound` for an unknown trace, `ForeignTrace` for that of another user, `BadTraceId`, `UnknownAgent`
    for a place that is not registered, and errors of the store or the connection. A failed read never looks like an absent trace.
    """

    def tree(self) -> Backend:
        """Returns the traces as read-only files, to grep and search: `/{trace}/meta.json`, `goal.json`, `events.jsonl`, `path.md`, `messages/…`."""

    def create_trace(self, trace: NewTrace | str) -> str:
        """Creates a trace, or one for a task, and returns its id. Raises `AlreadyExists` for an id that is taken in the tenant."""

    def acreate_trace(self, trace: NewTrace | str) -> _Async[str]:
        """Does what `create_trace` does, on the running event loop."""

    def get_trace(self, trace_id: str) -> Trace | None:
        """Returns a trace, or `None` if it does not exist."""

    def aget_trace(self, trace_id: str) -> _Async[Trace | None]:
        """Does what `get_trace` does, on the running event loop."""

    def update_trace(self, trace_id: str, **changes: Unpack[TraceUpdate]) -> Trace:
        """Changes a trace and returns it."""

    def aupdate_trace(self, trace_id: str, **changes: Unpack[TraceUpdate]) -> _Async[Trace]:
        """Does what `update_trace` does, on the running event loop."""

    def list_traces(
        self,
        *,
        status: TraceStatus | None = None,
        mode: TraceMode | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> TracePage:
        """Returns a page of at most `limit` (100) traces, newest first. `cursor` is the `next` of the page before."""

    def alist_traces(
        self,
        *,
        status: TraceStatus | None = None,
        mode: TraceMode | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> _Async[TracePage]:
        """Does what `list_traces` does, on the running event loop."""

    def delete_trace(self, trace_id: str) -> bool:
        """Removes a trace with all of its messages, goals and events. Returns whether it existed."""

    def adelete_trace(self, trace_id: str) -> _Async[bool]:
        """Does what `delete_trace` does, on the running event loop."""

    def get_goal_tree(self, trace_id: str) -> GoalTree:
        """Returns the goals of a trace; an empty tree if it has none."""

    def aget_goal_tree(self, trace_id: str) -> _Async[GoalTree]:
        """Does what `get_goal_tree` does, on the running event loop."""

    def update_goal_tree(self, trace_id: str, tree: GoalTree) -> None:
        """Replaces the goals of a trace. Statistics in the tree are ignored."""

    def aupdate_goal_tree(self, trace_id: str, tree: GoalTree) -> _Async[None]:
        """Does what `update_goal_tree` does, on the running event loop."""

    def add_goal(self, trace_id: str, goal: NewGoal | str) -> Goal:
        """Adds a goal, or one with a description, and returns it as stored.

        Raises `AlreadyExists` for an id that is taken, and `NotFound` for an unknown parent.
        """

    def aadd_goal(self, trace_id: str, goal: NewGoal | str) -> _Async[Goal]:
        """Does what `add_goal` does, on the running event loop."""

    def update_goal(self, trace_id: str, goal_id: str, **changes: Unpack[GoalUpdate]) -> Goal:
        """Changes a goal and returns it."""

    def aupdate_goal(self, trace_id: str, goal_id: str, **changes: Unpack[GoalUpdate]) -> _Async[Goal]:
        """Does what `update_goal` does, on the running event loop."""

    def add_message(
        self,
        trace_id: str,
        message: NewMessage,
        *,
        idempotency_key: str | None = None,
        expected_head: int | None = None,
        update: TraceUpdate | None = None,
    ) -> str:
        """Appends a message and returns its id. The options are those of `add_messages`."""

    def aadd_message(
        self,
        trace_id: str,
        message: NewMessage,
        *,
        idempotency_key: str | None = None,
        expected_head: int | None = None,
        update: TraceUpdate | None = None,
    ) -> _Async[str]:
        """Does what `add_message` does, on the running event loop."""

    def add_messages(
        self,
        trace_id: str,
        messages: Sequence[NewMessage],
        *,
        idempotency_key: str | None = None,
        expected_head: int | None = None,
        update: TraceUpdate | None = None,
    ) -> Added:
        """Appends at most 1,000 messages, all or none, and moves the head to the last one that is not part of a side branch.

        A message without a parent continues the one before it, and the first one continues the head. A repeated call with one
        `idempotency_key` has no second effect for 24 hours. `update` changes the trace in the same commit.

        Raises `Conflict` for another head than `expected_head`, `TooLarge` for a message over the limit of the store, and
        `InvalidArgument` for a parent that does not exist or a summary whose span is not on the path to the head.
        """

    def aadd_messages(
        self,
        trace_id: str,
        messages: Sequence[NewMessage],
        *,
        idempotency_key: str | None = None,
        expected_head: int | None = None,
        update: TraceUpdate | None = None,
    ) -> _Async[Added]:
        """Does what `add_messages` does, on the running event loop."""

    def get_message(self, trace_id: str, message: str | int) -> Message | None:
        """Returns a message by its id or sequence, or `None` if the trace has no such message."""

    def aget_message(self, trace_id: str, message: str | int) -> _Async[Message | None]:
        """Does what `get_message` does, on the running event loop."""

    def update_message(self, trace_id: str, message: str | int, **changes: Unpack[MessageUpdate]) -> Message:
        """Changes a message, by its id or sequence, and returns it."""

    def aupdate_message(self, trace_id: str, message: str | int, **changes: Unpack[MessageUpdate]) -> _Async[Message]:
        """Does what `update_message` does, on the running event loop."""

    def get_trace_messages(self, trace_id: str, *, since_sequence: int | None = None, offset: int = 0, limit: int = 100) -> MessagesPage:
        """Returns a page of at most `limit` (1,000) messages in the order of their sequences, side branches included.

        `since_sequence` leaves out messages up to that sequence.
        """

    def aget_trace_messages(
        self,
        trace_id: str,
        *,
        since_sequence: int | None = None,
        offset: int = 0,
        limit: int = 100,
    ) -> _Async[MessagesPage]:
        """Does what `get_trace_messages` does, on the running event loop."""

    def get_messages_by_goal(
        self,
        trace_id: str,
        goal_id: str,
        *,
        since_sequence: int | None = None,
        offset: int = 0,
        limit: int = 100,
    ) -> MessagesPage:
        """Returns a page of the messages of a goal, as `get_trace_messages` does."""

    def aget_messages_by_goal(
        self,
        trace_id: str,
        goal_id: str,
        *,
        since_sequence: int | None = None,
        offset: int = 0,
        limit: int = 100,
    ) -> _Async[MessagesPage]:
        """Does what `get_messages_by_goal` does, on the running event loop."""

    def get_main_path_messages(self, trace_id: str, head_sequence: int | None = None, *, limit: int | None = None) -> MessagesPage:
        """Returns the end of a path: from its last message, by default the head, back from parent to parent, earlier messages first.

        A page has at most `limit` (1,000) messages. Its `earlier` is the `head_sequence` of the page before it.
        """

    def aget_main_path_messages(
        self,
        trace_id: str,
        head_sequence: int | None = None,
        *,
        limit: int | None = None,
    ) -> _Async[MessagesPage]:
        """Does what `get_main_path_messages` does, on the running event loop."""

    def append_event(self, trace_id: str, event: str, data: Mapping[str, _Json] | None = None) -> int:
        """Appends an event of a kind and returns its id."""

    def aappend_event(self, trace_id: str, event: str, data: Mapping[str, _Json] | None = None) -> _Async[int]:
        """Does what `append_event` does, on the running event loop."""

    def get_events(self, trace_id: str, since_event_id: int = 0, *, limit: int = 100) -> EventsPage:
        """Returns a page of at most `limit` (1,000) events with greater ids than `since_event_id`."""

    def aget_events(self, trace_id: str, since_event_id: int = 0, *, limit: int = 100) -> _Async[EventsPage]:
        """Does what `get_events` does, on the running event loop."""

    def watch(self, trace_id: str, since_event_id: int = 0) -> TraceWatch:
        """Follows the events of a trace: those after `since_event_id`, then new ones as they come, each once and in order."""

    def awatch(self, trace_id: str, since_event_id: int = 0) -> _Async[TraceWatch]:
        """Does what `watch` does, on the running event loop."""

@final
class TraceWatch:
    """The events of a trace as they come, for `for` and `async for`. It ends with `NotFound` if the trace is removed."""

    def __iter__(self) -> Iterator[TraceEvent]: ...
    def __next__(self) -> TraceEvent: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> _Async[TraceEvent]: ...

@final
class DatabaseTraceStore(TraceStore):
    """Traces as rows of a store, which any number of processes may share.

    `store` is a `Store`, or the URL of one, which the constructor opens; in a coroutine pass `await Store.aopen(url)`. The traces belong to
    one tenant and user. Limits, with their defaults: a message of 1 MiB, the messages of one call 16 MiB, a trace's description 256 KiB, a
    goal tree 1 MiB, an event 64 KiB, a page of 1,000 entries and 8 MiB; idempotency keys are remembered for 24 hours.
    """

    def __new__(
        cls,
        store: Store | str,
        *,
        tenant: str = "default",
        user: str = "default",
        message_bytes_max: int | None = None,
        batch_bytes_max: int | None = None,
        trace_bytes_max: int | None = None,
        goal_tree_bytes_max: int | None = None,
        event_bytes_max: int | None = None,
        page_max: int | None = None,
        page_bytes_max: int | None = None,
        idempotency_seconds: _Seconds | None = None,
    ) -> Self: ...
    @property
    def tenant(self) -> str:
        """The tenant of the traces."""
    @property
    def user(self) -> str:
        """The user of the traces."""

    def import_directory(self, directory: _HostPath, *, among: Sequence[str] | None = None, any_user: bool = False) -> ImportReport:
        """Imports the traces of a directory of the original, `.trace`, or those with the ids `among`.

        What cannot be taken is reported, and the rest is imported. Repeating an import changes nothing. Traces of other users are left out
        unless `any_user` takes them over.
        """

    def aimport_directory(
        self,
        directory: _HostPath,
        *,
        among: Sequence[str] | None = None,
        any_user: bool = False,
    ) -> _Async[ImportReport]:
        """Does what `import_directory` does, on the running event loop."""

    def export_directory(self, directory: _HostPath, *, among: Sequence[str] | None = None, sync: bool = True) -> ExportReport:
        """Exports traces into a directory of the original, which is created if it is missing.

        What was imported and did not change is written with the same bytes. With `sync`, each trace is flushed to the device.
        """

    def aexport_directory(self, directory: _HostPath, *, among: Sequence[str] | None = None, sync: bool = True) -> _Async[ExportReport]:
        """Does what `export_directory` does, on the running event loop."""

    def sweep(self, traces_max: int = 100) -> int:
        """Removes rows that deleted traces left behind, for at most `traces_max` traces. Returns how many of them are gone."""

    def asweep(self, traces_max: int = 100) -> _Async[int]:
        """Does what `sweep` does, on the running event loop."""

@final
class RemoteTraceStore(TraceStore):
    """The traces of one other server, by HTTP. Ids without a location are of that server, and results carry qualified ids.

    `agent_url` is `https://HOST[:PORT]` with the key `api_key`, or with `peers` the location of one of them: `@AGENT` or `agent://HOST`. A key
    is the key itself, `env:VARIABLE` or `file:PATH`. `own_location` is where others find this place; with it, local ids that are sent
    are qualified. Only an absent trace is `None`; every other failure is an error. A lost answer is asked for again without a second
    effect.
    """

    def __new__(
        cls,
        agent_url: str,
        api_key: str | None = None,
        *,
        peers: Peers | None = None,
        own_location: str | None = None,
    ) -> Self: ...

@final
class HybridTraceStore(TraceStore):
    """Traces of this place and of others: each call goes where its id says. Calls with a local id never reach the network.

    New traces are local unless their id is qualified, and `list_traces` lists the local ones. `own_location`, such as `@cloud`, is where
    others find this place; ids with it are local.
    """

    def __new__(cls, local: TraceStore, elsewhere: Peers | TraceStore, *, own_location: str | None = None) -> Self: ...

@final
class CachedRemoteStore(TraceStore):
    """A cache before other places. The owner is the truth: writes go to it first.

    A running trace is re-validated at each read, and one that ended is served for `final_age_seconds` (30). While the owner does not
    answer, cached traces and pages of messages are served with the mark `stale`. Memory is bounded by `bytes_max` (64 MiB). With `local`, a
    store or its URL, copies survive the process: they live for `copies_seconds` (7 days), are not encrypted, and belong to `tenant`.
    """

    def __new__(
        cls,
        local: Store | str | None,
        remote: Peers | TraceStore,
        *,
        tenant: str = "default",
        bytes_max: int | None = None,
        final_age_seconds: _Seconds | None = None,
        copies_seconds: _Seconds | None = None,
    ) -> Self: ...
    @property
    def usage(self) -> tuple[int, int]:
        """The number of cached traces, and their bytes."""
    def invalidate(self, trace_id: str) -> None:
        """Notes that a trace changed, so that the next read asks its owner."""
    def clear(self) -> None:
        """Empties the memory of the cache."""

@final
class TraceRuns:
    """The runs on the traces of a store, in the background, at most one at a time for each trace.

    Processes that share the store of a `DatabaseTraceStore` claim a trace before they run it; after a process died, another one can run its
    traces once the lease of its claim ends (`lease_seconds`, 30). A run ends by itself, when it is stopped, or after
    `deadline_seconds` (an hour), and its trace gets a final status and an event `run_ended`. Traces that live elsewhere run there, by the
    runner of their owner.

    At the end of a `with` block, all runs of this process are stopped.
    """

    def __new__(
        cls,
        store: TraceStore,
        runner: TraceRunner,
        *,
        runs_max: int = 64,
        runs_per_user_max: int = 8,
        deadline_seconds: _Seconds | None = None,
        lease_seconds: _Seconds | None = None,
    ) -> Self: ...
    @property
    def count(self) -> int:
        """How many runs this process has."""

    def start(
        self,
        trace_id: str,
        messages: Sequence[NewMessage] | None = None,
        *,
        after_sequence: int | None = None,
        config: _Json = None,
        branch_type: str | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Starts a run: appends messages in one commit, sets the status to `running`, and runs the runner.

        `after_sequence` rewinds the trace first. `config` is for the runner and is stored with the trace. With `branch_type`, the run works
        beside the main path, and the head and status of the trace stay.

        Raises `Conflict` while another run works on the trace, `Unavailable` with too many runs. A refused request leaves the trace as it was.
        """

    def astart(
        self,
        trace_id: str,
        messages: Sequence[NewMessage] | None = None,
        *,
        after_sequence: int | None = None,
        config: _Json = None,
        branch_type: str | None = None,
        idempotency_key: str | None = None,
    ) -> _Async[None]:
        """Does what `start` does, on the running event loop."""

    def result(self, trace_id: str, timeout_seconds: _Seconds) -> RunResult | None:
        """Waits until no run works on a trace, in whatever process, and returns how the last one ended; `None` if it still runs."""

    def aresult(self, trace_id: str, timeout_seconds: _Seconds) -> _Async[RunResult | None]:
        """Does what `result` does, on the running event loop."""

    def stop(self, trace_id: str) -> bool:
        """Stops the run that works on a trace, in whatever process, and waits until the trace is free. Returns whether there was one."""

    def astop(self, trace_id: str) -> _Async[bool]:
        """Does what `stop` does, on the running event loop."""

    def shutdown(self, timeout_seconds: _Seconds) -> bool:
        """Refuses further runs, stops all of this process, and waits until they ended. Returns whether none is left."""

    def ashutdown(self, timeout_seconds: _Seconds) -> _Async[bool]:
        """Does what `shutdown` does, on the running event loop."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def __aenter__(self) -> _Async[Self]: ...
    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> _Async[None]: ...

@final
class RunContext:
    """What a run works with."""

    @property
    def trace_id(self) -> str:
        """The trace, which exists and lives here."""
    @property
    def traces(self) -> TraceStore:
        """The traces of the user. Calls raise `Conflict` once the run has ended or was stopped, and writes also once another process took the trace."""
    @property
    def runs(self) -> TraceRuns:
        """The runs of the same user, for sub-traces: `AgentTool(context.runs)`."""

@final
class AgentTool:
    """The tool `agent`: an agent starts another one, or continues what another one did, here or elsewhere.

    `agents` are the runs that start agents, or a store of traces whose owners run them. Every call ends: after `deadline_seconds` (30
    minutes) the started run is stopped, as it is when the call is cancelled. A call has at most `tasks_max` (16) tasks, of which `at_once`
    (4) run at the same time. `Workspace.of(agents=tool)` adds it to the tools of a model.
    """

    def __new__(
        cls,
        agents: TraceRuns | TraceStore,
        *,
        deadline_seconds: _Seconds | None = None,
        tasks_max: int | None = None,
        at_once: int | None = None,
    ) -> Self: ...

    def agent(
        self,
        task: str | Sequence[str],
        continue_from: str | None = None,
        agent_url: str | None = None,
        context: _Json = None,
        *,
        trace_id: str | None = None,
        goal_id: str | None = None,
    ) -> dict[str, _Json]:
        """Gives a task to another agent and returns its answer: `status`, `summary` or `error`, `sub_trace_id`, and `remote` if it ran elsewhere.

        Several tasks start several agents, whose answers are `results`. `continue_from` is the `sub_trace_id` of an earlier answer, and
        `agent_url` is where the agent runs: `@AGENT`, `agent://HOST` or its URL. The trace `trace_id` of the caller gets the sub-trace
        under its goal. A failure is an answer, not an exception.
        """

    def aagent(
        self,
        task: str | Sequence[str],
        continue_from: str | None = None,
        agent_url: str | None = None,
        context: _Json = None,
        *,
        trace_id: str | None = None,
        goal_id: str | None = None,
    ) -> _Async[dict[str, _Json]]:
        """Does what `agent` does, on the running event loop."""

def parse_trace_id(id: str) -> tuple[str, str]:
    """Splits the id of a trace into where it lives, `local`, `@AGENT` or `agent://HOST`, and its id there. Raises `BadTraceId`."""

def main(arguments: Sequence[str]) -> int:
    """Runs the command line and returns its exit code. The first argument is the name of the program."""

