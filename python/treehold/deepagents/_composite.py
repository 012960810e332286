"""A tree of backends: each path goes to the mount with the longest prefix."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from deepagents.backends import CompositeBackend as TheirCompositeBackend
from deepagents.backends.protocol import (
    BackendProtocol,
    DeleteResult,
    EditResult,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)

from treehold.deepagents._mounts import Mount, Mounts, inside, normal

GREP_MATCHES_MAX = 1_000_000
"""The most matches asked of a backend whose matches are partly hidden by mounts."""

Result = TypeVar("Result", ReadResult, WriteResult, EditResult, DeleteResult, LsResult)
Answer = TypeVar("Answer")


class CompositeBackend(TheirCompositeBackend):
    """Routes each path to the mount with the longest prefix, and all others to the default backend.

    The backends may be any mixture of this package's and others. Compared with the class of the same name in deepagents:

    - A mount is listed in every directory above it, and `grep` and `glob` from any of these search it too.
    - A pattern with slashes crosses mounts, in `glob` and in the file filter of `grep`: `*/notes.md` finds
      `/memories/notes.md`.
    - What a mount hides is hidden in every operation.
    - Paths in errors are the caller's.
    - The async methods ask the mounts concurrently.

    Two routes with the same path, or one that names no directory, raise `ValueError`.
    """

    def __init__(
        self,
        default: BackendProtocol,
        routes: dict[str, BackendProtocol],
        *,
        artifacts_root: str = "/",
    ) -> None:
        super().__init__(default, routes, artifacts_root=artifacts_root)
        self._mounts = Mounts(routes)

    def _get_backend_and_key(self, key: str) -> tuple[BackendProtocol, str]:
        backend, inner, _ = self._route(key)
        return backend, inner

    def _route(self, path: str) -> tuple[BackendProtocol, str, Mount | None]:
        """Returns the backend of a path, the path inside it, and its mount."""
        mount, inner = self._mounts.find(normal(path))
        return (self.default, path, None) if mount is None else (mount.backend, inner, mount)

    # One path

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        backend, inner, _ = self._route(file_path)
        return _named(backend.read(inner, offset=offset, limit=limit), inner, file_path)

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        backend, inner, _ = self._route(file_path)
        return _named(await backend.aread(inner, offset=offset, limit=limit), inner, file_path)

    def write(self, file_path: str, content: str) -> WriteResult:
        backend, inner, _ = self._route(file_path)
        return _named(backend.write(inner, content), inner, file_path)

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        backend, inner, _ = self._route(file_path)
        return _named(await backend.awrite(inner, content), inner, file_path)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        backend, inner, _ = self._route(file_path)
        return _named(backend.edit(inner, old_string, new_string, replace_all=replace_all), inner, file_path)

    async def aedit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        backend, inner, _ = self._route(file_path)
        return _named(await backend.aedit(inner, old_string, new_string, replace_all=replace_all), inner, file_path)

    def delete(self, file_path: str) -> DeleteResult:
        backend, inner, _ = self._route(file_path)
        try:
            return _named(backend.delete(inner), inner, file_path)
        except NotImplementedError:
            return DeleteResult(error=f"Error: deletion is not supported for '{file_path}'.")

    async def adelete(self, file_path: str) -> DeleteResult:
        backend, inner, _ = self._route(file_path)
        try:
            return _named(await backend.adelete(inner), inner, file_path)
        except NotImplementedError:
            return DeleteResult(error=f"Error: deletion is not supported for '{file_path}'.")

    # Directories

    def ls(self, path: str) -> LsResult:
        backend, inner, mount = self._route(path)
        return self._listed(path, inner, mount, _as_ls(backend.ls(inner)))

    async def als(self, path: str) -> LsResult:
        backend, inner, mount = self._route(path)
        return self._listed(path, inner, mount, _as_ls(await backend.als(inner)))

    def _listed(self, path: str, inner: str, mount: Mount | None, result: LsResult) -> LsResult:
        """Turns the listing of one backend into that of the composite: without what mounts hide, and with the mounts."""
        directory = normal(path)
        mounts = self._mounts.children_of(directory) if directory.startswith("/") else []
        if result.error and result.entries is None and not (mounts and result.error.endswith(": path_not_found")):
            return _named(result, inner, path)
        entries = {entry["path"]: entry for entry in self._seen_entries(mount, result.entries or [])}
        for name in mounts:
            entries.pop(name[:-1], None)
            entries.setdefault(name, FileInfo(path=name, is_dir=True, size=0, modified_at=""))
        error = result.error if result.entries is not None else None
        return LsResult(error=error, entries=[entries[name] for name in sorted(entries)])

    def _seen_entries(self, mount: Mount | None, entries: Sequence[FileInfo]) -> list[FileInfo]:
        outer = [entry if mount is None else cast("FileInfo", {**entry, "path": mount.outer(entry["path"])}) for entry in entries]
        return [entry for entry in outer if not self._mounts.hides(mount, entry["path"].rstrip("/"))]

    def _seen_matches(self, mount: Mount | None, matches: Sequence[GrepMatch]) -> list[GrepMatch]:
        outer = [match if mount is None else cast("GrepMatch", {**match, "path": mount.outer(match["path"])}) for match in matches]
        return [match for match in outer if not self._mounts.hides(mount, match["path"])]

    # Searches

    def _asks(self, path: str | None, glob: str | None) -> tuple[_Ask, list[_Ask]]:
        """Returns whom to ask about a directory: the backend that holds it, and the mounts beneath it.

        `glob` is adapted for each mount, and a mount beneath which it cannot match is left out.
        """
        directory = "/" if path is None else normal(path)
        backend, inner, mount = self._route(directory)
        first = _Ask(backend, mount, path if mount is None else inner, glob)
        others: list[_Ask] = []
        for other in self._mounts.beneath(directory):
            adapted = None if glob is None else inside(glob, directory, other)
            if glob is None or adapted is not None:
                others.append(_Ask(other.backend, other, "/", adapted))
        return first, others

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        first, others = self._asks(path, pattern)
        found = GlobResult(matches=[])
        for ask in (first, *others):
            failed = self._add_found(found, ask, _as_glob(ask.backend.glob(ask.glob or "", ask.path)))
            if failed is not None:
                return failed
        return _in_path_order(found)

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        first, others = self._asks(path, pattern)
        found = GlobResult(matches=[])
        failed = self._add_found(found, first, _as_glob(await first.backend.aglob(first.glob or "", first.path)))
        if failed is not None:
            return failed
        answers = await _all([ask.backend.aglob(ask.glob or "", ask.path) for ask in others])
        for ask, answer in zip(others, answers, strict=True):
            failed = self._add_found(found, ask, _as_glob(answer))
            if failed is not None:
                return failed
        return _in_path_order(found)

    def _add_found(self, found: GlobResult, ask: _Ask, result: GlobResult) -> GlobResult | None:
        """Adds what one backend found. Returns what the composite answers if the backend failed."""
        if result.error:
            matches = None if result.matches is None else self._seen_entries(ask.mount, result.matches)
            return GlobResult(error=ask.outer_text(result.error), matches=matches, truncated=result.truncated)
        found.matches = (found.matches or []) + self._seen_entries(ask.mount, result.matches or [])
        found.truncated = found.truncated or result.truncated
        reason = getattr(result, "truncation_reason", None)
        # Narrowing the search never reveals what cannot be read, so that reason outweighs the others.
        if reason is not None and (reason == "unreadable" or getattr(found, "truncation_reason", None) is None):
            found.truncation_reason = reason
        return None

    def grep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        max_count: int | None = None,
    ) -> GrepResult:
        first, others = self._asks(path, glob)
        found = _Found(max_count)
        for ask in (first, *others):
            cap = found.cap
            while True:
                answer = _as_grep(ask.backend.grep(pattern, ask.path, ask.glob, **_capped(ask.backend.grep, cap)), cap)
                seen = self._seen_matches(ask.mount, answer.matches or [])
                cap = found.wider_cap(answer, seen, cap)
                if cap is None:
                    break
            if found.add(ask, answer, seen):
                break
        return found.result()

    async def agrep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        max_count: int | None = None,
    ) -> GrepResult:
        first, others = self._asks(path, glob)
        found = _Found(max_count)

        async def ask_one(ask: _Ask, cap: int | None) -> tuple[GrepResult, list[GrepMatch]]:
            while True:
                answer = _as_grep(await ask.backend.agrep(pattern, ask.path, ask.glob, **_capped(ask.backend.agrep, cap)), cap)
                seen = self._seen_matches(ask.mount, answer.matches or [])
                wider = found.wider_cap(answer, seen, cap)
                if wider is None:
                    return answer, seen
                cap = wider

        if found.add(first, *await ask_one(first, found.cap)):
            return found.result()
        cap = found.cap
        for ask, (answer, seen) in zip(others, await _all([ask_one(ask, cap) for ask in others]), strict=True):
            if found.add(ask, answer, seen):
                break
        return found.result()

    # Batches

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        responses: list[FileUploadResponse | None] = [None] * len(files)
        for backend, batch in self._grouped([path for path, _ in files]):
            answers = backend.upload_files([(inner, files[index][1]) for index, inner in batch])
            for (index, _), answer in zip(batch, answers, strict=True):
                responses[index] = FileUploadResponse(path=files[index][0], error=answer.error)
        return [response for response in responses if response is not None]

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        responses: list[FileUploadResponse | None] = [None] * len(files)
        groups = self._grouped([path for path, _ in files])
        asked = [backend.aupload_files([(inner, files[index][1]) for index, inner in batch]) for backend, batch in groups]
        for (_, batch), answers in zip(groups, await _all(asked), strict=True):
            for (index, _), answer in zip(batch, answers, strict=True):
                responses[index] = FileUploadResponse(path=files[index][0], error=answer.error)
        return [response for response in responses if response is not None]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        responses: list[FileDownloadResponse | None] = [None] * len(paths)
        for backend, batch in self._grouped(paths):
            answers = backend.download_files([inner for _, inner in batch])
            for (index, _), answer in zip(batch, answers, strict=True):
                responses[index] = FileDownloadResponse(path=paths[index], content=answer.content, error=answer.error)
        return [response for response in responses if response is not None]

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        responses: list[FileDownloadResponse | None] = [None] * len(paths)
        groups = self._grouped(paths)
        asked = [backend.adownload_files([inner for _, inner in batch]) for backend, batch in groups]
        for (_, batch), answers in zip(groups, await _all(asked), strict=True):
            for (index, _), answer in zip(batch, answers, strict=True):
                responses[index] = FileDownloadResponse(path=paths[index], content=answer.content, error=answer.error)
        return [response for response in responses if response is not None]

    def _grouped(self, paths: Sequence[str]) -> list[tuple[BackendProtocol, list[tuple[int, str]]]]:
        """Groups paths by backend, as pairs of index and inner path. Each backend is called once."""
        groups: dict[int, tuple[BackendProtocol, list[tuple[int, str]]]] = {}
        for index, path in enumerate(paths):
            backend, inner, _ = self._route(path)
            groups.setdefault(id(backend), (backend, []))[1].append((index, inner))
        return list(groups.values())


@dataclass(frozen=True, slots=True)
class _Ask:
    """What to ask of one backend."""

    backend: BackendProtocol
    mount: Mount | None
    path: str | None
    glob: str | None

    def outer_text(self, text: str) -> str:
        """Replaces the backend's path in an error by the caller's."""
        return text if self.mount is None else _with_path(text, self.path or "/", self.mount.outer(self.path or "/"))


class _Found:
    """The matches of several backends under one limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._matches: list[GrepMatch] = []
        self._truncated = False
        self._failed: GrepResult | None = None

    @property
    def cap(self) -> int | None:
        """The most matches to ask of the next backend. One more than none, to learn whether there are more."""
        return None if self._limit is None else max(self._limit - len(self._matches), 1)

    def wider_cap(self, answer: GrepResult, seen: Sequence[GrepMatch], cap: int | None) -> int | None:
        """Returns a higher cap if mounts hide so many matches that a capped answer has too few."""
        if cap is None or not answer.truncated or len(seen) == len(answer.matches or []):
            return None
        wanted = self.cap or 0
        return min(cap * 4, GREP_MATCHES_MAX) if len(seen) < wanted and cap < GREP_MATCHES_MAX else None

    def add(self, ask: _Ask, answer: GrepResult, seen: Sequence[GrepMatch]) -> bool:
        """Adds an answer. Returns whether the search ends with it."""
        if answer.error:
            matches = None if answer.matches is None else [*self._matches, *seen]
            self._failed = GrepResult(error=ask.outer_text(answer.error), matches=matches, truncated=answer.truncated)
            return True
        room = len(seen) if self._limit is None else self._limit - len(self._matches)
        self._matches += seen[:room]
        self._truncated = self._truncated or answer.truncated or len(seen) > room
        return self._limit is not None and self._truncated

    def result(self) -> GrepResult:
        """Returns what was found, in path order."""
        if self._failed is not None:
            return self._failed
        self._matches.sort(key=lambda match: match["path"])
        return GrepResult(matches=self._matches, truncated=self._truncated)


