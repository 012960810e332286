"""The checkpoints of savers, as records to move."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from treehold import Corrupt, InvalidArgument
from treehold._io import Steps, run
from treehold.langgraph import TreeholdSaver
from treehold.langgraph import _keys as keys
from treehold.langgraph._records import decode_record
from treehold.langgraph._roots import holding
from treehold.langgraph._threads import Put, StoredWrite, Threads, config_of

from ._compare import are_same
from ._engine import Target
from ._sql import Database, PostgresDatabase, foreign_errors

ROWS_AT_ONCE = 500
"""How many keys are read at once. Checkpoints are read one by one, because one may be large."""


@dataclass(frozen=True, slots=True)
class Write:
    """A pending write."""

    task_id: str
    index: int
    channel: str
    task_path: str
    value: Any


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A checkpoint with its pending writes, or the writes of a checkpoint that was never stored."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    parent_id: str | None
    checkpoint: Mapping[str, Any] | None
    metadata: Mapping[str, Any]
    writes: Mapping[tuple[str, int], Write]

    @property
    def place(self) -> str:
        """The ids that name it."""
        return f"the checkpoint {self.checkpoint_id!r} of thread {self.thread_id!r}, namespace {self.checkpoint_ns!r}"

    @property
    def is_expired(self) -> bool:
        """Checkpoints do not expire."""
        return False

    @property
    def parts(self) -> dict[str, int]:
        """The pending writes and the values of channels."""
        counts = {"writes": len(self.writes)}
        if self.checkpoint is not None:
            counts["values"] = len(self.checkpoint["channel_values"])
            counts["versions"] = len(self.checkpoint["channel_versions"])
        return counts

    @property
    def config(self) -> RunnableConfig:
        """The configuration that names it."""
        return config_of(self.thread_id, self.checkpoint_ns, self.checkpoint_id)


Place = tuple[str, str, str]


class Checkpoints(Target[CheckpointRecord]):
    """The checkpoints of a saver."""

    serde: SerializerProtocol

    @abstractmethod
    def places(self) -> Iterator[Place]:
        """Lists the places of checkpoints, and of writes without one, each once."""

    @abstractmethod
    def tuple_at(self, place: Place) -> CheckpointTuple | None:
        """Reads a checkpoint."""

    @abstractmethod
    def writes_at(self, place: Place) -> dict[tuple[str, int], Write]:
        """Reads the pending writes of a checkpoint."""

    def batches(self, size: int) -> Iterator[list[CheckpointRecord]]:
        for place in self.places():
            record = self._read(place)
            if record is not None:
                yield [record]

    def find(self, records: Sequence[CheckpointRecord]) -> list[CheckpointRecord | None]:
        return [self._read((record.thread_id, record.checkpoint_ns, record.checkpoint_id)) for record in records]

    def is_empty(self) -> bool:
        return next(self.places(), None) is None

    def check(self, record: CheckpointRecord) -> None:
        for what in record.checkpoint, record.metadata, *(write.value for write in record.writes.values()):
            try:
                self.serde.dumps_typed(what)
            except Exception as error:
                raise InvalidArgument(f"{record.place} cannot be serialized: {error}; pass a serializer that can") from error

    def difference(self, record: CheckpointRecord, found: CheckpointRecord) -> str | None:
        if record.parent_id != found.parent_id:
            return "the parents differ"
        if (record.checkpoint is None) != (found.checkpoint is None):
            return "one of them has only pending writes"
        if record.checkpoint is not None and found.checkpoint is not None:
            for name in record.checkpoint.keys() | found.checkpoint.keys():
                if not are_same(record.checkpoint.get(name), found.checkpoint.get(name), self.serde):
                    return f"`{name}` differs"
        if not are_same(dict(record.metadata), dict(found.metadata), self.serde):
            return "the metadata differ"
        if record.writes.keys() != found.writes.keys() or not self._are_writes_within(found, record):
            return "the pending writes differ"
        return None

    def is_part(self, record: CheckpointRecord, found: CheckpointRecord) -> bool:
        # Savers store a checkpoint and the writes of each task one after the other.
        if len(found.writes) >= len(record.writes) or not self._are_writes_within(found, record):
            return False
        none: dict[tuple[str, int], Write] = {}
        return found.checkpoint is None or self.difference(_with(record, none), _with(found, none)) is None

    def _are_writes_within(self, found: CheckpointRecord, record: CheckpointRecord) -> bool:
        for place, write in found.writes.items():
            other = record.writes.get(place)
            if other is None or (write.channel, write.task_path) != (other.channel, other.task_path):
                return False
            if not are_same(write.value, other.value, self.serde):
                return False
        return True

    def _read(self, place: Place) -> CheckpointRecord | None:
        found, writes = self.tuple_at(place), self.writes_at(place)
        if found is None:
            return CheckpointRecord(*place, None, None, {}, writes) if writes else None
        parent = None if found.parent_config is None else found.parent_config.get("configurable", {}).get("checkpoint_id")
        checkpoint = cast("Mapping[str, Any]", found.checkpoint)
        return CheckpointRecord(*place, parent, checkpoint, cast("Mapping[str, Any]", found.metadata), writes)


class ForeignCheckpoints(Checkpoints):
    """The checkpoints of LangGraph's own savers, which are written through their methods."""

    def __init__(self, saver: BaseCheckpointSaver[Any], name: str) -> None:
        self.name = name
        self.saver = saver
        self.serde = saver.serde

    def tuple_at(self, place: Place) -> CheckpointTuple | None:
        with foreign_errors(self.name):
            return self.saver.get_tuple(config_of(*place))

    def check(self, record: CheckpointRecord) -> None:
        super().check(record)
        _calls(record)

    def write(self, records: Sequence[CheckpointRecord]) -> None:
        for record in records:
            calls = _calls(record)
            with foreign_errors(self.name):
                if record.checkpoint is not None:
                    self._put(record, record.checkpoint)
                for (task_id, task_path), writes in calls.items():
                    self.saver.put_writes(record.config, writes, task_id, task_path)

    def _put(self, record: CheckpointRecord, checkpoint: Mapping[str, Any]) -> None:
        config = config_of(record.thread_id, record.checkpoint_ns, record.parent_id or "")
        if record.parent_id is None:
            del config["configurable"]["checkpoint_id"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
        versions: Mapping[str, Any] = checkpoint["channel_versions"]
        new = {channel: version for channel, version in versions.items() if channel in checkpoint["channel_values"]}
        stored = cast("Checkpoint", {**checkpoint, "channel_values": dict(checkpoint["channel_values"])})
        try:
            self.saver.put(config, stored, cast("CheckpointMetadata", dict(record.metadata)), new)
        except TypeError as error:
            raise InvalidArgument(f"{record.place} cannot be written as JSON: {error}; {self.name} needs it") from error


class SqlCheckpoints(ForeignCheckpoints):
    """The checkpoints in the tables of LangGraph's SQLite or PostgreSQL saver."""

    def __init__(self, saver: BaseCheckpointSaver[Any], database: Database) -> None:
        super().__init__(saver, database.name)
        self._database = database
        self._table, value = ("checkpoint_writes", "blob") if isinstance(database, PostgresDatabase) else ("writes", "value")
        # Savers of old versions have no paths.
        path = "task_path" if "task_path" in database.columns(self._table) else "''"
        self._writes = f"SELECT task_id, idx, channel, {path}, type, {value} FROM {self._table}"

    def places(self) -> Iterator[Place]:
        names = "thread_id, checkpoint_ns, checkpoint_id"
        for row in self._database.stream(f"SELECT {names} FROM checkpoints ORDER BY {names}"):
            yield row[0], row[1], row[2]
        same = " AND ".join(f"c.{name} = w.{name}" for name in names.split(", "))
        orphans = f"SELECT DISTINCT {names} FROM {self._table} w WHERE NOT EXISTS (SELECT 1 FROM checkpoints c WHERE {same})"
        for row in self._database.stream(f"{orphans} ORDER BY {names}"):
            yield row[0], row[1], row[2]

    def writes_at(self, place: Place) -> dict[tuple[str, int], Write]:
        where = "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
        found: dict[tuple[str, int], Write] = {}
        for task_id, index, channel, path, kind, payload in self._database.select(f"{self._writes} {where}", place):
            found[task_id, index] = Write(task_id, index, channel, path, self.serde.loads_typed((kind, payload)))
        return found


class MemoryCheckpoints(ForeignCheckpoints):
    """The checkpoints of LangGraph's saver in memory."""

    def __init__(self, saver: InMemorySaver) -> None:
        super().__init__(saver, "the saver in memory")
        self._memory = saver

    def places(self) -> Iterator[Place]:
        stored = self._memory.storage.items()
        found = {(thread, ns, name) for thread, spaces in stored for ns, made in spaces.items() for name in made}
        yield from sorted(found | {place for place, writes in self._memory.writes.items() if writes})

    def tuple_at(self, place: Place) -> CheckpointTuple | None:
        # Reading an absent thread would add it.
        thread_id, checkpoint_ns, _ = place
        if checkpoint_ns not in self._memory.storage.get(thread_id, {}):
            return None
        return super().tuple_at(place)

    def writes_at(self, place: Place) -> dict[tuple[str, int], Write]:
        found: dict[tuple[str, int], Write] = {}
        for (task_id, index), (_, channel, typed, path) in self._memory.writes.get(place, {}).items():
            found[task_id, index] = Write(task_id, index, channel, path, self.serde.loads_typed(typed))
        return found


class TreeholdCheckpoints(Checkpoints):
    """The checkpoints of our saver, also of threads with sessions. Each is written together with its writes, in one commit."""

    def __init__(self, saver: TreeholdSaver) -> None:
        self.name = f"treehold {saver.store.name} at {'/'.join(saver.namespace)}"
        self.serde = saver.serde
        self._saver = saver
        self._store = saver.store
        self._roots: list[Threads] | None = None
        self._last: tuple[str, Threads] | None = None
        """The thread that was looked for last, because its checkpoints follow each other."""

    def _everywhere(self) -> list[Threads]:
        # The command has no sessions, but threads may.
        self._roots = run(self._saver._roots.all(everywhere=True), self._store)  # pyright: ignore[reportPrivateUsage]
        return self._roots

    def places(self) -> Iterator[Place]:
        roots = self._everywhere()
        known: set[str] = set()
        for threads in roots:
            after: tuple[str, ...] | None = None
            while True:
                spaces, after = run(threads.namespaces(after), self._store)
                for space in spaces:
                    thread_id = run(threads.thread_id(space), self._store)
                    if thread_id is None:
                        raise Corrupt(f"the thread of {space!r} has no name; restore the store from a backup")
                    if len(roots) > 1 and self._has_checkpoints(space):
                        if thread_id in known:
                            raise _several(thread_id)
                        known.add(thread_id)
                    self._last = thread_id, threads
                    yield from self._of_thread(space, thread_id)
                if after is None:
                    break

    def _has_checkpoints(self, space: tuple[str, ...]) -> bool:
        return any(self._store.scan(space, prefix=kind, limit=1, with_values=False).rows for kind in (keys.CHECKPOINT, keys.WRITE))

    def _of(self, thread_id: str) -> Threads:
        """Returns where a thread lies, or a new one is to be put."""
        if self._last is not None and self._last[0] == thread_id:
            return self._last[1]
        roots = self._everywhere() if self._roots is None else self._roots
        found = run(self._find(thread_id, roots), self._store)
        self._last = thread_id, found
        return found

    def _find(self, thread_id: str, roots: Sequence[Threads]) -> Steps[Threads]:
        found = yield from self._saver._known(thread_id)  # pyright: ignore[reportPrivateUsage]
        if found is not None:
            return found
        # The first root is that of threads without a session.
        held = roots if len(roots) == 1 else (yield from holding(roots, thread_id))
        if len(held) > 1:
            raise _several(thread_id)
        return held[0] if held else roots[0]

    def _of_thread(self, space: tuple[str, ...], thread_id: str) -> Iterator[Place]:
        cursor: str | None = None
        while True:
            # The values of channels lie elsewhere, so a page of records is small.
            page = self._store.scan(space, prefix=keys.CHECKPOINT, after=cursor, limit=50)
            for row in page.rows:
                record = decode_record(self.serde, row)
                yield thread_id, record.checkpoint_ns, record.checkpoint_id
            cursor = page.next
            if cursor is None:
                break
        last: tuple[str, str] | None = None
        while True:
            page = self._store.scan(space, prefix=keys.WRITE, after=cursor, limit=ROWS_AT_ONCE, with_values=False)
            for row in page.rows:
                ns, order = row.key.split(keys.SEPARATOR)[1:3]
                if (ns, order) == last:
                    continue
                last = ns, order
                key = keys.SEPARATOR.join((keys.CHECKPOINT[0], ns, order))
                if self._store.get_many(space, [key], with_values=False)[0] is None:
                    yield thread_id, keys.part_from(ns), keys.descending_from(order)
            cursor = page.next
            if cursor is None:
                return

    def tuple_at(self, place: Place) -> CheckpointTuple | None:
        return run(self._of(place[0]).load(*place), self._store)

    def writes_at(self, place: Place) -> dict[tuple[str, int], Write]:
        thread_id, checkpoint_ns, checkpoint_id = place
        prefix = keys.writes_prefix(checkpoint_ns, checkpoint_id)
        threads = self._of(thread_id)
        rows = run(threads.rows_of(threads.namespace(thread_id), prefix), self._store)
        found: dict[tuple[str, int], Write] = {}
        for write in map(StoredWrite.of_row, rows):
            value = self.serde.loads_typed(write.typed)
            found[write.task_id, write.index] = Write(write.task_id, write.index, write.channel, write.task_path, value)
        return found

    def check(self, record: CheckpointRecord) -> None:
        super().check(record)
        keys.descending(record.checkpoint_id)
        keys.component(record.thread_id)

    def write(self, records: Sequence[CheckpointRecord]) -> None:
        for record in records:
            run(self._steps(record), self._store)

    def _steps(self, record: CheckpointRecord) -> Steps[None]:
        threads = self._of(record.thread_id)
        yield from threads.put_with_writes(
            record.thread_id,
            record.checkpoint_ns,
            record.checkpoint_id,
            None
            if record.checkpoint is None
            else Put(
                record.thread_id,
                record.checkpoint_ns,
                record.parent_id,
                record.checkpoint,
                record.metadata,
                record.checkpoint["channel_versions"],
            ),
            [
                StoredWrite(write.task_id, write.channel, write.task_path, write.index, self.serde.dumps_typed(write.value))
                for write in record.writes.values()
            ],
        )


def _several(thread_id: str) -> InvalidArgument:
    message = f"several partitions have a thread {thread_id!r}; move each by its own `namespace`, such as"
    return InvalidArgument(f"{message} acme/ada/langgraph/checkpoints")


def _with(record: CheckpointRecord, writes: Mapping[tuple[str, int], Write]) -> CheckpointRecord:
    return CheckpointRecord(
        record.thread_id,
        record.checkpoint_ns,
        record.checkpoint_id,
        record.parent_id,
        record.checkpoint,
        record.metadata,
        writes,
    )


def _calls(record: CheckpointRecord) -> dict[tuple[str, str], list[tuple[str, Any]]]:
    """Returns the calls of `put_writes` that store the writes with their numbers.

    The method numbers writes by position, but for channels such as errors and interrupts. So where a number is free,
    one of those stands.
    """
    tasks: dict[tuple[str, str], list[Write]] = {}
    for write in record.writes.values():
        tasks.setdefault((write.task_id, write.task_path), []).append(write)
    calls: dict[tuple[str, str], list[tuple[str, Any]]] = {}
    for task, writes in tasks.items():
        special = [(write.channel, write.value) for write in writes if write.channel in WRITES_IDX_MAP]
        usual = {write.index: (write.channel, write.value) for write in writes if write.channel not in WRITES_IDX_MAP}
        last = max(usual, default=-1)
        pending = list(special)
        call: list[tuple[str, Any]] = []
        for index in range(last + 1):
            if index in usual:
                call.append(usual[index])
            elif special:
                call.append(pending.pop() if pending else special[0])
            else:
                message = f"{record.place} has a write {last} of task {task[0]!r} and none before; savers of LangGraph cannot"
                raise InvalidArgument(f"{message} store that; remove it first")
        calls[task] = [*call, *pending]
    return calls
