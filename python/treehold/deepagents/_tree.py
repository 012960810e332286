"""What deepagents' backends answer, from a native tree.

`TreeBackend` has every method of `BackendProtocol`, synchronous and asynchronous. A subclass says which tree to ask, how its
paths relate to the caller's, and how its errors read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

from deepagents.backends.protocol import (
    BackendProtocol,
    DeleteResult,
    EditResult,
    FileData,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)

import treehold
from treehold.deepagents import _files, _text
from treehold.deepagents._overrides import native
from treehold.deepagents._search import Globbing, Grepping, InvalidPattern

PAGE: Final = 1_000_000
"""How many entries are asked for at once. Longer listings are read in several parts."""

READ_BYTES_MAX: Final = 1 << 40
"""The largest file that is read whole: any that fits in memory."""

NO_FILE: Final = frozenset(("not_found", "is_directory", "not_a_directory"))
"""The codes that mean that there is no file at a path."""

STANDARD: Final[Mapping[str, str]] = {
    "not_found": "file_not_found",
    "permission_denied": "permission_denied",
    "read_only": "permission_denied",
    "is_directory": "is_directory",
    "not_a_directory": "invalid_path",
    "already_exists": "invalid_path",
    "invalid_path": "invalid_path",
    "invalid_argument": "invalid_path",
}
"""deepagents' names of errors of uploads and downloads, by our codes."""


