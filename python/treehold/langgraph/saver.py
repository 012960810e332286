"""A LangGraph checkpointer on any treehold store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from typing_extensions import Self, TypeAlias

from treehold import Backend, InvalidArgument, NotFound, Session, Store
from treehold import Checkpoint as FilesCheckpoint
from treehold._io import Namespace, Steps, arun, run

from . import _history, _removal
from ._content import ContentCache, ContentCodec
from ._listing import Listing
from ._roots import Roots
from ._threads import Put, Threads, config_of, label_of
from ._types import are_texts
from ._urls import store_url

Removal: TypeAlias = Callable[[Threads, str], Steps[None]]
"""Removes something of a thread."""

CACHE_BYTES = 128 << 20
"""The default size of the cache of channel values."""


class TreeholdSaver(BaseCheckpointSaver[str]):
    """Keeps the checkpoints of graphs as rows of a treehold store.

    A checkpoint costs what changed since the one before, also within a large dict or list such as the files or messages
    of an agent. Each is one commit. All methods have a native async twin, and may be called from any thread, loop or
    process; nothing is lost when two processes write one thread.
    """

    def __init__(
        self,
        store: Store,
        *,
        namespace: Sequence[str] = ("langgraph", "checkpoints"),
        serde: SerializerProtocol | None = None,
        cache_bytes: int = CACHE_BYTES,
        sessions: Callable[[RunnableConfig], Session | None] | None = None,
    ) -> None:
        """Keeps checkpoints in `store`.

        Args:
            store: The store.
            namespace: Where the rows lie. Savers with different namespaces do not see each other's threads, so use one
                for each tenant or user. Beneath a namespace of one component, threads of earlier versions are moved when they
                are first used.
            serde: How values are serialized. An `EncryptedSerializer` encrypts all values, versions and metadata.
            cache_bytes: The most bytes of channel values that are kept in memory, so that a checkpoint that follows a
                known one finds out what changed without reading it.
            sessions: Returns the open session whose files belong to the thread of a configuration, if there is one. Then
                each checkpoint of the graph is one commit with the files, and `files_at` and `restore_files` find the
                files of any checkpoint. Make the saver with `session.store`.

                A thread with a session lies in `session.partition`: at `namespace` if that begins with it, and else at
                `(*session.partition, *namespace)`, such as `("acme", "ada", "langgraph", "checkpoints")`. A thread that an
                earlier version or a saver without sessions stored at `namespace` is moved when it is first used.

                Return a session whenever a graph uses such a thread: without one, reads and puts look at `namespace` only.
                `delete_thread`, `prune` and `copy_thread` know only the id of a thread, so they pass a configuration with
                nothing else. If there is no session for that, return `None`: they find the thread in all partitions.
        """
        super().__init__(serde=serde)
        if cache_bytes < 0:
            raise InvalidArgument("cache_bytes is negative; use 0 for no cache")
        self.store = store
        self.namespace: Namespace = _namespace(namespace)
        self._cache_bytes = cache_bytes
        self._owns_store = False
        self._sessions = sessions
        self._open()

    def _open(self) -> None:
        codec = ContentCodec(self.serde, ContentCache(self._cache_bytes))
        self._roots = Roots(self.namespace, codec, has_sessions=self._sessions is not None)

    def _of(self, config: RunnableConfig) -> Steps[Threads]:
        """Returns where the thread of a configuration lies."""
        thread_id = _thread_id(config)
        return (yield from self._roots.of(thread_id, None if self._sessions is None else self._sessions(config)))

    def _of_id(self, thread_id: str) -> Steps[list[Threads]]:
        """Returns where a thread lies of which only the id is known."""
        known = yield from self._known(thread_id)
        return [known] if known is not None else (yield from self._roots.holding(thread_id))

    def _known(self, thread_id: str) -> Steps[Threads | None]:
        """Returns where a thread lies if there is a session for its id."""
        session = None if self._sessions is None else self._sessions({"configurable": {"thread_id": thread_id}})
        return None if session is None else (yield from self._roots.of(thread_id, session))

    @classmethod
    def from_conn_string(
        cls,
        conn_string: str,
        *,
        namespace: Sequence[str] = ("langgraph", "checkpoints"),
        serde: SerializerProtocol | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> Self:
        """Opens a store and keeps checkpoints in it. Use it as a context manager, which closes the store.

        Args:
            conn_string: The URL of a store, such as `sqlite:agent.db` or `postgres://…`. A path without a scheme is an
                SQLite file and `:memory:` a store in memory, as for LangGraph's own savers.
            namespace: As in the constructor.
            serde: As in the constructor.
            cache_bytes: As in the constructor.
        """
        store = Store.open(store_url(conn_string))
        saver = cls(store, namespace=namespace, serde=serde, cache_bytes=cache_bytes)
        saver._owns_store = True
        return saver

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
        """Closes the store, if the saver opened it."""
        if self._owns_store:
            self.store.close()

    async def aclose(self) -> None:
        """Closes the store, if the saver opened it."""
        if self._owns_store:
            await asyncio.to_thread(self.store.close)

    def setup(self) -> None:
        """Does nothing: a store has no tables to create. It is there because other savers need it."""

    async def asetup(self) -> None:
        """Does nothing, as `setup`."""

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> BaseCheckpointSaver[str]:
        """Returns a saver on the same rows that reads more types of values."""
        other = super().with_allowlist(extra_allowlist)
        if other is not self and isinstance(other, TreeholdSaver):
            # Values that one serializer may read are not handed to users of the other.
            other._owns_store = False
            other._open()
        return other

    # Checkpoints.

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Returns a checkpoint with its pending writes, or the latest of its namespace.

        Cost: two reads, and one for the values that are not in the cache. With sessions, two more at the first use of a thread,
        and up to six more where others keep rows in the namespace that an earlier version had for it.
        """
        return run(self._load(config), self.store)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Returns a checkpoint, as `get_tuple`."""
        return await arun(self._load(config), self.store)

    def _load(self, config: RunnableConfig) -> Steps[CheckpointTuple | None]:
        place = _place(config)
        threads = yield from self._of(config)
        return (yield from threads.load(*place))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Lists checkpoints, newest first: of one namespace, of all namespaces of a thread, or of all threads.

        Cost: one read for each 50 checkpoints of a namespace, plus their values. Without a namespace, all keys of the
        thread are read first; without a thread, those of all threads. To find these, a saver with sessions also lists all
        namespaces of the store, 1,000 with each read.
        """
        listing = self._listing(config, filter, before, limit)
        while not listing.is_done:
            yield from run(listing.page(), self.store)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Lists checkpoints, as `list`."""
        listing = self._listing(config, filter, before, limit)
        while not listing.is_done:
            for found in await arun(listing.page(), self.store):
                yield found

    def _listing(
        self,
        config: RunnableConfig | None,
        metadata: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Listing:
        configurable = _configurable(config)
        thread_id = _thread_id(config) if config else None

        def find() -> Steps[Sequence[Threads]]:
            if config:
                return [(yield from self._of(config))]
            return (yield from self._roots.all())

        return Listing(
            find=find,
            thread_id=thread_id,
            checkpoint_ns=_optional_text(configurable, "checkpoint_ns"),
            checkpoint_id=_optional_text(configurable, "checkpoint_id") or None,
            before_id=(_optional_text(_configurable(before), "checkpoint_id") or None) if before else None,
            metadata=metadata or {},
            limit=limit,
        )

    def put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        """Stores a checkpoint that follows the one in `config`, and returns the configuration that names it.

        Cost: one commit of the record and of what changed in the values since the checkpoint that it follows; a read of
        that one if this saver neither stored nor read it.
        """
        put = self._put(config, checkpoint, metadata, new_versions)
        run(self._put_steps(config, put), self.store)
        return config_of(put.thread_id, put.checkpoint_ns, checkpoint["id"])

    async def aput(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        """Stores a checkpoint, as `put`."""
        put = self._put(config, checkpoint, metadata, new_versions)
        await arun(self._put_steps(config, put), self.store)
        return config_of(put.thread_id, put.checkpoint_ns, checkpoint["id"])

    def _put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> Put:
        thread_id, checkpoint_ns, parent_id = _place(config)
        checkpoint_id: Any = checkpoint.get("id")
        if not isinstance(checkpoint_id, str):
            raise InvalidArgument("the checkpoint has no id; set `id` to a text that sorts after that of its parent")
        return Put(
            thread_id,
            checkpoint_ns,
            parent_id,
            cast("Mapping[str, Any]", checkpoint),
            cast("Mapping[str, Any]", get_checkpoint_metadata(config, metadata)),
            new_versions,
        )

    def _put_steps(self, config: RunnableConfig, put: Put) -> Steps[None]:
        session = None if self._sessions is None else self._sessions(config)
        threads = yield from self._roots.of(put.thread_id, session)
        yield from threads.put(put) if session is None else threads.put_with_files(put, session)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Stores the writes of a task on a checkpoint in one commit, all or none.

        A write that is stored already stays as it is; errors, interrupts and the like replace earlier ones. The
        checkpoint itself may be stored later.
        """
        run(self._put_writes(config, writes, task_id, task_path), self.store)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Stores the writes of a task, as `put_writes`."""
        await arun(self._put_writes(config, writes, task_id, task_path), self.store)

    def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Steps[None]:
        place = _written_place(config)
        threads = yield from self._of(config)
        yield from threads.put_writes(*place, writes, task_id, task_path)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Returns, for each channel, its nearest stored value among the ancestors and the writes since.

        Cost: a read for every 64 ancestors of a thread without branches, two for their writes, one for the values.
        """
        if not channels:
            return {}
        return run(self._history(config, channels), self.store)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Returns the history of delta channels, as `get_delta_channel_history`."""
        if not channels:
            return {}
        return await arun(self._history(config, channels), self.store)

    def _history(self, config: RunnableConfig, channels: Sequence[str]) -> Steps[dict[str, DeltaChannelHistory]]:
        place = _place(config)
        threads = yield from self._of(config)
        return (yield from _history.history(threads, *place, channels))

    # Files.

    def files_at(self, config: RunnableConfig) -> Backend:
        """Returns the files as they were at a checkpoint, read-only.

        Raises:
            NotFound: No checkpoint of the files belongs to it.
        """
        session = self._session(config)
        return session.history(_found(config, session.checkpoints(label=self._label(config), limit=1)))

    async def afiles_at(self, config: RunnableConfig) -> Backend:
        """Returns the files as they were at a checkpoint, as `files_at`."""
        session = self._session(config)
        return await session.ahistory(_found(config, await session.acheckpoints(label=self._label(config), limit=1)))

    def restore_files(self, config: RunnableConfig) -> None:
        """Restores the files of a checkpoint, before a graph goes on from it. Nothing is lost: it is a new checkpoint.

        Raises:
            NotFound: No checkpoint of the files belongs to it.
        """
        session = self._session(config)
        session.restore(_found(config, session.checkpoints(label=self._label(config), limit=1)))

    async def arestore_files(self, config: RunnableConfig) -> None:
        """Restores the files of a checkpoint, as `restore_files`."""
        session = self._session(config)
        await session.arestore(_found(config, await session.acheckpoints(label=self._label(config), limit=1)))

    def _session(self, config: RunnableConfig) -> Session:
        session = None if self._sessions is None else self._sessions(config)
        if session is None:
            raise InvalidArgument("the saver has no session for this thread; pass `sessions` to it")
        return session

    def _label(self, config: RunnableConfig) -> str:
        _, checkpoint_ns, checkpoint_id = _written_place(config)
        return label_of(checkpoint_ns, checkpoint_id)[0]

    # Removing and copying.

    def delete_thread(self, thread_id: str) -> None:
        """Removes everything of a thread, in one commit. A thread that does not exist is not an error.

        If `sessions` returns none for the id, the threads of this id are removed in all partitions, each in one commit. To find
        them, all namespaces of the store are listed, 1,000 with each read.
        """
        run(self._removal(_removal.delete_thread, str(thread_id)), self.store)

    async def adelete_thread(self, thread_id: str) -> None:
        """Removes a thread, as `delete_thread`."""
        await arun(self._removal(_removal.delete_thread, str(thread_id)), self.store)

    def _removal(self, remove: Removal, thread_id: str) -> Steps[None]:
        for threads in (yield from self._of_id(thread_id)):
            yield from remove(threads, thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Removes the checkpoints that runs made, and content that only they held.

        Values of delta channels in the remaining checkpoints stay what they were.
        """
        run(self._delete_for_runs(_run_ids(run_ids)), self.store)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Removes the checkpoints of runs, as `delete_for_runs`."""
        await arun(self._delete_for_runs(_run_ids(run_ids)), self.store)

    def _delete_for_runs(self, run_ids: Sequence[str]) -> Steps[None]:
        for threads in (yield from self._roots.all()):
            yield from _removal.delete_for_runs(threads, run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies a thread with all its checkpoints and writes. The copy appears in one commit, complete.

        Raises:
            AlreadyExists: The target has checkpoints.
            InvalidArgument: Several partitions have a thread with the id of the source, and `sessions` returns none for it.
        """
        run(self._copy_thread(str(source_thread_id), str(target_thread_id)), self.store)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies a thread, as `copy_thread`."""
        await arun(self._copy_thread(str(source_thread_id), str(target_thread_id)), self.store)

    def _copy_thread(self, source_id: str, target_id: str) -> Steps[None]:
        sources = yield from self._of_id(source_id)
        targets = yield from self._of_id(target_id)
        if len(sources) > 1:
            places = ", ".join("/".join(threads.root) for threads in sources)
            message = f"there is a thread `{source_id}` at each of {places}; copy it with a saver whose `namespace` is one of these"
            raise InvalidArgument(message)
        # A new thread lies at the namespace of the saver until it is used with a session.
        source, target = (found[0] if found else self._roots.plain for found in (sources, targets))
        yield from _removal.copy_thread(source, source_id, target, target_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Removes checkpoints of threads: all but the latest of each namespace (`keep_latest`), or all (`delete`).

        Values of delta channels in the remaining checkpoints stay what they were. Threads for whose id `sessions` returns none
        are found as by `delete_thread`.
        """
        remove = _removal_of(strategy)
        for thread_id in _thread_ids(thread_ids):
            run(self._removal(remove, thread_id), self.store)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Removes checkpoints of threads, as `prune`."""
        remove = _removal_of(strategy)
        for thread_id in _thread_ids(thread_ids):
            await arun(self._removal(remove, thread_id), self.store)

    def get_next_version(self, current: str | int | float | None, channel: None) -> str:
        """Returns a version that sorts after `current`. Versions of two branches differ."""
        number = int(str(current).partition(".")[0]) if current is not None else 0
        return f"{number + 1:032}.{random.random():016}"


def _namespace(namespace: Any) -> Namespace:
    if not are_texts(namespace) or not namespace or not all(namespace):
        raise InvalidArgument("the namespace of a saver must be a sequence of nonempty texts, such as ('acme', 'ada')")
    return tuple(namespace)


def _configurable(config: RunnableConfig | None) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", (config or {}).get("configurable") or {})


def _thread_id(config: RunnableConfig) -> str:
    thread_id = _configurable(config).get("thread_id")
    if thread_id is None:
        raise InvalidArgument("the configuration names no thread; pass {'configurable': {'thread_id': …}}")
    return str(thread_id)


def _optional_text(configurable: Mapping[str, Any], name: str) -> str | None:
    value = configurable.get(name)
    return None if value is None else str(value)


def _place(config: RunnableConfig) -> tuple[str, str, str | None]:
    """Returns the thread, the checkpoint namespace and the checkpoint that a configuration names."""
    configurable = _configurable(config)
    checkpoint_ns = _optional_text(configurable, "checkpoint_ns") or ""
    return _thread_id(config), checkpoint_ns, _optional_text(configurable, "checkpoint_id") or None


def _written_place(config: RunnableConfig) -> tuple[str, str, str]:
    thread_id, checkpoint_ns, checkpoint_id = _place(config)
    if checkpoint_id is None:
        raise InvalidArgument("the configuration names no checkpoint; pass the one that `put` returned")
    return thread_id, checkpoint_ns, checkpoint_id


def _found(config: RunnableConfig, checkpoints: Sequence[FilesCheckpoint]) -> str:
    if not checkpoints:
        raise NotFound(f"no files were saved with the checkpoint `{_configurable(config).get('checkpoint_id')}`")
    return checkpoints[0].id


def _run_ids(run_ids: Sequence[str]) -> list[str]:
    if isinstance(run_ids, str):
        raise InvalidArgument("run_ids must be a sequence of run ids; put the id into a list")
    return [str(run_id) for run_id in run_ids]


def _thread_ids(thread_ids: Sequence[str]) -> list[str]:
    if isinstance(thread_ids, str):
        raise InvalidArgument("thread_ids must be a sequence of thread ids; put the id into a list")
    return [str(thread_id) for thread_id in thread_ids]


def _removal_of(strategy: str) -> Removal:
    match strategy:
        case "keep_latest":
            return _removal.keep_latest
        case "delete":
            return _removal.delete_thread
        case _:
            pass
    raise InvalidArgument(f"`{strategy}` is not a strategy; use `keep_latest` or `delete`")
