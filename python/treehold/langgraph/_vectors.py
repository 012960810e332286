"""Vectors of items, and the search for the nearest.

The vectors of an item are one row beside it, committed together with it. `VectorTables` keeps those of the namespaces
that are searched in memory. It compares the versions of the rows with those in the store and reads only what changed, so
a search sees what any process committed before it.

A search is exact unless the index is configured to be approximate. Then large namespaces are searched by a graph of
neighbours (usearch), which is built from the rows. Scores are always computed from the vectors themselves.
"""

from __future__ import annotations

import json
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from math import isfinite, sqrt
from operator import mul
from sys import byteorder
from typing import Any, Literal, TypeAlias

from langchain_core.embeddings import Embeddings
from langgraph.store.base import IndexConfig, ensure_embeddings, get_text_at_path, tokenize_path

from treehold import Corrupt, InvalidArgument, Row, Store

from ._types import are_texts

Metric: TypeAlias = Literal["cosine", "l2", "inner_product"]

METRICS: tuple[Metric, ...] = ("cosine", "l2", "inner_product")

APPROXIMATE_MIN = 10_000
"""A namespace with fewer vectors is searched exactly, which is as fast."""

SCORED_ROWS = 4096
"""How many vectors are scored at once."""

TABLES_BYTES_MAX = 512 << 20
"""The most bytes of vectors in memory. A single search may need more."""


def _numpy() -> Any:
    try:
        return import_module("numpy")
    except ImportError:
        return None


class TreeholdIndexConfig(IndexConfig, total=False):
    """How a store embeds items and searches them by meaning."""

    distance_type: Metric
    """What makes two texts alike. Scores of `cosine` (the default) are the cosine of the angle, of `inner_product` the
    product, of `l2` the negative distance: higher is nearer."""
    approximate: bool
    """Whether to search large namespaces approximately. Needs the package usearch."""


