"""The files of an agentscope workspace in a tree of treehold."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import AsyncIterator
from typing import Literal

from agentscope.tool import BackendBase, ExecResult
from agentscope.tool._builtin._backend import DEFAULT_READ_CHUNK_SIZE, DirEntry

from treehold import Backend, Entry, Session
from treehold.agentscope._commands import Commands
from treehold.agentscope._seen import Seen
from treehold.errors import Conflict, Error, InvalidArgument, InvalidPath, NotADirectory, NotFound, TooLarge

__all__ = ["TreeholdBackend"]

_ABSENT = (NotFound, NotADirectory, InvalidPath)


class TreeholdBackend(BackendBase):
    """Runs agentscope's file tools on a tree: pass it as `backend=` to `Read`, `Write`, `Edit`, `Grep` and `Glob`.

    A write replaces only the version of the file that its task has looked at, so a change by another process between a tool's
    check and its write raises `Conflict` and stays. With `on_conflict="overwrite"` the last writer wins.

    There are no processes in a tree. `exec_shell` runs what the file tools need, natively, and gives everything else to `shell`,
    a backend such as agentscope's `LocalBackend`; without one it returns exit code 127.
    """

    def __init__(
        self,
        tree: Backend | Session,
        *,
        cwd: str = "/",
        shell: BackendBase | None = None,
        on_conflict: Literal["fail", "overwrite"] = "fail",
        file_bytes_max: int = 64 * 1024 * 1024,
        entries_max: int = 100_000,
    ) -> None:
        if on_conflict not in ("fail", "overwrite"):
            raise InvalidArgument(f"`on_conflict` is {on_conflict!r}; use 'fail' or 'overwrite'")
        if file_bytes_max < 1 or entries_max < 1:
            raise InvalidArgument("`file_bytes_max` and `entries_max` must be at least 1")
        self._tree: Backend = tree
        self._cwd = posixpath.normpath("/" + cwd.lstrip("/"))
        self._shell = shell
        self._overwrites = on_conflict == "overwrite"
        self._file_bytes_max = file_bytes_max
        self._entries_max = entries_max
        self._seen = Seen()
        self._commands = Commands(self._tree, entries_max=entries_max)

    async def exec_shell(
        self, command: list[str], *, cwd: str | None = None, timeout: float | None = None
    ) -> ExecResult:
        """Runs a program that works on the tree, or gives the command to the shell."""
        program = self._commands.knows(command)
        if program is None:
            if self._shell is not None:
                return await self._shell.exec_shell(command, cwd=cwd, timeout=timeout)
            name = command[0] if command else ""
            text = f"{name}: there are no processes in a tree; give the backend a `shell`"
            return ExecResult(exit_code=127, stdout=b"", stderr=text.encode("utf-8", "replace"))
        directory = self._cwd if cwd is None else self._path(cwd)
        try:
            return await asyncio.wait_for(self._commands.run(program, command, directory), timeout)
        except asyncio.TimeoutError:
            return ExecResult(exit_code=-1, stdout=b"", stderr=b"timed out")

    async def read_file(self, path: str) -> bytes:
        """Returns the content of a file."""
        name = self._path(path)
        try:
            read = await self._tree.aread(name, bytes_max=self._file_bytes_max)
        except (NotFound, NotADirectory):
            self._seen.note(name, None)
            raise
        self._seen.note(name, read.version)
        return read.content

    async def write_file(self, path: str, data: bytes) -> None:
        """Creates or replaces a file, with its directories. Raises `Conflict` if it changed since the task looked at it."""
        name = self._path(path)
        if len(data) > self._file_bytes_max:
            raise TooLarge(f"the content is over {self._file_bytes_max} bytes; split it or raise `file_bytes_max`", path=name)
        seen = None if self._overwrites else self._seen.of(name)
        try:
            if seen is None:
                changed = await self._tree.awrite(name, data, mode="overwrite")
            elif seen[0] is None:
                changed = await self._tree.awrite(name, data, mode="create")
            else:
                changed = await self._tree.awrite(name, data, if_version=seen[0])
        except Error:
            self._seen.forget(name)  # The caller looks again before it repeats the write.
            raise
        self._seen.forget(name)
        if changed.version is not None:
            self._seen.note(name, changed.version)

    async def write_stream(self, path: str, stream: AsyncIterator[bytes]) -> None:
        """Creates or replaces a file once the whole stream has arrived."""
        content = bytearray()
        async for chunk in stream:
            content += chunk
            if len(content) > self._file_bytes_max:
                raise TooLarge(
                    f"the content is over {self._file_bytes_max} bytes; split it or raise `file_bytes_max`", path=self._path(path)
                )
        await self.write_file(path, bytes(content))

    async def read_stream(self, path: str, chunk_size: int = DEFAULT_READ_CHUNK_SIZE) -> AsyncIterator[bytes]:
        """Yields the content of one version of a file."""
        if chunk_size < 1:
            raise InvalidArgument(f"`chunk_size` is {chunk_size}; use at least 1")
        name, offset, version = self._path(path), 0, None
        while True:
            read = await self._tree.aread_range(name, offset, chunk_size)
            if version is not None and read.version != version:
                raise Conflict("the file changed while it was read; read it again", path=name, current_version=read.version)
            version = read.version
            if read.content:
                yield read.content
            offset += len(read.content)
            if not read.content or offset >= read.size_bytes:
                return

    async def getcwd(self) -> str:
        """Returns the directory that relative paths start from."""
        return self._cwd

    async def expanduser(self, path: str) -> str:
        """Replaces a leading `~` by the working directory."""
        if path == "~" or path.startswith("~/"):
            return posixpath.join(self._cwd, path[2:])
        return path

    async def file_exists(self, path: str) -> bool:
        """Returns whether there is a file or directory."""
        return await self._look(path) is not None

    async def is_dir(self, path: str) -> bool:
        """Returns whether there is a directory."""
        entry = await self._look(path)
        return entry is not None and entry.is_dir

    async def stat(self, path: str) -> DirEntry | None:
        """Returns kind, size and time of a file or directory, if it exists."""
        entry = await self._look(path)
        return None if entry is None else _described(entry)

    async def stat_mtime(self, path: str) -> float | None:
        """Returns when a file changed last, if it exists. The task's next write requires that it has not changed since."""
        entry = await self._look(path, decides=True)
        return None if entry is None or entry.modified_at is None else entry.modified_at.timestamp()

    async def list_dir(self, path: str, *, recursive: bool = False) -> list[str]:
        """Returns the names in a directory, or with `recursive` the paths of all files beneath it."""
        try:
            if recursive:
                return [entry.path for entry in await self._beneath(self._path(path))]
            return [entry.name for entry in await self._children(self._path(path))]
        except _ABSENT:
            return []

    async def scandir(self, path: str) -> list[DirEntry]:
        """Returns what is in a directory, with kind, size and time."""
        try:
            return [_described(entry) for entry in await self._children(self._path(path))]
        except _ABSENT:
            return []

    async def delete_path(self, path: str) -> None:
        """Removes a file, or a directory with all in it, if it exists."""
        name = self._path(path)
        try:
            await self._tree.adelete(name, recursive=True)
        except NotFound:
            pass
        self._seen.forget(name, beneath=True)

    def _path(self, path: str) -> str:
        try:
            path.encode()
        except UnicodeEncodeError:
            raise InvalidPath("the path is not valid Unicode; use one without lone surrogates") from None
        return posixpath.normpath("/" + posixpath.join(self._cwd, path).lstrip("/"))

    async def _look(self, path: str, *, decides: bool = False) -> Entry | None:
        try:
            name = self._path(path)
            entry = await self._tree.astat(name)
        except InvalidPath:
            return None
        except (NotFound, NotADirectory):
            self._seen.note(self._path(path), None, decides=decides)
            return None
        if not entry.is_dir and entry.version is not None:
            self._seen.note(name, entry.version, decides=decides)
        return entry

    async def _children(self, path: str) -> list[Entry]:
        found: list[Entry] = []
        after: str | None = None
        while True:
            page = await self._tree.als(path, after=after)
            found.extend(page.entries)
            self._require_bounded(found, path)
            if page.next is None:
                return found
            after = page.next

    async def _beneath(self, path: str) -> list[Entry]:
        found: list[Entry] = []
        after: str | None = None
        while True:
            page = await self._tree.aglob("**/*", path, after=after, hidden=True, ignored=True)
            found.extend(entry for entry in page.entries if not entry.is_dir)
            self._require_bounded(found, path)
            if page.next is None:
                return found
            after = page.next

    def _require_bounded(self, found: list[Entry], path: str) -> None:
        if len(found) > self._entries_max:
            raise TooLarge(f"there are over {self._entries_max} entries; list a smaller directory", path=path)


def _described(entry: Entry) -> DirEntry:
    return DirEntry(
        name=entry.name,
        is_dir=entry.is_dir,
        size_bytes=None if entry.is_dir else entry.size_bytes,
        mtime=None if entry.modified_at is None else entry.modified_at.timestamp(),
    )
