"""Vectors that an earlier version stored in another partition than their items, and how they move beside them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from hashlib import sha256

from treehold import Batch, Row
from treehold._io import Commit, GetMany, Namespace, Namespaces, Scan, Steps
from treehold._moving import Move, move

from ._find import PAGE_ROWS
from ._keys import is_valid, labels_of, left_vectors_of, vectors_of
from ._plan import ItemPut

FORMER_VECTORS = "~vectors"
"""What earlier versions extended the last component of the namespace of items by for their vectors."""

_LEFT = "left"
"""The key of the row that says which namespaces of such vectors stay."""


class FormerVectors:
    """The vectors of an earlier version, of the items beneath one root."""

    def __init__(self, root: Namespace) -> None:
        self._root = root
        self._has_moved = False
        self._left: Collection[Namespace] = ()

    def move(self) -> Steps[None]:
        """Moves the vectors to the partitions of their items, once."""
        if self._has_moved:
            return
        # Earlier versions had no namespaces with an empty component, and the former one would be a partition of its own.
        if "" not in self._root:
            yield from self._move_from(self._of())
        self._has_moved = True

    def remove_left(self, puts: Iterable[ItemPut]) -> Steps[None]:
        """Removes vectors that could not move once their items change. They lie in another partition."""
        batches: dict[Namespace, Batch] = {}
        for put in puts:
            if put.namespace in self._left:
                vectors = self._of(put.namespace)
                batches.setdefault(vectors[:2], Batch()).delete(vectors, put.key)
        for batch in batches.values():
            yield Commit(batch)

    def _of(self, labels: Namespace = ()) -> Namespace:
        """Returns where earlier versions stored the vectors of a namespace of items."""
        return (*self._root[:-1], self._root[-1] + FORMER_VECTORS, *labels)

    def _move_from(self, former: Namespace) -> Steps[None]:
        stuck: list[Namespace] = []
        after: Namespace | None = None
        while True:
            page = yield Namespaces(former, after)
            for space in map(tuple, page.namespaces):
                labels = labels_of(self._root, (*self._root, *space[len(former) :]))
                if labels is None:
                    continue
                items = (*self._root, *labels)
                if is_valid(vectors_of(items)):
                    # Nobody sees the vectors of an item that is removed meanwhile, so there is no fence.
                    yield from move([Move(space, vectors_of(items), wanted=partial(_present, items))], None)
                else:
                    stuck.append(labels)
            after = page.next
            if after is None:
                break
        if stuck:
            yield from self._leave(former, stuck)

    def _leave(self, former: Namespace, stuck: Sequence[Namespace]) -> Steps[None]:
        """Removes vectors whose items are gone from namespaces that leave no room for new ones, and takes note of the rest.

        The items are found without these vectors.
        """
        place = left_vectors_of(self._root)
        if is_valid(place):
            rows: Sequence[Row | None] = yield GetMany(place, [_LEFT])
            if rows[0] is not None and rows[0].body == _digest(stuck):
                self._left = frozenset(stuck)
                return
        left: list[Namespace] = []
        for labels in stuck:
            if (yield from _remove_orphans((*former, *labels), (*self._root, *labels))):
                left.append(labels)
        self._left = frozenset(left)
        if is_valid(place):
            yield Commit(Batch().put(place, _LEFT, _digest(left)) if left else Batch().delete(place, _LEFT))


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
