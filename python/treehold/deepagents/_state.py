"""Files in the state of a graph."""

from __future__ import annotations

from typing import Any, cast

from deepagents.backends import StateBackend as TheirStateBackend
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
from langgraph.config import get_config

from treehold.deepagents import _files, _flat
from treehold.deepagents._mirror import Files, Mirrors
from treehold.deepagents._overrides import native
from treehold.deepagents._steps import REFUSED, Steps


class StateBackend(TheirStateBackend):
    """Keeps files in the `files` channel of the running graph, as deepagents does.

    Every operation reads the channel, and every change is a write to it. So checkpoints, forks, `invoke({"files": ...})` and
    other readers of the channel see what they expect. Outside of a graph every operation raises `RuntimeError`.

    Listings and searches run on a native tree that is kept equal to the channel: only what changed since the last one is
    copied. Reads, writes and edits do not wait for anything, so their async methods run on the event loop itself.

    Tasks of one step of a graph, such as the tools that one message calls, see the files as they were before the step. If two of
    them change one file, the second change is refused, because the graph would keep only one of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._mirrors = Mirrors()
        self._steps = Steps()

    def _files_now(self) -> Files:
        return cast("Files", self._read_files())

    def _owner(self) -> object:
        """Names the thread that runs, whose tree needs the fewest changes."""
        try:
            return get_config().get("configurable", {}).get("thread_id")
        except RuntimeError:
            return None

    def _put(self, changes: dict[str, dict[str, Any] | None]) -> None:
        if changes:
            self._send_files_update(cast("dict[str, Any]", changes))

    def ls(self, path: str) -> LsResult:
        with self._mirrors.of(self._owner(), self._files_now()) as mirror:
            return mirror.ls(path)

    @native
    async def als(self, path: str) -> LsResult:
        with self._mirrors.of(self._owner(), self._files_now()) as mirror:
            return await mirror.als(path)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        with self._mirrors.of(self._owner(), self._files_now()) as mirror:
            return mirror.glob(pattern, path)

    @native
    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        with self._mirrors.of(self._owner(), self._files_now()) as mirror:
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
        with self._mirrors.of(self._owner(), self._files_now()) as mirror:
            return mirror.grep(pattern, path, glob, max_count=max_count, context_lines=context_lines)

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
        with self._mirrors.of(self._owner(), self._files_now()) as mirror:
            return await mirror.agrep(pattern, path, glob, max_count=max_count, context_lines=context_lines)

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return _flat.read(self._files_now().get(file_path), file_path, offset, limit)

    @native
    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return self.read(file_path, offset, limit)

    def write(self, file_path: str, content: str) -> WriteResult:
        before = self._files_now().get(file_path)
        if not self._steps.claim([file_path]):
            return WriteResult(error=REFUSED)
        self._put({file_path: _files.new_file(content, before)})
        return WriteResult(path=file_path)

    @native
    async def awrite(self, file_path: str, content: str) -> WriteResult:
        return self.write(file_path, content)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        made, result = _flat.edit(self._files_now().get(file_path), file_path, old_string, new_string, replace_all)
        if made is None:
            return result
        if not self._steps.claim([file_path]):
            return EditResult(error=REFUSED)
        self._put({file_path: made})
        return result

    @native
    async def aedit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        return self.edit(file_path, old_string, new_string, replace_all)

    def delete(self, file_path: str) -> DeleteResult:
        removed = _flat.beneath(self._files_now(), file_path)
        if not removed:
            return DeleteResult(error=f"Error: File '{file_path}' not found")
        if not self._steps.claim(removed):
            return DeleteResult(error=REFUSED)
        self._put(dict.fromkeys(removed))
        return DeleteResult(path=file_path)

    @native
    async def adelete(self, file_path: str) -> DeleteResult:
        return self.delete(file_path)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        before = self._files_now()
        refused = {path for path, _ in files if not self._steps.claim([path])}
        self._put({path: _files.uploaded(content, before.get(path)) for path, content in files if path not in refused})
        return [FileUploadResponse(path=path, error=REFUSED if path in refused else None) for path, _ in files]

    @native
    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return self.upload_files(files)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        files = self._files_now()
        return [_flat.download(files.get(path), path) for path in paths]

    @native
    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return self.download_files(paths)
