"""How the values of channels become rows, so that a checkpoint costs what changed.

A small value lies in the record of its checkpoint. A larger one is a row of *content*, named by its digest. A large dict
or list, such as the files or the messages of an agent, is split into *chunks* of some 32 KiB at places that depend on
what is stored there: a change, an insertion or a removal moves only the boundaries around it. Checkpoints share all
other chunks. The names of many chunks are split into *pages* in the same way.

To find out what changed without serializing everything, `ContentCache` keeps a frozen copy of each chunk: its
containers are copied, its leaves shared. Leaves are immutable, so an entry with the same leaves (the same objects) in
the same containers is unchanged, however it was passed around; a container that was changed in place differs from the
copy. Values with other objects, such as messages, are serialized and compared by digest.
"""

from __future__ import annotations

import threading
import zlib
from base64 import b16encode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from operator import is_
from secrets import token_bytes
from typing import Any, Literal, TypeAlias, cast

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot as DeltaSnapshot  # pyright: ignore[reportPrivateUsage]

from treehold import Corrupt

from ._plain import IMMUTABLE, approximate_size, freeze, is_same, kind_of, reads_back, thaw

INLINE_BYTES_MAX = 128
"""Serialized values up to this size lie in the record of the checkpoint."""

CHUNKED_BYTES_MIN = 32 << 10
"""Dicts and lists from this size are split."""

CHUNK_BYTES = 32 << 10
"""About the size of a chunk; a larger entry has a chunk of its own."""

CHUNK_BYTES_MAX = 4 * CHUNK_BYTES
"""Once a chunk has this size, it ends."""

PAGE_NAMES = 64
"""About the number of names on a page, and the most in the record of a checkpoint."""

PAGE_NAMES_MAX = 4 * PAGE_NAMES
"""Once a page has this many names, it ends."""

NAME_BYTES = 16
"""The length of the name of a piece of content."""

Container: TypeAlias = Literal["dict", "list"]

Typed: TypeAlias = tuple[str, bytes]
"""A serialized value: its type and its bytes."""

_DICT: Any = dict

_copy: Callable[[Any], Any] = _DICT.copy

_values_of: Callable[[Any], Iterable[Any]] = _DICT.values

_SPREAD = 0x9E3779B1
"""An odd factor that spreads checksums over 32 bits."""


@dataclass(frozen=True, slots=True)
class Inline:
    """A value in the record itself."""

    is_snapshot: bool
    typed: Typed

    def encoded(self) -> list[Any]:
        return [0, self.is_snapshot, *self.typed]


@dataclass(frozen=True, slots=True)
class Whole:
    """A value in one row of content."""

    is_snapshot: bool
    name: bytes

    def encoded(self) -> list[Any]:
        return [1, self.is_snapshot, self.name]


@dataclass(frozen=True, slots=True)
class Tree:
    """A dict or list in chunks. `names` are those of the chunks, or of pages if `level` is above 0."""

    is_snapshot: bool
    container: Container
    level: int
    names: bytes

    def encoded(self) -> list[Any]:
        return [2, self.is_snapshot, self.container, self.level, self.names]


Reference: TypeAlias = Inline | Whole | Tree
"""Where the value of a channel is. A snapshot is the value of a delta channel."""


def reference(encoded: Sequence[Any]) -> Reference:
    """Reads what `encoded` wrote."""
    match list(encoded):
        case [0, bool(is_snapshot), str(kind), bytes(payload)]:
            return Inline(is_snapshot, (kind, payload))
        case [1, bool(is_snapshot), bytes(name)]:
            return Whole(is_snapshot, name)
        case [2, bool(is_snapshot), ("dict" | "list") as container, int(level), bytes(names)]:
            return Tree(is_snapshot, container, level, names)
        case _:
            pass
    raise Corrupt("a checkpoint names its content in a way that this version does not know; upgrade treehold")


def split_names(names: bytes) -> list[bytes]:
    """Splits joined names."""
    return [names[start : start + NAME_BYTES] for start in range(0, len(names), NAME_BYTES)]


def text_of_name(name: bytes) -> str:
    """Returns a name as text for a key."""
    return b16encode(name).decode("ascii")


def name_of_text(text: str) -> bytes:
    """Reads what `text_of_name` wrote."""
    return bytes.fromhex(text)


def digest(typed: Typed) -> bytes:
    """Returns the name of content that is not encrypted."""
    kind = typed[0].encode("utf-8")
    hasher = blake2b(len(kind).to_bytes(4, "big") + kind, digest_size=NAME_BYTES)
    hasher.update(typed[1])
    return hasher.digest()


