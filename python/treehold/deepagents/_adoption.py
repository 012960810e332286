"""Files that an application put into a `TreeholdStore` itself, as items.

Over a `TreeholdStore`, the files of a namespace are a native tree beside the items. Applications also put files as items, as
deepagents' documentation shows: `store.put(namespace, "/notes.md", create_file_data("…"))`. Such an item becomes a file of the
tree as soon as a backend looks, so a file has one truth. The file is written before the item is removed, and an item that is
older than the file at its path is only removed, so a process that is killed in between loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, cast

import treehold
from treehold.deepagents import _files

PAGE: Final = 200
"""How many items are read at once."""

Namespace = tuple[str, ...]


def files_namespace(root: Namespace, namespace: Namespace) -> Namespace:
    """Returns where the files of a namespace lie: beside the items of the store, whose searches do not see them."""
    *above, last = root or ("",)
    return (*above, f"{last}~files", *namespace)


class Adoption:
    """The items of one namespace that are files, on their way into the tree."""

    def __init__(self, store: treehold.Store, items: Namespace, tree: treehold.Backend) -> None:
        self._store = store
        self._items = items
        self._tree = tree

    def one(self, path: str) -> None:
        """Adopts the file at a path, if it is an item."""
        row = self._store.get(self._items, path)
        if row is not None:
            self._adopt(row)

    async def aone(self, path: str) -> None:
        row = await self._store.aget(self._items, path)
        if row is not None:
            await self._aadopt(row)

    def all(self) -> None:
        """Adopts all items that are files."""
        after: str | None = None
        while True:
            page = self._store.scan(self._items, prefix="/", after=after, limit=PAGE)
            for row in page.rows:
                self._adopt(row)
            after = page.next
            if after is None:
                return

    async def aall(self) -> None:
        after: str | None = None
        while True:
            page = await self._store.ascan(self._items, prefix="/", after=after, limit=PAGE)
            for row in page.rows:
                await self._aadopt(row)
            after = page.next
            if after is None:
                return

    def _adopt(self, row: treehold.Row) -> None:
        content = content_of(row)
        if content is None:
            return
        try:
            if self._is_newer(row, self._stat(row.key)):
                self._tree.write(row.key, content)
            self._store.commit(self._removal(row))
        except treehold.Error as error:
            if not is_of_no_tree(error):
                raise

    async def _aadopt(self, row: treehold.Row) -> None:
        content = content_of(row)
        if content is None:
            return
        try:
            if self._is_newer(row, await self._astat(row.key)):
                await self._tree.awrite(row.key, content)
            await self._store.acommit(self._removal(row))
        except treehold.Error as error:
            if not is_of_no_tree(error):
                raise

    def _stat(self, path: str) -> treehold.Entry | None:
        try:
            return self._tree.stat(path)
        except treehold.NotFound:
            return None

    async def _astat(self, path: str) -> treehold.Entry | None:
        try:
            return await self._tree.astat(path)
        except treehold.NotFound:
            return None

    def _is_newer(self, row: treehold.Row, entry: treehold.Entry | None) -> bool:
        return entry is None or entry.modified_at is None or row.updated_at > entry.modified_at

    def _removal(self, row: treehold.Row) -> treehold.Batch:
        """Makes the removal of an item that nobody put again meanwhile."""
        return treehold.Batch().require(self._items, row.key, row.version).delete(self._items, row.key)


def content_of(row: treehold.Row) -> bytes | None:
    """Returns the content of the file that an item is; `None` if it is something else."""
    try:
        value: Any = json.loads(row.body)
        if not isinstance(value, dict) or cast("dict[str, Any]", value).get("content") is None:
            return None
        return _files.bytes_of(cast("dict[str, Any]", value))
    except (TypeError, ValueError):
        return None


def is_of_no_tree(error: treehold.Error) -> bool:
    """Tells whether an item stays one: because its key is no path of a tree, or because somebody put it again meanwhile."""
    return error.code in ("invalid_path", "conflict", "is_directory", "not_a_directory")


def values_of(entries: Sequence[tuple[treehold.Entry, bytes]]) -> list[dict[str, Any]]:
    """Makes the items that files of the tree would be."""
    values: list[dict[str, Any]] = []
    for entry, content in entries:
        text, encoding = _files.encoded(content)
        values.append({"content": text, "encoding": encoding, "created_at": entry.created_at_iso, "modified_at": entry.modified_at_iso})
    return values
