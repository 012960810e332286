"""Files as items of any `BaseStore`, in the format of deepagents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from deepagents.backends.protocol import (
    BackendProtocol,
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
from langgraph.store.base import BaseStore, GetOp, Item, PutOp

from treehold.deepagents import _files, _flat
from treehold.deepagents._mirror import Mirrors
from treehold.deepagents._turns import Busy, Queue, Queues

PAGE: Final = 1000
"""How many items are asked for at once. Pages are numbered by offset, so a store reads each of them from the start."""

FULL_MIN: Final = 100
"""A page with fewer items than this is the last one, even of a store that returns fewer than it was asked for."""

BUSY: Final = "Error: '{path}' is being changed by another task of this event loop; use the asynchronous method here too"

QUEUES = Queues()

Namespace = tuple[str, ...]


class Items(BackendProtocol):
    """The files of one namespace of a store.

    A store can neither compare and put in one step nor list a directory. So changes of a file take turns in this process, and a
    listing or search reads the namespace, into a native tree.
    """

    def __init__(self, store: BaseStore, namespace: Namespace, mirrors: Mirrors) -> None:
        self._store = store
        self._namespace = namespace
        self._mirrors = mirrors
        self._queues = QUEUES.of(store)

    def _queue(self, path: str) -> Queue:
        return self._queues[hash((self._namespace, path)) % len(self._queues)]

    # One file

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return self._read(self._store.get(self._namespace, file_path), file_path, offset, limit)

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return self._read(await self._store.aget(self._namespace, file_path), file_path, offset, limit)

    def _read(self, item: Item | None, path: str, offset: int, limit: int) -> ReadResult:
        if item is not None and item.value.get("content") is None:
            return ReadResult(error=not_a_file(item))
        return _flat.read(_stored(item), path, offset, limit)

    def write(self, file_path: str, content: str) -> WriteResult:
        try:
            with self._queue(file_path):
                made = _files.new_file(content, _stored(self._store.get(self._namespace, file_path)))
                self._store.put(self._namespace, file_path, made)
        except Busy:
            return WriteResult(error=BUSY.format(path=file_path))
        return WriteResult(path=file_path)

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        async with self._queue(file_path).aturn():
            made = _files.new_file(content, _stored(await self._store.aget(self._namespace, file_path)))
            await self._store.aput(self._namespace, file_path, made)
        return WriteResult(path=file_path)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        try:
            with self._queue(file_path):
                item = self._store.get(self._namespace, file_path)
                made, result = self._edited(item, file_path, old_string, new_string, replace_all)
                if made is not None:
                    self._store.put(self._namespace, file_path, made)
        except Busy:
            return EditResult(error=BUSY.format(path=file_path))
        return result

    async def aedit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        async with self._queue(file_path).aturn():
            item = await self._store.aget(self._namespace, file_path)
            made, result = self._edited(item, file_path, old_string, new_string, replace_all)
            if made is not None:
                await self._store.aput(self._namespace, file_path, made)
        return result

    def _edited(
        self,
        item: Item | None,
        path: str,
        old: str,
        new: str,
        replace_all: bool,
    ) -> tuple[dict[str, Any] | None, EditResult]:
        if item is not None and item.value.get("content") is None:
            return None, EditResult(error=f"Error: {not_a_file(item)}")
        return _flat.edit(_stored(item), path, old, new, replace_all)

    # Several files

    def delete(self, file_path: str) -> DeleteResult:
        keys = _flat.beneath(self._all(), file_path)
        if not keys:
            return DeleteResult(error=f"Error: File '{file_path}' not found")
        self._store.batch([PutOp(self._namespace, key, None) for key in keys])
        return DeleteResult(path=file_path)

    async def adelete(self, file_path: str) -> DeleteResult:
        keys = _flat.beneath(await self._aall(), file_path)
        if not keys:
            return DeleteResult(error=f"Error: File '{file_path}' not found")
        await self._store.abatch([PutOp(self._namespace, key, None) for key in keys])
        return DeleteResult(path=file_path)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        if files:
            self._store.batch(self._puts(files, self._get_many([path for path, _ in files])))
        return [FileUploadResponse(path=path) for path, _ in files]

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        if files:
            await self._store.abatch(self._puts(files, await self._aget_many([path for path, _ in files])))
        return [FileUploadResponse(path=path) for path, _ in files]

    def _puts(self, files: Sequence[tuple[str, bytes]], before: Sequence[Item | None]) -> list[PutOp]:
        pairs = zip(files, before, strict=True)
        return [PutOp(self._namespace, path, _files.uploaded(content, _stored(item))) for (path, content), item in pairs]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [_flat.download(_stored(item), path) for path, item in zip(paths, self._get_many(paths), strict=True)]

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [_flat.download(_stored(item), path) for path, item in zip(paths, await self._aget_many(paths), strict=True)]

    def _get_many(self, paths: Sequence[str]) -> list[Item | None]:
        return cast("list[Item | None]", self._store.batch([GetOp(self._namespace, path) for path in paths])) if paths else []

    async def _aget_many(self, paths: Sequence[str]) -> list[Item | None]:
        return cast("list[Item | None]", await self._store.abatch([GetOp(self._namespace, path) for path in paths])) if paths else []

    # Listings and searches

    def ls(self, path: str) -> LsResult:
        with self._mirrors.of(self._namespace, self._all()) as mirror:
            return mirror.ls(path)

    async def als(self, path: str) -> LsResult:
        with self._mirrors.of(self._namespace, await self._aall()) as mirror:
            return await mirror.als(path)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        with self._mirrors.of(self._namespace, self._all()) as mirror:
            return mirror.glob(pattern, path)

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        with self._mirrors.of(self._namespace, await self._aall()) as mirror:
            return await mirror.aglob(pattern, path)

    def grep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        max_count: int | None = None,
        context_lines: int = 0,
    ) -> GrepResult:
        with self._mirrors.of(self._namespace, self._all()) as mirror:
            return mirror.grep(pattern, path, glob, max_count=max_count, context_lines=context_lines)

    async def agrep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        max_count: int | None = None,
        context_lines: int = 0,
    ) -> GrepResult:
        with self._mirrors.of(self._namespace, await self._aall()) as mirror:
            return await mirror.agrep(pattern, path, glob, max_count=max_count, context_lines=context_lines)

    def _all(self) -> dict[str, _files.Stored]:
        """Reads all files of the namespace."""
        files: dict[str, _files.Stored] = {}
        offset = 0
        while True:
            page = self._store.search(self._namespace, limit=PAGE, offset=offset)
            self._take(page, files)
            if len(page) < FULL_MIN:
                return files
            offset += len(page)

    async def _aall(self) -> dict[str, _files.Stored]:
        files: dict[str, _files.Stored] = {}
        offset = 0
        while True:
            page = await self._store.asearch(self._namespace, limit=PAGE, offset=offset)
            self._take(page, files)
            if len(page) < FULL_MIN:
                return files
            offset += len(page)

    def _take(self, page: Sequence[Item], files: dict[str, _files.Stored]) -> None:
        """Takes the files of a page. The search of a store also finds what is in namespaces beneath this one."""
        for item in page:
            if tuple(item.namespace) == self._namespace and item.value.get("content") is not None:
                files.setdefault(str(item.key), item.value)


def _stored(item: Item | None) -> _files.Stored | None:
    return None if item is None or item.value.get("content") is None else item.value


def not_a_file(item: Item) -> str:
    """Says that an item, which something else put, is no file."""
    return f"Store item does not contain valid content field. Got: {item.value.keys()}"