class _Entries:
    """Entries of a dict or list that follow each other, frozen if they can be."""

    __slots__ = ("_flat", "count", "entries", "is_exact", "is_flat", "keys")

    def __init__(
        self, keys: list[Any] | None, entries: list[Any] | None, count: int, is_flat: bool, is_exact: bool
    ) -> None:
        self.keys = keys
        """The keys of the entries of a dict."""
        self.entries = entries
        """The frozen entries; `None` if they cannot be frozen."""
        self.count = count
        self.is_flat = is_flat
        """Whether all entries are dicts of plain data, such as files. They are compared and copied without a Python call
        for each."""
        self.is_exact = is_exact
        """Whether the entries are what a reader gets. Serializers turn tuples into lists, for example."""
        self._flat: tuple[list[int], list[Any], list[Any]] | None = None

    def holds(self, entries: list[Any], start: int) -> bool:
        """Returns whether the entries from `start` on are certainly these."""
        if self.entries is None or start + self.count > len(entries):
            return False
        run = entries[start : start + self.count]
        if self.is_flat and set(map(kind_of, run)) == {dict}:
            if self._flat is None:
                self._flat = (
                    list(map(len, self.entries)),
                    list(chain.from_iterable(self.entries)),
                    list(chain.from_iterable(map(_values_of, self.entries))),
                )
            sizes, keys, leaves = self._flat
            if (
                list(map(len, run)) == sizes
                and all(map(is_, chain.from_iterable(run), keys))
                and all(map(is_, chain.from_iterable(map(_values_of, run)), leaves))
            ):
                return True
        return all(map(is_same, run, self.entries))

    def copies(self) -> Iterable[Any] | None:
        """Returns fresh copies of the entries; `None` if they have to be read."""
        if self.entries is None or not self.is_exact:
            return None
        return map(_copy if self.is_flat else thaw, self.entries)


class Chunk(_Entries):
    """A run of entries of a dict or list, as it is stored."""

    __slots__ = ("name", "plain_name", "size_bytes", "typed")

    def __init__(
        self, container: Container, name: bytes, plain_name: bytes | None, content: Any, read: Any, typed: Typed
    ) -> None:
        """Makes a chunk of `content`, of which readers get `read`. If they are the same object, the chunk owns it."""
        keys: list[Any] | None = list(content) if container == "dict" else None
        entries: list[Any] = list(content.values() if container == "dict" else content)
        frozen: list[Any] | None
        is_flat = _are_flat(entries)
        if is_flat:
            frozen = entries if read is content else list(map(_copy, entries))
        else:
            try:
                frozen = list(map(freeze, entries))
            except TypeError:
                frozen = None
        is_exact = frozen is not None and (read is content or reads_back(read, content))
        super().__init__(keys, frozen, len(entries), is_flat, is_exact)
        self.name = name
        self.plain_name = plain_name
        """The digest of the chunk before encryption, if it is known."""
        self.size_bytes = len(typed[1])
        self.typed: Typed | None = None if is_exact else typed
        """The serialized chunk, if it has to be read."""

    @property
    def chunks(self) -> list[Chunk]:
        """The chunk itself."""
        return [self]


def _are_flat(entries: list[Any]) -> bool:
    """Returns whether all entries are dicts of plain data."""
    return (
        set(map(kind_of, entries)) == {dict}
        and IMMUTABLE.issuperset(map(kind_of, chain.from_iterable(entries)))
        and IMMUTABLE.issuperset(map(kind_of, chain.from_iterable(map(_values_of, entries))))
    )


class Run(_Entries):
    """The chunks of a page, whose entries are compared and copied at once."""

    __slots__ = ("chunks", "name", "size_bytes")

    def __init__(self, name: bytes, chunks: list[Chunk]) -> None:
        keys: list[Any] | None = None
        if chunks[0].keys is not None:
            keys = list(chain.from_iterable(chunk.keys or () for chunk in chunks))
        parts = [chunk.entries for chunk in chunks if chunk.entries is not None]
        entries = list(chain.from_iterable(parts)) if len(parts) == len(chunks) else None
        super().__init__(
            keys,
            entries,
            sum(chunk.count for chunk in chunks),
            all(chunk.is_flat for chunk in chunks),
            all(chunk.is_exact for chunk in chunks),
        )
        self.name = name
        self.chunks = chunks
        self.size_bytes = sum(chunk.size_bytes for chunk in chunks)


Piece: TypeAlias = Chunk | Run


