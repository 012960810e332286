"""Reading and writing the checkpoints of threads, as steps over the rows of a store."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointTuple,
    PendingWrite,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from treehold import Batch, Conflict, Corrupt, InvalidArgument, Row, Session
from treehold._io import Commit, CommitWithFiles, GetMany, Namespace, Namespaces, Scan, Steps, Work

from . import _keys as keys
from ._content import (
    CHUNKED_BYTES_MIN,
    NAME_BYTES,
    PAGE_TYPE,
    ContentCodec,
    Donor,
    Encoded,
    Inline,
    Piece,
    Reference,
    Run,
    Tree,
    Typed,
    Whole,
    split_names,
    text_of_name,
)
from ._plain import approximate_size
from ._records import decode_record, delta_counters, encode_record

ATTEMPTS = 16
"""How often steps start again when other writers get in between."""

PAGE_ROWS = 500
"""How many rows are read at once without their bodies."""

PAGE_CHECKPOINTS = 50
"""How many checkpoints are read at once."""

PAGE_CONTENTS = 512
"""How many rows of content are read at once."""

LABEL_BYTES_MAX = 200
"""The longest id in a label of a checkpoint of files."""

METADATA_CHARACTERS_MAX = 1000
"""The most of an id in the metadata of a checkpoint of files."""

BASES_MAX = 1024
"""How many checkpoints are remembered as the base of the next."""


@dataclass(frozen=True, slots=True)
class Base:
    """What a put needs to know of the checkpoint that it follows."""

    channel_versions: Mapping[str, Any]
    references: Mapping[str, Reference]
    donors: Mapping[str, Reference]
    run_id: str | None
    version: int


@dataclass(frozen=True, slots=True)
class Put:
    """A checkpoint to store."""

    thread_id: str
    checkpoint_ns: str
    parent_id: str | None
    checkpoint: Mapping[str, Any]
    metadata: Mapping[str, Any]
    new_versions: ChannelVersions


@dataclass(frozen=True, slots=True)
class StoredWrite:
    """A pending write, as it is stored."""

    task_id: str
    channel: str
    task_path: str
    index: int
    typed: Typed

    @property
    def order(self) -> tuple[str, str, int]:
        """Sorts the writes of a checkpoint as the graph applies them."""
        return self.task_path, self.task_id, self.index

    @classmethod
    def of_row(cls, row: Row) -> StoredWrite:
        """Reads a row; one without a body has no value."""
        task_id, channel, task_path, index, kind = json.loads(row.meta)
        return cls(task_id, channel, task_path, index, (kind, row.body))

    def meta(self) -> bytes:
        """Returns the metadata of the row."""
        return json.dumps([self.task_id, self.channel, self.task_path, self.index, self.typed[0]]).encode("utf-8")


class Missing(Exception):
    """Content that a checkpoint names is not there, because the checkpoint was removed meanwhile, or is damaged."""


class Bases:
    """The checkpoints that puts relied on or made last."""

    def __init__(self) -> None:
        self._bases: OrderedDict[tuple[Namespace, str], Base] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, namespace: Namespace, key: str) -> Base | None:
        """Returns what is known of a checkpoint."""
        with self._lock:
            return self._bases.get((namespace, key))

    def put(self, namespace: Namespace, key: str, base: Base) -> None:
        """Takes note of a checkpoint, in place of the one noted first."""
        with self._lock:
            self._bases[namespace, key] = base
            self._bases.move_to_end((namespace, key))
            while len(self._bases) > BASES_MAX:
                self._bases.popitem(last=False)

    def forget(self, namespace: Namespace, key: str) -> None:
        """Drops what is known of a checkpoint."""
        with self._lock:
            self._bases.pop((namespace, key), None)


class Threads:
    """The threads beneath one root. Their namespaces and that of their runs are in one partition."""

    def __init__(self, root: Namespace, codec: ContentCodec, bases: Bases) -> None:
        self.root = root
        self.codec = codec
        self._bases = bases

    @property
    def serde(self) -> SerializerProtocol:
        """The serializer."""
        return self.codec.serde

    @property
    def runs(self) -> Namespace:
        """The namespace that lists the threads of each run."""
        return (*self.root, keys.RUNS)

    def namespace(self, thread_id: str) -> Namespace:
        """Returns the namespace of a thread."""
        return (*self.root, keys.component(thread_id))

    # Puts.

    def put(self, put: Put) -> Steps[None]:
        """Stores a checkpoint in one commit."""
        namespace = self.namespace(put.thread_id)
        parent_key = None if put.parent_id is None else keys.checkpoint_key(put.checkpoint_ns, put.parent_id)
        for attempt in range(ATTEMPTS):
            # The content that the base holds stays stored while the base does. After lost races, rely on nothing.
            base = None
            if parent_key is not None and attempt < ATTEMPTS - 1:
                base = yield from self._base(namespace, parent_key)
            batch, made = yield from self.batch(put, namespace, base)
            if base is not None and parent_key is not None:
                batch.require(namespace, parent_key, base.version)
            try:
                versions: list[int] = yield Commit(batch)
            except Conflict:
                self._bases.forget(namespace, cast("str", parent_key))
                continue
            self.remember(put, namespace, made, versions[0])
            return
        raise AssertionError("a put without a base has no conditions")

    def put_with_files(self, put: Put, session: Session) -> Steps[None]:
        """Stores a checkpoint and the files of a session in one commit."""
        namespace = self.namespace(put.thread_id)
        key = keys.checkpoint_key(put.checkpoint_ns, put.checkpoint["id"])
        parent_key = None if put.parent_id is None else keys.checkpoint_key(put.checkpoint_ns, put.parent_id)
        base = None
        if parent_key is not None:
            self._bases.forget(namespace, parent_key)
            base = yield from self._base(namespace, parent_key)
        batch, made = yield from self.batch(put, namespace, base)
        label, metadata = label_of(put.checkpoint_ns, put.checkpoint["id"])
        yield CommitWithFiles(session, label, metadata, batch)
        rows: Sequence[Row | None] = yield GetMany(namespace, [key, parent_key or key], with_values=False)
        if rows[0] is None:
            message = "the saver and the session keep their rows in different stores; make the saver with `session.store`"
            raise InvalidArgument(message)
        version = rows[0].version
        if base is not None and (rows[1] is None or rows[1].version != base.version):
            # Such a commit has no conditions. The checkpoint that it relies on was removed, so rely on nothing.
            batch, made = yield from self.batch(put, namespace, None)
            versions: list[int] = yield Commit(batch)
            version = versions[0]
        self.remember(put, namespace, made, version)

    def batch(self, put: Put, namespace: Namespace, base: Base | None) -> Steps[tuple[Batch, Base]]:
        """Makes the batch that stores a checkpoint. Its first put is the record."""
        values: Mapping[str, Any] = put.checkpoint["channel_values"]
        versions: Mapping[str, Any] = put.checkpoint["channel_versions"]
        deltas = delta_counters(put.metadata)
        references: dict[str, Reference] = {}
        donors: dict[str, Reference] = {}
        contents: dict[bytes, Typed] = {}
        for channel in {**versions, **values}:
            known = base.references.get(channel) if base else None
            last = known or (base.donors.get(channel) if base else None)
            is_new = channel in put.new_versions or base is None or not _has_version(base, channel, versions.get(channel))
            if channel in values and (is_new or known is None):
                encoded = yield from self._encode(namespace, values[channel], last)
                references[channel] = encoded.reference
                contents.update(encoded.rows)
            elif known is not None and not is_new:
                references[channel] = known
            elif last is not None and (last.is_snapshot or channel in deltas):
                donors[channel] = last
        checkpoint = {name: field for name, field in put.checkpoint.items() if name != "channel_values"}
        meta, body = encode_record(
            self.serde, put.checkpoint_ns, put.parent_id, checkpoint, put.metadata, references, donors
        )
        batch = Batch()
        batch.put(namespace, keys.checkpoint_key(put.checkpoint_ns, checkpoint["id"]), body, meta=meta)
        for name, (kind, payload) in contents.items():
            batch.put(namespace, keys.content_key(text_of_name(name)), payload, meta=kind.encode("utf-8"))
        self._name_thread(batch, put.thread_id, namespace)
        run_id = put.metadata.get("run_id")
        if isinstance(run_id, str) and (base is None or base.run_id != run_id):
            self.name_run(batch, namespace, run_id)
        made = Base(versions, references, donors, run_id if isinstance(run_id, str) else None, 0)
        return batch, made

    def put_with_writes(
        self,
        thread_id: str,
        checkpoint_ns: str,
        checkpoint_id: str,
        put: Put | None,
        writes: Sequence[StoredWrite],
    ) -> Steps[None]:
        """Stores a checkpoint with its pending writes as they are, in one commit; without `put`, only the writes."""
        namespace = self.namespace(thread_id)
        prefix = keys.writes_prefix(checkpoint_ns, checkpoint_id)
        parent_key = None
        if put is not None and put.parent_id is not None:
            parent_key = keys.checkpoint_key(checkpoint_ns, put.parent_id)
        for attempt in range(ATTEMPTS):
            base, made, batch = None, None, Batch()
            if put is not None:
                if parent_key is not None and attempt < ATTEMPTS - 1:
                    base = yield from self._base(namespace, parent_key)
                batch, made = yield from self.batch(put, namespace, base)
            else:
                self._name_thread(batch, thread_id, namespace)
            if base is not None and parent_key is not None:
                batch.require(namespace, parent_key, base.version)
            for write in writes:
                key = keys.write_key(prefix, write.task_id, write.index)
                batch.put(namespace, key, write.typed[1], meta=write.meta())
            try:
                versions: list[int] = yield Commit(batch)
            except Conflict:
                self._bases.forget(namespace, cast("str", parent_key))
                continue
            if put is not None and made is not None:
                self.remember(put, namespace, made, versions[0])
            return
        raise AssertionError("a put without a base has no conditions")

    def remember(self, put: Put, namespace: Namespace, made: Base, version: int) -> None:
        """Takes note of a stored checkpoint, because the next one probably follows it."""
        made = Base(dict(made.channel_versions), made.references, made.donors, made.run_id, version)
        self._bases.put(namespace, keys.checkpoint_key(put.checkpoint_ns, put.checkpoint["id"]), made)

    def _name_thread(self, batch: Batch, thread_id: str, namespace: Namespace) -> None:
        if keys.is_digest(namespace[-1]):
            batch.put(namespace, keys.THREAD, thread_id.encode("utf-8"))

    def name_run(self, batch: Batch, namespace: Namespace, run_id: str) -> None:
        """Adds the rows by which the checkpoints of a run are found."""
        batch.put(namespace, keys.RUN + keys.part(run_id, "run id"), b"")
        batch.put(self.runs, keys.part(run_id, "run id") + keys.SEPARATOR + namespace[-1], b"")

    def _base(self, namespace: Namespace, key: str) -> Steps[Base | None]:
        base = self._bases.get(namespace, key)
        if base is not None:
            return base
        rows: Sequence[Row | None] = yield GetMany(namespace, [key])
        if rows[0] is None:
            return None
        record = decode_record(self.serde, rows[0])
        versions = record.checkpoint["channel_versions"]
        base = Base(versions, record.references, record.donors, record.run_id, record.version)
        self._bases.put(namespace, key, base)
        return base

    def _encode(self, namespace: Namespace, value: Any, last: Reference | None) -> Steps[Encoded]:
        donor = yield from self._donor(namespace, last)
        size = approximate_size(value, CHUNKED_BYTES_MIN)
        is_long = size is None or size >= CHUNKED_BYTES_MIN
        encoded: Encoded = yield Work(lambda: self.codec.encode(value, donor), is_long)
        return encoded

    def _donor(self, namespace: Namespace, last: Reference | None) -> Steps[Donor]:
        """Returns the names of the content of an earlier value."""
        if isinstance(last, Whole):
            return Donor([last.name])
        if not isinstance(last, Tree):
            return Donor()
        if last.level == 0:
            return Donor(split_names(last.names))
        try:
            pages, runs = yield from self.pages(namespace, [last])
        except Missing:
            return Donor()
        chunks = [name for run in runs for name in pages[run]]
        return Donor(chunks, runs, frozenset(pages))

    # Content.

    def pages(
        self, namespace: Namespace, trees: Iterable[Tree], *, is_complete: bool = True
    ) -> Steps[tuple[dict[bytes, list[bytes]], list[bytes]]]:
        """Reads the pages of trees. Returns the names on each page, and the pages of chunks in order.

        Unless the result has to be complete, pages of chunks that are in the cache are left out.
        """
        found: dict[bytes, list[bytes]] = {}
        runs: list[bytes] = []
        for tree in trees:
            names = split_names(tree.names)
            for level in range(tree.level, 0, -1):
                cached = self.codec.cache.get(names)
                rows = yield from self._contents(namespace, [name for name in names if name not in cached])
                below: list[bytes] = []
                for name in names:
                    known = cached.get(name)
                    if not isinstance(known, Run):
                        found[name] = split_names(known if isinstance(known, bytes) else _page(rows, name))
                    elif is_complete:
                        found[name] = [chunk.name for chunk in known.chunks]
                    else:
                        continue
                    below.extend(found[name])
                self.codec.cache.put({name: typed[1] for name, typed in rows.items() if level > 1})
                if level == 1:
                    runs.extend(names)
                names = below
        return found, runs

    def values(self, namespace: Namespace, references: Mapping[str, Reference]) -> Steps[dict[str, Any]]:
        """Reads the values of channels."""
        trees = [place for place in references.values() if isinstance(place, Tree)]
        deep = [tree for tree in trees if tree.level > 0]
        pages, runs = yield from self.pages(namespace, deep, is_complete=False)
        flat = [name for tree in trees if tree.level == 0 for name in split_names(tree.names)]
        pieces: dict[bytes, Piece] = {}
        for name, cached in self.codec.cache.get([*runs, *flat]).items():
            if not isinstance(cached, bytes):
                pieces[name] = cached
        if any(run not in pieces and run not in pages for run in runs):
            # Somebody else's values took the place of a run in the cache since.
            pages, runs = yield from self.pages(namespace, deep)
        wanted = [place.name for place in references.values() if isinstance(place, Whole)]
        wanted.extend(name for name in flat if name not in pieces)
        wanted.extend(name for run in runs if run not in pieces for name in pages[run])
        contents = yield from self._contents(namespace, wanted)

        def assemble() -> dict[str, Any]:
            values: dict[str, Any] = {}
            made: dict[bytes, Piece | bytes] = {}
            for channel, place in references.items():
                if isinstance(place, Inline):
                    values[channel] = self.serde.loads_typed(place.typed)
                elif isinstance(place, Whole):
                    values[channel] = self.serde.loads_typed(contents[place.name])
                else:
                    parts = list(self._parts(place, pages, pieces, contents, made))
                    values[channel] = self.codec.value(place, parts)
            self.codec.cache.put(made)
            return values

        values: dict[str, Any] = yield Work(assemble, len(contents) > PAGE_CHECKPOINTS)
        return values

    def _parts(
        self,
        tree: Tree,
        pages: Mapping[bytes, Sequence[bytes]],
        pieces: dict[bytes, Piece],
        contents: Mapping[bytes, Typed],
        made: dict[bytes, Piece | bytes],
    ) -> Iterator[Piece]:
        """Returns the pieces of a tree, in order, and decodes those that were read."""
        names = split_names(tree.names)
        for _ in range(tree.level - 1):
            names = [name for page in names for name in pages[page]]
        for name in names:
            piece = pieces.get(name)
            if piece is None:
                if tree.level == 0:
                    piece = self.codec.chunk(tree.container, name, contents[name])
                else:
                    chunks = [self.codec.chunk(tree.container, chunk, contents[chunk]) for chunk in pages[name]]
                    piece = Run(name, chunks)
                pieces[name] = made[name] = piece
            yield piece

    def _contents(self, namespace: Namespace, names: Sequence[bytes]) -> Steps[dict[bytes, Typed]]:
        found: dict[bytes, Typed] = {}
        remaining = iter(dict.fromkeys(names))
        while some := list(islice(remaining, PAGE_CONTENTS)):
            rows: Sequence[Row | None] = yield GetMany(namespace, [keys.content_key(text_of_name(name)) for name in some])
            for name, row in zip(some, rows, strict=True):
                if row is None:
                    raise Missing
                found[name] = row.meta.decode("utf-8"), row.body
        return found

    # Reads.

    def load(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None) -> Steps[CheckpointTuple | None]:
        """Reads a checkpoint, or the latest of its namespace."""
        namespace = self.namespace(thread_id)
        failed_version: int | None = None
        while True:
            row = yield from self.row(namespace, checkpoint_ns, checkpoint_id)
            if row is None:
                return None
            try:
                return (yield from self.tuple_of(thread_id, row))
            except Missing:
                # Somebody removed the checkpoint meanwhile, unless it is still there.
                if row.version == failed_version:
                    raise Corrupt("content of a checkpoint is missing; restore the store from a backup") from None
                failed_version = row.version

    def row(self, namespace: Namespace, checkpoint_ns: str, checkpoint_id: str | None) -> Steps[Row | None]:
        """Reads the row of a checkpoint, or of the latest of its namespace."""
        if checkpoint_id is not None:
            rows: Sequence[Row | None] = yield GetMany(namespace, [keys.checkpoint_key(checkpoint_ns, checkpoint_id)])
            return rows[0]
        page = yield Scan(namespace, keys.namespace_prefix(keys.CHECKPOINT, checkpoint_ns), limit=1)
        return page.rows[0] if page.rows else None

    def tuple_of(self, thread_id: str, row: Row) -> Steps[CheckpointTuple]:
        """Reads all of a checkpoint, given its row."""
        record = decode_record(self.serde, row)
        namespace = self.namespace(thread_id)
        writes = yield from self.writes(namespace, record.checkpoint_ns, record.checkpoint_id)
        values = yield from self.values(namespace, record.references)
        self._bases.put(
            namespace,
            row.key,
            Base(
                dict(record.checkpoint["channel_versions"]),
                record.references,
                record.donors,
                record.run_id,
                record.version,
            ),
        )
        parent = None if record.parent_id is None else config_of(thread_id, record.checkpoint_ns, record.parent_id)
        return CheckpointTuple(
            config=config_of(thread_id, record.checkpoint_ns, record.checkpoint_id),
            checkpoint=cast("Checkpoint", {**record.checkpoint, "channel_values": values}),
            metadata=record.metadata,
            parent_config=parent,
            pending_writes=writes,
        )

    def writes(self, namespace: Namespace, checkpoint_ns: str, checkpoint_id: str) -> Steps[list[PendingWrite]]:
        """Reads the pending writes of a checkpoint, in the order in which the graph applies them."""
        prefix = keys.writes_prefix(checkpoint_ns, checkpoint_id)
        stored: list[StoredWrite] = []
        after: str | None = None
        while True:
            page = yield Scan(namespace, prefix, after)
            stored.extend(StoredWrite.of_row(row) for row in page.rows)
            after = page.next
            if after is None:
                break
        stored.sort(key=lambda write: write.order)
        return [(write.task_id, write.channel, self.serde.loads_typed(write.typed)) for write in stored]

    # Pending writes.

    def put_writes(
        self,
        thread_id: str,
        checkpoint_ns: str,
        checkpoint_id: str,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> Steps[None]:
        """Stores the writes of a task in one commit. A write that is stored already stays as it is, except those about
        the state of the task, such as interrupts."""
        namespace = self.namespace(thread_id)
        prefix = keys.writes_prefix(checkpoint_ns, checkpoint_id)
        stored: dict[str, StoredWrite] = {}
        for position, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, position)
            write = StoredWrite(task_id, channel, task_path, index, self.serde.dumps_typed(value))
            stored[keys.write_key(prefix, task_id, index)] = write
        while stored:
            batch = Batch()
            once = [key for key, write in stored.items() if write.index >= 0]
            for key in once:
                batch.require(namespace, key, None)
            for key, write in stored.items():
                batch.put(namespace, key, write.typed[1], meta=write.meta())
            self._name_thread(batch, thread_id, namespace)
            try:
                yield Commit(batch)
                return
            except Conflict:
                # Nothing removes a single write, so each round leaves fewer.
                rows: Sequence[Row | None] = yield GetMany(namespace, once, with_values=False)
                for key, row in zip(once, rows, strict=True):
                    if row is not None:
                        del stored[key]

    # Lists.

    def thread_id(self, namespace: Namespace) -> Steps[str | None]:
        """Returns the id of the thread in a namespace."""
        if not keys.is_digest(namespace[-1]):
            return namespace[-1]
        rows: Sequence[Row | None] = yield GetMany(namespace, [keys.THREAD])
        return None if rows[0] is None else rows[0].body.decode("utf-8")

    def namespaces(self, after: Namespace | None) -> Steps[tuple[list[Namespace], Namespace | None]]:
        """Returns a page of the namespaces of threads."""
        # Beneath a tenant are also the partitions of its users.
        prefix = self.root[:-1] if self.root[-1] == "" else self.root
        page = yield Namespaces(prefix, after)
        return [tuple(space) for space in page.namespaces if self.is_thread(space)], page.next

    def is_thread(self, namespace: Namespace) -> bool:
        """Returns whether a namespace is that of a thread."""
        return len(namespace) == len(self.root) + 1 and namespace[:-1] == self.root and namespace[-1] != keys.RUNS

    def keys_of(self, namespace: Namespace, prefix: str) -> Steps[list[str]]:
        """Lists the keys with a prefix."""
        found: list[str] = []
        after: str | None = None
        while True:
            page = yield Scan(namespace, prefix, after, limit=PAGE_ROWS, with_values=False)
            found.extend(row.key for row in page.rows)
            after = page.next
            if after is None:
                return found

    def rows_of(self, namespace: Namespace, prefix: str) -> Steps[list[Row]]:
        """Reads all rows with a prefix, with their bodies."""
        found: list[Row] = []
        after: str | None = None
        while True:
            page = yield Scan(namespace, prefix, after)
            found.extend(page.rows)
            after = page.next
            if after is None:
                return found


def label_of(checkpoint_ns: str, checkpoint_id: str) -> tuple[str, dict[str, str]]:
    """Returns the label and the metadata of the checkpoint of files that belongs to one of a graph."""
    name = f"{checkpoint_id} {checkpoint_ns}" if checkpoint_ns else checkpoint_id
    if len(name.encode("utf-8")) > LABEL_BYTES_MAX or not name.isprintable():
        name = sha256(name.encode("utf-8")).hexdigest()
    metadata = {"langgraph_checkpoint": checkpoint_id, "langgraph_namespace": checkpoint_ns}
    return f"langgraph {name}", {name: value[:METADATA_CHARACTERS_MAX] for name, value in metadata.items()}


def config_of(thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> RunnableConfig:
    """Returns the configuration that names a checkpoint."""
    return {
        "configurable": {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns, "checkpoint_id": checkpoint_id},
    }


def _has_version(base: Base, channel: str, version: Any) -> bool:
    known = base.channel_versions.get(channel)
    return type(known) is type(version) and bool(known == version)


def _page(rows: Mapping[bytes, Typed], name: bytes) -> bytes:
    kind, payload = rows[name]
    if kind != PAGE_TYPE or len(payload) % NAME_BYTES:
        raise Corrupt("a page of names is damaged; restore the store from a backup")
    return payload