def _named(result: Result, inner: str, path: str) -> Result:
    """Gives the result of a backend the caller's path."""
    if inner != path:
        if isinstance(result, (WriteResult, EditResult, DeleteResult)) and result.path is not None:
            result.path = path
        if result.error:
            result.error = _with_path(result.error, inner, path)
    return result


def _with_path(text: str, inner: str, path: str) -> str:
    return text.replace(f"'{inner}'", f"'{path}'")


def _as_ls(answer: LsResult | list[FileInfo]) -> LsResult:
    """Accepts the list that backends returned before there were results."""
    return answer if isinstance(answer, LsResult) else LsResult(entries=answer)


def _as_glob(answer: GlobResult | list[FileInfo]) -> GlobResult:
    return answer if isinstance(answer, GlobResult) else GlobResult(matches=answer)


def _as_grep(answer: GrepResult | list[GrepMatch] | str, cap: int | None) -> GrepResult:
    if isinstance(answer, str):
        return GrepResult(error=answer)
    result = answer if isinstance(answer, GrepResult) else GrepResult(matches=answer)
    if cap is not None and len(result.matches or []) > cap:
        return GrepResult(error=result.error, matches=(result.matches or [])[:cap], truncated=True)
    return result


def _capped(method: Callable[..., Any], cap: int | None) -> dict[str, int | None]:
    """Returns the keyword for the most matches, if the method has it: older backends do not."""
    function = getattr(method, "__func__", method)
    return {"max_count": cap} if _takes_max_count(function) else {}


@functools.lru_cache(maxsize=256)
def _takes_max_count(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return "max_count" in parameters or any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())


def _in_path_order(found: GlobResult) -> GlobResult:
    found.matches = sorted(found.matches or [], key=lambda entry: entry["path"])
    return found


async def _all(asked: Sequence[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """Awaits answers concurrently. A failure or a cancellation ends all of them before it is raised."""
    if len(asked) == 1:
        return [await asked[0]]
    tasks = [asyncio.ensure_future(each) for each in asked]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