class Index:
    """A configured index."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        dims = config.get("dims")
        if isinstance(dims, bool) or not isinstance(dims, int) or dims < 1:
            raise InvalidArgument("the index has no `dims`; set the number of dimensions that the embedding returns")
        if config.get("embed") is None:
            raise InvalidArgument("the index has no `embed`; set an embedding function")
        metric = config.get("distance_type", "cosine")
        if metric not in METRICS:
            raise InvalidArgument(f"`{metric}` is not a distance_type; use cosine, l2 or inner_product")
        fields = config.get("fields") or config.get("text_fields") or ["$"]
        self.dims: int = dims
        self.metric: Metric = metric
        self.embeddings: Embeddings = ensure_embeddings(config["embed"])
        self.is_approximate = bool(config.get("approximate", False))
        if self.is_approximate:
            try:
                import_module("usearch.index")
            except ImportError:
                raise InvalidArgument("an approximate index needs usearch; pip install 'treehold[approximate]'") from None
        self._paths = _paths(fields)

    def texts(self, value: Mapping[str, Any], index: Sequence[str] | None) -> list[tuple[str, str]]:
        """Returns the texts of an item that are embedded, each with the place where it is."""
        found: list[tuple[str, str]] = []
        for path, tokens in self._paths if index is None else _paths(index):
            texts = get_text_at_path(value, tokens)
            if len(texts) == 1:
                found.append((path, texts[0]))
            else:
                found.extend((f"{path}.{place}", text) for place, text in enumerate(texts))
        return found

    def checked(self, vector: Sequence[float]) -> array[float]:
        """Checks what the embedding function returned."""
        if len(vector) != self.dims:
            message = f"the embedding returned {len(vector)} dimensions, not the {self.dims} that `dims` says; correct one"
            raise InvalidArgument(message)
        numbers = array("f", vector)
        if not all(map(isfinite, numbers)):
            raise InvalidArgument("the embedding returned a number that is not finite; check the embedding function")
        return numbers


def _paths(fields: Any) -> list[tuple[str, Any]]:
    if not are_texts(fields):
        raise InvalidArgument("the fields to index must be a list of paths, such as ['title', 'tags[*]']")
    return [(path, path if path == "$" else tokenize_path(path)) for path in fields]


@dataclass(frozen=True, slots=True)
class Embed:
    """Asks for the vectors of texts and of queries. Each text is embedded once."""

    index: Index
    texts: Sequence[str]
    queries: Sequence[str]

    def answer(self, store: Store) -> dict[tuple[bool, str], array[float]]:
        vectors = self.index.embeddings.embed_documents(list(self.texts)) if self.texts else []
        queries = [self.index.embeddings.embed_query(query) for query in self.queries]
        return self._checked(vectors, queries)

    async def aanswer(self, store: Store) -> dict[tuple[bool, str], array[float]]:
        vectors = await self.index.embeddings.aembed_documents(list(self.texts)) if self.texts else []
        queries = [await self.index.embeddings.aembed_query(query) for query in self.queries]
        return self._checked(vectors, queries)

    def _checked(
        self, vectors: Sequence[Sequence[float]], queries: Sequence[Sequence[float]]
    ) -> dict[tuple[bool, str], array[float]]:
        if len(vectors) != len(self.texts):
            message = f"the embedding returned {len(vectors)} vectors for {len(self.texts)} texts; return one for each"
            raise InvalidArgument(message)
        found = {(False, text): self.index.checked(vector) for text, vector in zip(self.texts, vectors, strict=True)}
        found.update({(True, text): self.index.checked(vector) for text, vector in zip(self.queries, queries, strict=True)})
        return found


def mark_of(body: bytes) -> str:
    """Returns what tells whether vectors belong to an item as it is, or to an earlier one written by other means."""
    return blake2b(body, digest_size=8).hexdigest()


def vectors_row(body: bytes, places: Sequence[str], vectors: Sequence[array[float]]) -> tuple[bytes, bytes]:
    """Returns the metadata and the body of the row with the vectors of an item."""
    meta = json.dumps({"of": mark_of(body), "dims": len(vectors[0]), "paths": list(places)}, ensure_ascii=False)
    return meta.encode("utf-8"), b"".join(map(_little_endian, vectors))


def _little_endian(vector: array[float]) -> bytes:
    if byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return vector.tobytes()


def read_vectors(row: Row, dims: int) -> tuple[str, list[array[float]]]:
    """Reads what `vectors_row` wrote. Vectors of other dimensions, of an earlier configuration, are left out."""
    try:
        meta = json.loads(row.meta)
        mark, stored_dims = meta["of"], meta["dims"]
    except (ValueError, KeyError, TypeError):
        raise Corrupt("the vectors of an item cannot be read; put the item again") from None
    if stored_dims != dims:
        return mark, []
    numbers: array[float] = array("f", row.body)
    if byteorder == "big":
        numbers.byteswap()
    return mark, [numbers[start : start + dims] for start in range(0, len(numbers), dims)]


@dataclass(slots=True)
class Vectors:
    """The vectors of an item in memory."""

    version: int
    mark: str
    vectors: list[array[float]]


class Table:
    """The vectors of a namespace in memory."""

    def __init__(self, index: Index) -> None:
        self._dims = index.dims
        self._metric: Metric = index.metric
        self._is_approximate = index.is_approximate
        self.items: dict[str, Vectors] = {}
        self.count = 0
        """The number of vectors."""
        self._rows: _Rows | None = None
        self._graph: _Graph | None = None

    @property
    def size_bytes(self) -> int:
        """The approximate size in memory."""
        return self.count * (8 * self._dims + 100)

    def put(self, key: str, vectors: Vectors) -> None:
        """Adds or replaces the vectors of an item."""
        self.remove(key)
        self.items[key] = vectors
        self.count += len(vectors.vectors)
        if self._graph is not None:
            self._graph.add(key, vectors)

    def remove(self, key: str) -> None:
        """Removes the vectors of an item."""
        self._rows = None
        removed = self.items.pop(key, None)
        if removed is not None:
            self.count -= len(removed.vectors)
            if self._graph is not None:
                self._graph.remove(key)

    def nearest(self, query: array[float], count: int | None) -> list[tuple[float, str]]:
        """Returns at least the `count` nearest items with their scores, nearest first; all without a count."""
        numpy = _numpy()
        if numpy is None:
            scored = [(max(self._score(query, vector) for vector in item.vectors), key) for key, item in self.items.items() if item.vectors]
        else:
            if self._rows is None:
                self._rows = _Rows(numpy, self._dims, self.items)
            target = numpy.frombuffer(query.tobytes(), dtype=numpy.float32)
            scored = self._rows.scores(self._metric, target, self._candidates(numpy, target, count, self._rows))
        scored.sort(key=lambda entry: (-entry[0], entry[1]))
        return scored

    def _candidates(self, numpy: Any, target: Any, count: int | None, rows: _Rows) -> list[str] | None:
        if count is None or self.count <= 2 * count:
            return None
        if not self._is_approximate or self.count < APPROXIMATE_MIN:
            return rows.nearest(self._metric, target, count)
        if self._graph is None:
            self._graph = _Graph(numpy, self._dims, self._metric)
            for key, item in self.items.items():
                self._graph.add(key, item)
        return self._graph.nearest(target, count)

    def _score(self, query: Sequence[float], vector: Sequence[float]) -> float:
        if self._metric == "l2":
            return -sqrt(sum((one - other) ** 2 for one, other in zip(query, vector, strict=True)))
        product: float = sum(map(mul, query, vector))
        if self._metric == "inner_product":
            return product
        lengths = sqrt(sum(map(mul, query, query))) * sqrt(sum(map(mul, vector, vector)))
        return product / lengths if lengths > 0 else 0.0


class _Rows:
    """The vectors of a table as the rows of a matrix."""

    def __init__(self, numpy: Any, dims: int, items: Mapping[str, Vectors]) -> None:
        self._numpy = numpy
        self._owners = [key for key, item in items.items() for _ in item.vectors]
        joined = b"".join(vector.tobytes() for item in items.values() for vector in item.vectors)
        self._matrix = numpy.frombuffer(joined, dtype=numpy.float32).reshape(-1, dims)
        self._places: dict[str, list[int]] = {}
        for place, owner in enumerate(self._owners):
            self._places.setdefault(owner, []).append(place)

    def nearest(self, metric: Metric, target: Any, count: int) -> list[str]:
        """Returns some more than the `count` nearest items, because rounding may swap neighbours at the end."""
        numpy, matrix = self._numpy, self._matrix
        if metric == "l2":
            scores = -numpy.square(matrix - target).sum(axis=1)
        else:
            scores = matrix @ target
            if metric == "cosine":
                lengths = numpy.linalg.norm(matrix, axis=1)
                scores = numpy.divide(scores, lengths, out=numpy.zeros_like(scores), where=lengths > 0)
        found: dict[str, None] = {}
        for place in numpy.argsort(-scores, kind="stable"):
            found[self._owners[place]] = None
            if len(found) >= count + 8:
                break
        return list(found)

    def scores(self, metric: Metric, target: Any, keys: Sequence[str] | None) -> list[tuple[float, str]]:
        """Returns the scores of items, or of all. Equal vectors have equal scores."""
        numpy = self._numpy
        owners, matrix = self._owners, self._matrix
        if keys is not None:
            places = [place for key in keys for place in self._places[key]]
            owners, matrix = [owners[place] for place in places], matrix[places]
        target = target.astype(numpy.float64)
        best: dict[str, float] = {}
        for start in range(0, len(owners), SCORED_ROWS):
            rows = matrix[start : start + SCORED_ROWS].astype(numpy.float64)
            # Each row is added up by itself. A product of matrices may add up equal rows in different orders.
            if metric == "l2":
                scores = -numpy.sqrt(numpy.square(rows - target).sum(axis=1))
            else:
                scores = (rows * target).sum(axis=1)
                if metric == "cosine":
                    lengths = numpy.sqrt(numpy.square(rows).sum(axis=1)) * numpy.sqrt(numpy.square(target).sum())
                    scores = numpy.divide(scores, lengths, out=numpy.zeros_like(scores), where=lengths > 0)
            for owner, score in zip(owners[start : start + SCORED_ROWS], scores.tolist(), strict=True):
                known = best.get(owner)
                if known is None or score > known:
                    best[owner] = score
        return [(score, key) for key, score in best.items()]


class _Graph:
    """A graph of neighbours, for approximate searches."""

    def __init__(self, numpy: Any, dims: int, metric: Metric) -> None:
        self._numpy = numpy
        self._dims = dims
        names = {"cosine": "cos", "l2": "l2sq", "inner_product": "ip"}
        self._index = import_module("usearch.index").Index(ndim=dims, metric=names[metric], dtype="f32")
        self._owners: dict[int, str] = {}
        self._places: dict[str, list[int]] = {}
        self._next = 0

    def add(self, key: str, item: Vectors) -> None:
        """Adds the vectors of an item."""
        if not item.vectors:
            return
        places = list(range(self._next, self._next + len(item.vectors)))
        self._next += len(places)
        self._places[key] = places
        self._owners.update((place, key) for place in places)
        joined = b"".join(vector.tobytes() for vector in item.vectors)
        matrix = self._numpy.frombuffer(joined, dtype=self._numpy.float32).reshape(-1, self._dims)
        self._index.add(self._numpy.array(places, dtype=self._numpy.uint64), matrix)

    def remove(self, key: str) -> None:
        """Removes the vectors of an item."""
        for place in self._places.pop(key, ()):
            del self._owners[place]
            self._index.remove(place)

    def nearest(self, target: Any, count: int) -> list[str]:
        """Returns probably the `count` nearest items, and some more."""
        found: dict[str, None] = {}
        wanted = 2 * count + 8
        while True:
            for place in self._index.search(target, wanted).keys:
                owner = self._owners.get(int(place))
                if owner is not None:
                    found[owner] = None
            if len(found) >= count or wanted >= len(self._owners):
                return list(found)
            wanted *= 2


Namespace: TypeAlias = tuple[str, ...]
Versions: TypeAlias = tuple[tuple[Namespace, int], ...]
"""The newest commit of some partitions."""

LOADED_MAX = 1_000
"""Of how many prefixes it is known which versions the tables show."""


class VectorTables:
    """The tables of the namespaces that were searched last. Its users hold the lock while they use a table."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._tables: OrderedDict[Namespace, Table] = OrderedDict()
        self._loaded: OrderedDict[Namespace, tuple[Versions, list[Namespace]]] = OrderedDict()
        self.lock = threading.RLock()

    def table(self, namespace: Namespace) -> Table:
        """Returns the table of a namespace, empty if it was not read yet."""
        with self.lock:
            table = self._tables.get(namespace)
            if table is None:
                table = self._tables[namespace] = Table(self._index)
            self._tables.move_to_end(namespace)
            return table

    def loaded(self, prefix: Namespace, versions: Versions) -> list[Namespace] | None:
        """Returns the namespaces at and below a prefix, if their tables show these versions of their partitions."""
        with self.lock:
            known, namespaces = self._loaded.get(prefix, (None, list[Namespace]()))
            if known != versions or not all(namespace in self._tables for namespace in namespaces):
                return None
            return namespaces

    def set_loaded(self, prefix: Namespace, versions: Versions, namespaces: list[Namespace]) -> None:
        """Notes that the tables at and below a prefix show these versions of their partitions, or newer ones."""
        with self.lock:
            self._loaded[prefix] = versions, namespaces
            self._loaded.move_to_end(prefix)
            while len(self._loaded) > LOADED_MAX:
                self._loaded.popitem(last=False)

    def forget(self, keep: Iterable[Namespace]) -> None:
        """Drops the tables used least recently, except some, until those in memory are small enough."""
        kept = set(keep)
        with self.lock:
            size = sum(table.size_bytes for table in self._tables.values())
            for namespace in list(self._tables):
                if size <= TABLES_BYTES_MAX:
                    break
                if namespace not in kept:
                    size -= self._tables.pop(namespace).size_bytes
