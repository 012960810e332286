"""Files in a store that all threads share."""

from __future__ import annotations

from typing import Literal, TypeAlias

from deepagents.backends import StoreBackend as TheirStoreBackend
from deepagents.backends.protocol import (
    DeleteResult,
    EditResult,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)
from deepagents.backends.store import NamespaceFactory
from langgraph.store.base import BaseStore

import treehold
from treehold.deepagents._adoption import Adoption, Namespace, files_namespace
from treehold.deepagents._items import Items
from treehold.deepagents._mirror import Mirrors
from treehold.deepagents._overrides import native
from treehold.deepagents._tree import TreeBackend
from treehold.langgraph import TreeholdStore

Index: TypeAlias = Literal["trigram", "words"]


class StoredTree(TreeBackend):
    """The native tree of one namespace of a `TreeholdStore`."""

    _lists_plainly = True

    def __init__(self, store: TreeholdStore, namespace: Namespace, index: Index | None) -> None:
        self._native = treehold.StoreBackend(store.store, files_namespace(store.namespace, namespace), index=index)
        self._adoption = Adoption(store.store, (*store.namespace, *namespace), self._native)

    def _tree(self) -> treehold.Backend:
        return self._native

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        self._adoption.one(file_path)
        return super().read(file_path, offset, limit)

    @native
    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        await self._adoption.aone(file_path)
        return await super().aread(file_path, offset, limit)

    def write(self, file_path: str, content: str) -> WriteResult:
        self._adoption.one(file_path)
        return super().write(file_path, content)

    @native
    async def awrite(self, file_path: str, content: str) -> WriteResult:
        await self._adoption.aone(file_path)
        return await super().awrite(file_path, content)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        self._adoption.one(file_path)
        return super().edit(file_path, old_string, new_string, replace_all)

    @native
    async def aedit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        await self._adoption.aone(file_path)
        return await super().aedit(file_path, old_string, new_string, replace_all)

    def ls(self, path: str) -> LsResult:
        self._adoption.all()
        return super().ls(path)

    @native
    async def als(self, path: str) -> LsResult:
        await self._adoption.aall()
        return await super().als(path)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        self._adoption.all()
        return super().glob(pattern, path)

    @native
    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        await self._adoption.aall()
        return await super().aglob(pattern, path)

    def delete(self, file_path: str) -> DeleteResult:
        self._adoption.all()
        return super().delete(file_path)

    @native
    async def adelete(self, file_path: str) -> DeleteResult:
        await self._adoption.aall()
        return await super().adelete(file_path)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        self._adoption.all()
        return super().upload_files(files)

    @native
    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        await self._adoption.aall()
        return await super().aupload_files(files)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        self._adoption.all()
        return super().download_files(paths)

    @native
    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        await self._adoption.aall()
        return await super().adownload_files(paths)

    def grep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        max_count: int | None = None,
        context_lines: int = 0,
    ) -> GrepResult:
        self._adoption.all()
        return super().grep(pattern, path, glob, max_count=max_count, context_lines=context_lines)

    @native
    async def agrep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        max_count: int | None = None,
        context_lines: int = 0,
    ) -> GrepResult:
        await self._adoption.aall()
        return await super().agrep(pattern, path, glob, max_count=max_count, context_lines=context_lines)


class StoreBackend(TheirStoreBackend):
    """Keeps files in a store, in the namespace that a function of the runtime returns.

    Over a `TreeholdStore` the files are a native tree: a listing reads one directory, a search runs in the store's process or
    engine, and every change is compared and stored in one step, so no acknowledged edit is lost, whichever process makes it.
    Files that an application puts into the store itself, as items, become files of the tree.

    Over any other `BaseStore` files are items as deepagents writes them. The store can neither compare and put in one step nor
    list a directory, so edits of a file take turns within the process, and listings and searches read the namespace.

    - `index`: Over a `TreeholdStore`, keeps an index of the files from the first one on: `"trigram"` lets `grep` read only the
      files that may match, and makes a write on SQLite take 1.4 times as long. `ValueError` over another store.
    """

    def __init__(self, *, namespace: NamespaceFactory, store: BaseStore | None = None, index: Index | None = None) -> None:
        super().__init__(namespace=namespace, store=store)
        self._index: Index | None = index
        if store is not None:
            self._check_index(store)
        self._mirrors = Mirrors()
        self._trees: dict[tuple[int, Namespace], tuple[TreeholdStore, StoredTree]] = {}
        self._last: tuple[BaseStore, Namespace, Items] | None = None
        """The files of the last call over another store. No more of them, so that no store that is gone is kept."""

    def _check_index(self, store: BaseStore) -> None:
        if self._index is not None and not isinstance(store, TreeholdStore):
            raise ValueError("an index needs a TreeholdStore; leave `index` out over other stores")

    def _files(self) -> Items | StoredTree:
        """Returns the files of the namespace of the running call."""
        store, namespace = self._get_store(), self._get_namespace()
        if not isinstance(store, TreeholdStore):
            self._check_index(store)
            last = self._last
            if last is not None and last[0] is store and last[1] == namespace:
                return last[2]
            items = Items(store, namespace, self._mirrors)
            self._last = (store, namespace, items)
            return items
        known = self._trees.get((id(store), namespace))
        if known is not None and known[0] is store:
            return known[1]
        tree = StoredTree(store, namespace, self._index)
        if len(self._trees) >= 1000:
            self._trees.clear()
        self._trees[id(store), namespace] = (store, tree)
        return tree

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return self._files().read(file_path, offset, limit)

    @native
    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return await self._files().aread(file_path, offset, limit)

    def write(self, file_path: str, content: str) -> WriteResult:
        return self._files().write(file_path, content)

    @native
    async def awrite(self, file_path: str, content: str) -> WriteResult:
        return await self._files().awrite(file_path, content)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        return self._files().edit(file_path, old_string, new_string, replace_all)

    @native
    async def aedit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        return await self._files().aedit(file_path, old_string, new_string, replace_all)

    def ls(self, path: str) -> LsResult:
        return self._files().ls(path)

    @native
    async def als(self, path: str) -> LsResult:
        return await self._files().als(path)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        return self._files().glob(pattern, path)

    @native
    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        return await self._files().aglob(pattern, path)

    def delete(self, file_path: str) -> DeleteResult:
        return self._files().delete(file_path)

    @native
    async def adelete(self, file_path: str) -> DeleteResult:
        return await self._files().adelete(file_path)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return self._files().upload_files(files)

    @native
    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return await self._files().aupload_files(files)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return self._files().download_files(paths)

    @native
    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return await self._files().adownload_files(paths)

    def grep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        max_count: int | None = None,
        context_lines: int = 0,
    ) -> GrepResult:
        return self._files().grep(pattern, path, glob, max_count=max_count, context_lines=context_lines)

    @native
    async def agrep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        max_count: int | None = None,
        context_lines: int = 0,
    ) -> GrepResult:
        return await self._files().agrep(pattern, path, glob, max_count=max_count, context_lines=context_lines)
