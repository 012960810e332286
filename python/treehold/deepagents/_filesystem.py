"""A directory of this machine."""

from __future__ import annotations

import base64
import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from deepagents.backends import FilesystemBackend as TheirFilesystemBackend
from deepagents.backends import utils
from deepagents.backends.protocol import DeleteResult, FileData, FileInfo, GlobResult, GrepResult, LsResult, ReadResult
from deepagents.backends.utils import EMPTY_CONTENT_WARNING

import treehold
from treehold.deepagents import _text
from treehold.deepagents._overrides import native
from treehold.deepagents._tree import NO_FILE, TreeBackend

VIDEO_BYTES_MAX: Final = int(getattr(utils, "MAX_VIDEO_INPUT_BYTES", 1 << 30))
"""The largest video that deepagents reads."""


ROOT: Final = Path("/")


class FilesystemBackend(TreeBackend, TheirFilesystemBackend):
    """Reads and writes files of this machine.

    Compared with the class of the same name in deepagents:

    - In virtual mode nothing leads out of `root_dir`: every path is opened beneath a handle of the directory, so a link that is
      swapped in meanwhile leads nowhere. Links within the directory are followed; deleting a link removes the link.
    - A file is written beside its old content and renamed, so a reader sees the old or the new. Writers in any thread or
      process that use treehold lock the directory, so no acknowledged edit is lost.
    - An edit keeps the line endings of the file.
    - `grep` searches in the process, with the rules that deepagents has if ripgrep is installed: neither hidden files nor what
      a `.gitignore` excludes. A file over `max_file_size_mb` is not searched.
    - Asynchronous methods need no thread of Python, and stop when they are cancelled.
    """

    _follows_links = True
    _searches_hidden = False
    _searches_ignored = False

    def _size_max_bytes(self) -> int | None:
        return self.max_file_size_bytes

    # The tree

    _opened: tuple[treehold.FilesystemBackend, Path, tuple[int, int]] | None = None
    """The open directory, with its path and identity."""

    def _tree(self, *, create: bool = False) -> treehold.Backend:
        """Opens the directory at the first use, and again if another one is in its place. Only a write creates it."""
        path = self.cwd if self.virtual_mode else ROOT
        opened = self._opened
        # No other directory takes the place of the root.
        if opened is not None and opened[1] == path and (path is ROOT or _identity(path) == opened[2]):
            return opened[0]
        native = treehold.FilesystemBackend(path, create_root=create, cross_mounts=True)
        self._opened = (native, path, _identity(path))
        return native

    def _tree_to_write(self) -> treehold.Backend:
        return self._tree(create=True)

    def _inner(self, path: str) -> str:
        if not self.virtual_mode:
            # Most paths are absolute and normal already.
            if path.startswith("/") and not path.endswith("/") and "//" not in path and "/." not in path:
                return path
            return os.path.abspath(os.path.join(self.cwd, path))
        if ".." in path and ".." in path.split("/"):
            raise ValueError("Path traversal not allowed")
        return path if path.startswith("/") else "/" + path

    def _search_root(self, path: str | None) -> str:
        return self._inner(path or ("/" if self.virtual_mode else "."))

    def _resolve_path(self, key: str) -> Path:
        """Resolves a path on this machine. deepagents' middleware asks for it to judge permissions by what links lead to."""
        if not self.virtual_mode or ".." not in key:
            return super()._resolve_path(key)
        full = (self.cwd / self._inner(key).lstrip("/")).resolve()
        if not full.is_relative_to(self.cwd):
            raise ValueError(f"Path:{full} outside root directory: {self.cwd}")
        return full

    # Listings

    def _listed(self, entries: Iterable[treehold.Entry], failures: Sequence[treehold.Failure]) -> LsResult:
        """Lists links as what they lead to, unless that is outside of the directory or missing."""
        errors = [f"child error: {failure.message}" for failure in failures]
        infos: list[FileInfo] = []
        for entry in entries:
            if entry.kind == "symlink":
                if entry.target is not None:
                    infos.append({**self._info(entry.target), "path": self._outer(entry.path) + ("/" if entry.target.is_dir else "")})
                elif self._is_loop(entry.path):
                    errors.append(f"child error: cannot resolve '{self._outer(entry.path)}': {os.strerror(errno.ELOOP)}")
            elif entry.kind != "other":
                infos.append(self._info(entry))
        infos.sort(key=lambda info: info["path"])
        return LsResult(error="\n".join(sorted(errors)) or None, entries=infos)

    def _is_loop(self, inner: str) -> bool:
        """Tells whether a link leads to itself."""
        try:
            os.stat(self._host(inner))
        except OSError as error:
            return error.errno == errno.ELOOP
        return False

    def _host(self, inner: str) -> Path:
        return self.cwd / inner.lstrip("/") if self.virtual_mode else Path(inner)

    def _not_listed(self, path: str, error: treehold.Error) -> LsResult:
        if error.code == "not_found":
            return LsResult(error=f"Path '{path}': path_not_found")
        if error.code == "not_a_directory":
            # Also the code of a file in the middle of the path, where there is nothing.
            is_file = self._exists(path)
            return LsResult(error=f"Path '{path}': {'not_a_directory' if is_file else 'path_not_found'}")
        return LsResult(error=f"Cannot list '{path}': {error.message}")

    def _exists(self, path: str) -> bool:
        try:
            return self._tree().exists(self._inner(path))
        except treehold.Error:
            return False

    # Reads

    def _media(self, path: str, found: treehold.FileRead) -> ReadResult:
        if _text.is_video(path) and found.size_bytes > VIDEO_BYTES_MAX:
            return ReadResult(error=f"Video file exceeds maximum input size of {VIDEO_BYTES_MAX} bytes")
        content = base64.b64encode(found.content).decode("ascii")
        return ReadResult(file_data=FileData(content=content, encoding="base64"))

    def _data(self, content: str, encoding: str, found: treehold.FileRead) -> FileData:
        return FileData(content=content, encoding=encoding)

    def _blank_text(self, text: str) -> str:
        return EMPTY_CONTENT_WARNING

    # Changes

    def _not_deleted(self, path: str, error: treehold.Error) -> DeleteResult:
        if error.code in NO_FILE:
            return DeleteResult(error=f"Error: '{path}' not found")
        return DeleteResult(error=f"Error deleting '{path}': {error.message}")

    # Batches

    def _standard(self, path: str, error: Exception) -> str:
        if isinstance(error, treehold.PermissionDenied):
            try:
                self._resolve_path(path)
            except (OSError, RuntimeError, ValueError):
                # A link that leads out of the directory, or to itself.
                return "invalid_path"
        return super()._standard(path, error)

    # Searches

    def _not_grepped(self, path: str | None, error: treehold.Error) -> GrepResult:
        if error.code in NO_FILE:
            return GrepResult(matches=[])
        return GrepResult(error=f"Error searching path '{path or '.'}': {error.message}", matches=[])

    def _globbed_root(self, path: str | None) -> str | None:
        # deepagents finds from `root_dir` also when a path of this machine was asked for by its root.
        return None if path == "/" else path

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        return super().glob(pattern, self._globbed_root(path))

    @native
    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        return await super().aglob(pattern, self._globbed_root(path))

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
            return super().grep(pattern, path, glob, max_count=max_count, context_lines=context_lines)
        except ValueError as error:
            return _nothing_outside(error)

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
            return await super().agrep(pattern, path, glob, max_count=max_count, context_lines=context_lines)
        except ValueError as error:
            return _nothing_outside(error)


def _nothing_outside(error: ValueError) -> GrepResult:
    """Answers a search outside of the directory, which finds nothing."""
    if "traversal" not in str(error):
        raise error
    return GrepResult(matches=[])


def _identity(path: Path) -> tuple[int, int]:
    """Returns what tells a directory from another one at the same path."""
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return (found.st_dev, found.st_ino)