class TreeBackend(BackendProtocol):
    """The methods of `BackendProtocol` on a native tree."""

    _searches_hidden = True
    """Whether `grep` without a filter enters directories whose names start with a dot, and files with such names."""

    _searches_ignored = True
    """Whether `grep` reads files that a `.gitignore` excludes."""

    _follows_links = False
    """Whether a listing tells what links lead to."""

    _lists_plainly = False
    """Whether entries are shown as the tree has them: the paths are the caller's, and the times are those of the tree."""

    def _size_max_bytes(self) -> int | None:
        """Returns the size of the largest file that `grep` reads."""
        return None

    def _tree(self) -> treehold.Backend:
        """Returns the tree to ask."""
        raise NotImplementedError

    def _tree_to_write(self) -> treehold.Backend:
        """Returns the tree for a change that may be its first."""
        return self._tree()

    def _inner(self, path: str) -> str:
        """Turns the caller's path into one of the tree."""
        return path if path.startswith("/") else "/" + path

    def _outer(self, path: str) -> str:
        """Turns a path of the tree into the caller's."""
        return path

    def _search_root(self, path: str | None) -> str:
        """Returns where in the tree a search begins."""
        return self._inner(path or "/")

    # Listings

    def ls(self, path: str) -> LsResult:
        entries: list[treehold.Entry] = []
        after: str | None = None
        inner = self._inner(path)
        try:
            while True:
                page = self._tree().ls(inner, limit=PAGE, after=after, links=self._follows_links)
                if self._is_plain(page, after):
                    return LsResult(entries=cast("list[FileInfo]", page.infos()))
                entries += page.entries
                after = page.next
                if after is None:
                    return self._listed(entries, page.failures)
        except treehold.Error as error:
            return self._not_listed(path, error)

    @native
    async def als(self, path: str) -> LsResult:
        entries: list[treehold.Entry] = []
        after: str | None = None
        inner = self._inner(path)
        try:
            while True:
                page = await self._tree().als(inner, limit=PAGE, after=after, links=self._follows_links)
                if self._is_plain(page, after):
                    return LsResult(entries=cast("list[FileInfo]", page.infos()))
                entries += page.entries
                after = page.next
                if after is None:
                    return self._listed(entries, page.failures)
        except treehold.Error as error:
            return self._not_listed(path, error)

    def _is_plain(self, page: treehold.Listing, after: str | None) -> bool:
        """Tells whether a page is the whole listing, and needs no changes."""
        return self._lists_plainly and after is None and page.next is None and not page.failures

    def _listed(self, entries: Iterable[treehold.Entry], failures: Sequence[treehold.Failure]) -> LsResult:
        infos = [self._info(entry) for entry in entries]
        infos.sort(key=lambda info: info["path"])
        error = "\n".join(f"child error: {failure.message}" for failure in failures) or None
        return LsResult(error=error, entries=infos)

    def _not_listed(self, path: str, error: treehold.Error) -> LsResult:
        """Makes the result of a listing that failed. A missing directory of a store is an empty one."""
        if error.code in NO_FILE:
            return LsResult(entries=[])
        return LsResult(error=f"Cannot list '{path}': {error.message}")

    def _info(self, entry: treehold.Entry) -> FileInfo:
        path, modified_at = self._outer(entry.path), self._time(entry.modified_at_iso)
        if entry.is_dir:
            return FileInfo(path=path + "/", is_dir=True, size=0, modified_at=modified_at)
        return FileInfo(path=path, is_dir=False, size=entry.size_bytes, modified_at=modified_at)

    def _time(self, time: str | None) -> str:
        return time or ""

    # Reads

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        offset, limit = _text.bounds(offset, limit)
        inner = self._inner(file_path)
        try:
            if _text.is_media(file_path):
                return self._media(file_path, self._tree().read(inner, bytes_max=READ_BYTES_MAX))
            found = self._tree().read(inner, offset=offset, limit=limit)
            result = self._windowed(file_path, found, limit)
            return result or self._blank(file_path, found, self._tree().read(inner), limit)
        except treehold.Error as error:
            return self._not_read(file_path, offset, error)

    @native
    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        offset, limit = _text.bounds(offset, limit)
        inner = self._inner(file_path)
        try:
            if _text.is_media(file_path):
                return self._media(file_path, await self._tree().aread(inner, bytes_max=READ_BYTES_MAX))
            found = await self._tree().aread(inner, offset=offset, limit=limit)
            result = self._windowed(file_path, found, limit)
            return result or self._blank(file_path, found, await self._tree().aread(inner), limit)
        except treehold.Error as error:
            return self._not_read(file_path, offset, error)

    def _media(self, path: str, found: treehold.FileRead) -> ReadResult:
        """Makes the result of reading an image or document: all of it."""
        content, encoding = _files.encoded(found.content)
        return ReadResult(file_data=self._data(content, encoding, found))

    def _windowed(self, path: str, found: treehold.FileRead, limit: int) -> ReadResult | None:
        """Makes the result of reading lines. `None` if they are blank, so that the whole file has to be seen."""
        try:
            text = _text.shown(found.text())
        except UnicodeDecodeError as error:
            return self._failed_read(path, str(error))
        if not text or text.isspace():
            return None
        return self._lines(text, found)

    def _lines(self, text: str, found: treehold.FileRead) -> ReadResult:
        data, window = self._data(text, "utf-8", found), found.window
        if window is not None:
            return _text.lines(data, window.offset, window.lines, window.total_lines)
        total = _text.count_lines(text)
        return _text.lines(data, 0, total, total)

    def _blank(self, path: str, found: treehold.FileRead, whole: treehold.FileRead, limit: int) -> ReadResult:
        """Makes the result of reading lines without text: of a blank file, of no lines, or of blank lines."""
        text, window = whole.text(errors="replace"), found.window
        if not text or text.isspace():
            return ReadResult(file_data=self._data(self._blank_text(text), "utf-8", whole))
        if limit == 0:
            return ReadResult(file_data=self._data("", "utf-8", found), no_lines_requested=True)
        if window is not None and window.lines == 0:
            return _text.past_the_end(window.offset, window.total_lines)
        return self._lines(_text.shown(found.text()), found)

    def _blank_text(self, text: str) -> str:
        """Returns what a reader of a blank file gets. The middleware makes a notice of blank text."""
        return text

    def _data(self, content: str, encoding: str, found: treehold.FileRead) -> FileData:
        data = FileData(content=content, encoding=encoding)
        if found.modified_at_iso is not None:
            data["modified_at"] = self._time(found.modified_at_iso)
        return data

    def _not_read(self, path: str, offset: int, error: treehold.Error) -> ReadResult:
        if error.code in NO_FILE:
            return ReadResult(error=f"File '{path}' not found")
        if error.code == "invalid_argument" and "past the end" in error.message:
            total = next((int(word) for word in reversed(error.message.split()) if word.isdigit()), 0)
            return _text.past_the_end(offset, total)
        return self._failed_read(path, error.message)

    def _failed_read(self, path: str, message: str) -> ReadResult:
        return ReadResult(error=f"Error reading file '{path}': {message}")

    # Changes

    def write(self, file_path: str, content: str) -> WriteResult:
        inner = self._inner(file_path)
        try:
            self._tree_to_write().write(inner, content)
        except (treehold.Error, UnicodeEncodeError) as error:
            return self._not_written(file_path, error)
        return WriteResult(path=file_path)

    @native
    async def awrite(self, file_path: str, content: str) -> WriteResult:
        inner = self._inner(file_path)
        try:
            await self._tree_to_write().awrite(inner, content)
        except (treehold.Error, UnicodeEncodeError) as error:
            return self._not_written(file_path, error)
        return WriteResult(path=file_path)

    def _not_written(self, path: str, error: Exception) -> WriteResult:
        return WriteResult(error=f"Error writing file '{path}': {message_of(error)}")

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        if not old_string:
            return EditResult(error=_text.EMPTY_OLD_STRING)
        inner = self._inner(file_path)
        try:
            try:
                changed = self._tree().edit(inner, old_string, new_string, replace_all=replace_all)
            except treehold.Error as error:
                if error.code not in ("no_match", "ambiguous"):
                    raise
                return self._not_replaced(self._tree().read(inner), old_string, new_string, replace_all)
        except (treehold.Error, UnicodeEncodeError) as error:
            return self._not_edited(file_path, error)
        return EditResult(path=file_path, occurrences=changed.replacements)

    @native
    async def aedit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        if not old_string:
            return EditResult(error=_text.EMPTY_OLD_STRING)
        inner = self._inner(file_path)
        try:
            try:
                changed = await self._tree().aedit(inner, old_string, new_string, replace_all=replace_all)
            except treehold.Error as error:
                if error.code not in ("no_match", "ambiguous"):
                    raise
                return self._not_replaced(await self._tree().aread(inner), old_string, new_string, replace_all)
        except (treehold.Error, UnicodeEncodeError) as error:
            return self._not_edited(file_path, error)
        return EditResult(path=file_path, occurrences=changed.replacements)

    def _not_replaced(self, found: treehold.FileRead, old: str, new: str, replace_all: bool) -> EditResult:
        try:
            return EditResult(error=_text.why_not_replaced(found.text(), old, new, replace_all))
        except UnicodeDecodeError:
            return EditResult(error=_text.BINARY_EDIT)

    def _not_edited(self, path: str, error: Exception) -> EditResult:
        if isinstance(error, treehold.Error) and error.code in NO_FILE:
            return EditResult(error=f"Error: File '{path}' not found")
        return EditResult(error=f"Error editing file '{path}': {message_of(error)}")

    def delete(self, file_path: str) -> DeleteResult:
        inner = self._inner(file_path)
        try:
            self._tree().delete(inner, recursive=True)
        except treehold.Error as error:
            return self._not_deleted(file_path, error)
        return DeleteResult(path=file_path)

    @native
    async def adelete(self, file_path: str) -> DeleteResult:
        inner = self._inner(file_path)
        try:
            await self._tree().adelete(inner, recursive=True)
        except treehold.Error as error:
            return self._not_deleted(file_path, error)
        return DeleteResult(path=file_path)

    def _not_deleted(self, path: str, error: treehold.Error) -> DeleteResult:
        if error.code in NO_FILE:
            return DeleteResult(error=f"Error: File '{path}' not found")
        return DeleteResult(error=f"Error deleting '{path}': {error.message}")

    # Searches

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        try:
            globbing = Globbing(pattern, self._search_root(path))
            while not globbing.is_done:
                globbing.add(self._tree().glob(globbing.pattern, globbing.root, **globbing.options))
        except InvalidPattern as error:
            return GlobResult(error=str(error))
        except treehold.Error as error:
            return self._not_globbed(path, error)
        return globbing.result(self._info)

    @native
    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        try:
            globbing = Globbing(pattern, self._search_root(path))
            while not globbing.is_done:
                globbing.add(await self._tree().aglob(globbing.pattern, globbing.root, **globbing.options))
        except InvalidPattern as error:
            return GlobResult(error=str(error))
        except treehold.Error as error:
            return self._not_globbed(path, error)
        return globbing.result(self._info)

    def _not_globbed(self, path: str | None, error: treehold.Error) -> GlobResult:
        if error.code in NO_FILE:
            return GlobResult(matches=[])
        if error.code == "invalid_argument":
            return GlobResult(error=f"Invalid glob pattern: {error.message}")
        return GlobResult(error=f"Error globbing path '{path or '<default>'}': {error.message}", matches=[])

    def grep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        max_count: int | None = None,
        context_lines: int = 0,
    ) -> GrepResult:
        try:
            grepping = self._grepping(pattern, path, glob, max_count, context_lines)
            while not grepping.is_done:
                grepping.add(self._tree().grep(grepping.pattern, grepping.root, **grepping.options))
        except InvalidPattern as error:
            return GrepResult(error=str(error))
        except treehold.Error as error:
            return self._not_grepped(path, error)
        return grepping.result()

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
        try:
            grepping = self._grepping(pattern, path, glob, max_count, context_lines)
            while not grepping.is_done:
                grepping.add(await self._tree().agrep(grepping.pattern, grepping.root, **grepping.options))
        except InvalidPattern as error:
            return GrepResult(error=str(error))
        except treehold.Error as error:
            return self._not_grepped(path, error)
        return grepping.result()

    def _grepping(self, pattern: str, path: str | None, glob: str | None, max_count: int | None, context_lines: int) -> Grepping:
        return Grepping(
            pattern,
            self._search_root(path),
            glob,
            outer=self._outer,
            max_count=max_count,
            context_lines=context_lines,
            hidden=self._searches_hidden,
            ignored=self._searches_ignored,
            size_max_bytes=self._size_max_bytes(),
        )

    def _not_grepped(self, path: str | None, error: treehold.Error) -> GrepResult:
        if error.code in NO_FILE:
            return GrepResult(matches=[])
        return GrepResult(error=f"Error searching path '{path or '/'}': {error.message}", matches=[])

    # Batches

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        responses: list[FileUploadResponse] = []
        for path, content in files:
            try:
                self._tree_to_write().write(self._inner(path), content)
            except (treehold.Error, ValueError) as error:
                responses.append(FileUploadResponse(path=path, error=self._standard(path, error)))
            else:
                responses.append(FileUploadResponse(path=path))
        return responses

    @native
    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        responses: list[FileUploadResponse] = []
        for path, content in files:
            try:
                await self._tree_to_write().awrite(self._inner(path), content)
            except (treehold.Error, ValueError) as error:
                responses.append(FileUploadResponse(path=path, error=self._standard(path, error)))
            else:
                responses.append(FileUploadResponse(path=path))
        return responses

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        responses: list[FileDownloadResponse] = []
        for path in paths:
            try:
                content = self._tree().read(self._inner(path), bytes_max=READ_BYTES_MAX).content
            except (treehold.Error, ValueError) as error:
                responses.append(FileDownloadResponse(path=path, error=self._standard(path, error)))
            else:
                responses.append(FileDownloadResponse(path=path, content=content))
        return responses

    @native
    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        responses: list[FileDownloadResponse] = []
        for path in paths:
            try:
                content = (await self._tree().aread(self._inner(path), bytes_max=READ_BYTES_MAX)).content
            except (treehold.Error, ValueError) as error:
                responses.append(FileDownloadResponse(path=path, error=self._standard(path, error)))
            else:
                responses.append(FileDownloadResponse(path=path, content=content))
        return responses

    def _standard(self, path: str, error: Exception) -> str:
        """Returns deepagents' name of an error of an upload or download, or its message if it has none."""
        if isinstance(error, treehold.Error):
            return STANDARD.get(error.code, error.message)
        return "invalid_path"


def message_of(error: Exception) -> str:
    """Returns what an error says, without the path, which the caller knows."""
    return error.message if isinstance(error, treehold.Error) else str(error)