class ContentCache:
    """Recently used pieces of content, by name. Safe to use from several threads.

    Holds the chunks of small trees, the runs of pages of chunks, and pages of pages.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._entries: OrderedDict[bytes, tuple[Piece | bytes, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, names: Iterable[bytes]) -> dict[bytes, Piece | bytes]:
        """Returns those that are present."""
        found: dict[bytes, Piece | bytes] = {}
        with self._lock:
            entries = self._entries
            for name in names:
                entry = entries.get(name)
                if entry is not None:
                    entries.move_to_end(name)
                    found[name] = entry[0]
        return found

    def put(self, contents: Mapping[bytes, Piece | bytes]) -> None:
        """Adds content, and drops what was not used for longest."""
        with self._lock:
            for name, content in contents.items():
                size = len(content) if isinstance(content, bytes) else content.size_bytes
                if size > self._bytes_max:
                    continue
                known = self._entries.pop(name, None)
                self._bytes += size - (known[1] if known else 0)
                self._entries[name] = (content, size)
            while self._bytes > self._bytes_max:
                _, (_, size) = self._entries.popitem(last=False)
                self._bytes -= size


@dataclass(frozen=True, slots=True)
class Donor:
    """The stored content of an earlier version of a value, which the next one shares where it is unchanged."""

    chunks: Sequence[bytes] = ()
    """The names of the chunks, in order."""
    runs: Sequence[bytes] = ()
    """The names of the pages of chunks, in order."""
    pages: frozenset[bytes] = frozenset()
    """The names of all pages."""


@dataclass(slots=True)
class Encoded:
    """A value as it is to be stored."""

    reference: Reference
    rows: dict[bytes, Typed]
    """The content that the donor does not have."""


PAGE_TYPE = "names"
"""The type of rows that are pages. No serializer returns it for a value."""


class ContentCodec:
    """Encodes values to references and rows, and back."""

    def __init__(self, serde: SerializerProtocol, cache: ContentCache) -> None:
        self.serde = serde
        self.cache = cache
        self._is_encrypted = isinstance(serde, EncryptedSerializer)
        # Encrypted bytes differ each time, so contents are compared by the digest of what is encrypted. It never leaves
        # the process, and the stored name says nothing about the content.
        self._plain: SerializerProtocol = serde.serde if isinstance(serde, EncryptedSerializer) else serde
        self._names: OrderedDict[bytes, bytes] = OrderedDict()
        self._names_lock = threading.Lock()

    def encode(self, value: Any, donor: Donor) -> Encoded:
        """Encodes a value. Rows that the donor has are not returned again."""
        inner, is_snapshot = (value.value, True) if type(value) is DeltaSnapshot else (value, False)
        container = _container(inner)
        typed: Typed | None = None
        if container is not None and len(inner) > 1:
            size = approximate_size(inner, CHUNKED_BYTES_MIN)
            if size is None and len(donor.chunks) > 1:
                size = CHUNKED_BYTES_MIN
            if size is None:
                # Serialize twice only what has objects of classes, such as messages.
                typed = self._plain.dumps_typed(value)
                size = len(typed[1])
            if size >= CHUNKED_BYTES_MIN:
                return self._encode_tree(inner, container, is_snapshot, donor)
        if typed is None or self._is_encrypted:
            typed = self.serde.dumps_typed(value)
        if len(typed[1]) <= INLINE_BYTES_MAX:
            return Encoded(Inline(is_snapshot, typed), {})
        name = token_bytes(NAME_BYTES) if self._is_encrypted else digest(typed)
        return Encoded(Whole(is_snapshot, name), {} if name in donor.chunks else {name: typed})

    def _encode_tree(self, value: Any, container: Container, is_snapshot: bool, donor: Donor) -> Encoded:
        rows: dict[bytes, Typed] = {}
        chunks: list[Chunk] = []
        known = set(donor.chunks)
        cached = self.cache.get(donor.runs or donor.chunks)
        pieces = [piece for name in donor.runs or donor.chunks if not isinstance(piece := cached.get(name), bytes)]
        splitter = _DictSplitter(value, pieces) if container == "dict" else _ListSplitter(value, pieces)
        while not splitter.is_done():
            piece = splitter.unchanged(self._plain_name)
            if piece is None:
                piece = self._chunk(container, splitter.changed(self._plain.dumps_typed), known, rows)
                splitter.stored(piece)
            chunks.extend(piece.chunks)
        made: dict[bytes, Piece | bytes] = {}
        names = [chunk.name for chunk in chunks]
        level = 0
        if len(names) <= PAGE_NAMES:
            made.update(zip(names, chunks, strict=True))
        while len(names) > PAGE_NAMES:
            page_names: list[bytes] = []
            for start, end in _pages(names):
                page = b"".join(names[start:end])
                name = digest((PAGE_TYPE, page))
                page_names.append(name)
                if name not in donor.pages:
                    rows[name] = (PAGE_TYPE, page)
                if level > 0:
                    made[name] = page
                else:
                    run = cached.get(name)
                    made[name] = run if isinstance(run, Run) else Run(name, chunks[start:end])
            level, names = level + 1, page_names
        self.cache.put(made)
        return Encoded(Tree(is_snapshot, container, level, b"".join(names)), rows)

    def _chunk(self, container: Container, content: Any, known: set[bytes], rows: dict[bytes, Typed]) -> Chunk:
        plain = self._plain.dumps_typed(content)
        plain_name = digest(plain)
        if not self._is_encrypted:
            if plain_name not in known:
                rows[plain_name] = plain
            return Chunk(container, plain_name, plain_name, content, self.serde.loads_typed(plain), plain)
        with self._names_lock:
            name = self._names.get(plain_name)
        if name is not None and name in known:
            return Chunk(container, name, plain_name, content, self._plain.loads_typed(plain), self.serde.dumps_typed(content))
        typed = self.serde.dumps_typed(content)
        name = token_bytes(NAME_BYTES)
        rows[name] = typed
        with self._names_lock:
            self._names[plain_name] = name
            while len(self._names) > 100_000:
                self._names.popitem(last=False)
        return Chunk(container, name, plain_name, content, self._plain.loads_typed(plain), typed)

    def _plain_name(self, content: Any) -> bytes:
        return digest(self._plain.dumps_typed(content))

    def chunk(self, container: Container, name: bytes, typed: Typed) -> Chunk:
        """Decodes a chunk from its row."""
        plain_name = None if self._is_encrypted else name
        content = self.serde.loads_typed(typed)
        return Chunk(container, name, plain_name, content, content, typed)

    def value(self, tree: Tree, pieces: Iterable[Piece]) -> Any:
        """Assembles a value from its pieces."""
        value: Any
        if tree.container == "dict":
            value = {}
            for piece in pieces:
                for keys, entries in self._fresh(piece):
                    value.update(zip(cast("list[Any]", keys), entries, strict=True))
        else:
            value = []
            for piece in pieces:
                for _, entries in self._fresh(piece):
                    value.extend(entries)
        return DeltaSnapshot(value) if tree.is_snapshot else value

    def _fresh(self, piece: Piece) -> Iterator[tuple[list[Any] | None, Iterable[Any]]]:
        copies = piece.copies()
        if copies is not None:
            yield piece.keys, copies
            return
        for chunk in piece.chunks:
            copies = chunk.copies()
            if copies is None:
                content = self.serde.loads_typed(cast("Typed", chunk.typed))
                copies = content.values() if chunk.keys is not None else content
            yield chunk.keys, cast("Iterable[Any]", copies)


def _container(value: Any) -> Container | None:
    """Returns the kind of a value that can be split: a dict by text or a list, of exactly these types."""
    if type(value) is dict:
        return "dict" if set(map(type, cast("Iterable[Any]", value))) <= {str} else None
    return "list" if type(value) is list else None


def _ends(checksum: int, size: int) -> bool:
    """Decides whether a chunk ends after an entry, once in about `CHUNK_BYTES`."""
    return (checksum * _SPREAD & 0xFFFFFFFF) * CHUNK_BYTES < size << 32


class _DictSplitter:
    """Splits a dict. Where chunks end depends on the keys and sizes of the entries."""

    def __init__(self, value: dict[str, Any], donors: Iterable[Piece | None]) -> None:
        self._keys = list(value)
        self._entries = list(value.values())
        self._runs: dict[Any, Run] = {}
        self._chunks: dict[Any, Chunk] = {}
        for piece in donors:
            if piece is None or not piece.keys:
                continue
            if isinstance(piece, Run):
                self._runs[piece.keys[0]] = piece
            else:
                self._chunks[piece.keys[0]] = piece
        self._are_runs_open = False
        self._start = 0

    def is_done(self) -> bool:
        return self._start >= len(self._keys)

    def unchanged(self, plain_name: Callable[[Any], bytes]) -> Piece | None:
        """Returns what the donor has of the entries that come next, if they are unchanged."""
        start = self._start
        key = self._keys[start]
        run = self._runs.get(key)
        if run is not None:
            if self._keys[start : start + run.count] == run.keys and run.holds(self._entries, start):
                self._start += run.count
                return run
            del self._runs[key]
            self._open(run)
        chunk = self._chunks.get(key)
        if chunk is None and not self._are_runs_open:
            # An insertion or removal may have moved where runs begin.
            self._are_runs_open = True
            for run in self._runs.values():
                self._open(run)
            chunk = self._chunks.get(key)
        if chunk is None or self._keys[start : start + chunk.count] != chunk.keys:
            return None
        if chunk.entries is not None:
            is_unchanged = chunk.holds(self._entries, start)
        else:
            is_unchanged = plain_name(self._between(start, start + chunk.count)) == chunk.plain_name
        if not is_unchanged:
            return None
        self._start += chunk.count
        return chunk

    def changed(self, dumps: Callable[[Any], Typed]) -> dict[str, Any]:
        """Returns the entries of the next chunk."""
        start, size = self._start, 0
        while not self.is_done():
            key, entry = self._keys[self._start], self._entries[self._start]
            entry_size = approximate_size(entry, CHUNK_BYTES_MAX)
            if entry_size is None:
                entry_size = len(dumps(entry)[1])
            entry_size += len(key) + 8
            size += entry_size
            self._start += 1
            if size >= CHUNK_BYTES_MAX or _ends(zlib.crc32(key.encode("utf-8", "surrogatepass")), entry_size):
                break
        return self._between(start, self._start)

    def stored(self, chunk: Chunk) -> None:
        """Takes note of the chunk that was made of changed entries."""

    def _open(self, run: Run) -> None:
        self._chunks.update((chunk.keys[0], chunk) for chunk in run.chunks if chunk.keys)

    def _between(self, start: int, end: int) -> dict[str, Any]:
        return dict(zip(self._keys[start:end], self._entries[start:end], strict=True))


class _ListSplitter:
    """Splits a list. Where chunks end depends on the entries, so an insertion leaves the others as they are."""

    def __init__(self, value: list[Any], donors: Iterable[Piece | None]) -> None:
        self._entries = value[:]
        self._runs: dict[int, Run] = {}
        self._chunks: list[Chunk] = []
        for piece in donors:
            if piece is None or piece.keys is not None:
                continue
            if isinstance(piece, Run):
                self._runs[len(self._chunks)] = piece
            self._chunks.extend(piece.chunks)
        self._places = {chunk.name: place for place, chunk in enumerate(self._chunks)}
        self._next = 0
        self._start = 0

    def is_done(self) -> bool:
        return self._start >= len(self._entries)

    def unchanged(self, plain_name: Callable[[Any], bytes]) -> Piece | None:
        """Returns what the donor has of the entries that come next, if they are unchanged."""
        if self._next >= len(self._chunks):
            return None
        run = self._runs.get(self._next)
        if run is not None and run.holds(self._entries, self._start):
            self._start += run.count
            self._next += len(run.chunks)
            return run
        chunk = self._chunks[self._next]
        if chunk.entries is not None:
            is_unchanged = chunk.holds(self._entries, self._start)
        else:
            between = self._entries[self._start : self._start + chunk.count]
            is_unchanged = len(between) == chunk.count and plain_name(between) == chunk.plain_name
        if not is_unchanged:
            return None
        self._start += chunk.count
        self._next += 1
        return chunk

    def changed(self, dumps: Callable[[Any], Typed]) -> list[Any]:
        """Returns the entries of the next chunk."""
        start, size = self._start, 0
        while not self.is_done():
            kind, payload = dumps(self._entries[self._start])
            size += len(payload)
            self._start += 1
            checksum = zlib.crc32(payload, zlib.crc32(kind.encode("utf-8")))
            if size >= CHUNK_BYTES_MAX or _ends(checksum, len(payload) + 8):
                break
        return self._entries[start : self._start]

    def stored(self, chunk: Chunk) -> None:
        """Takes note of the chunk that was made of changed entries: what follows it in the donor may come next."""
        place = self._places.get(chunk.name)
        if place is not None:
            self._next = place + 1


def _pages(names: list[bytes]) -> Iterator[tuple[int, int]]:
    """Splits names into pages. Where pages end depends on the names. Yields where each starts and ends."""
    start = 0
    for place, name in enumerate(names, start=1):
        if name[0] < 256 // PAGE_NAMES or place - start >= PAGE_NAMES_MAX:
            yield start, place
            start = place
    if start < len(names):
        yield start, len(names)
