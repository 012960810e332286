"""Native trees that are kept equal to a mapping of files, for listings and searches."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from deepagents.backends.protocol import FileInfo

import treehold
from treehold.deepagents import _files
from treehold.deepagents._tree import TreeBackend

IDLE_MAX: Final = 4
"""How many trees are kept, such as those of the threads that were active last."""

Files = Mapping[str, _files.Stored]
"""Files by path."""


class Mirror(TreeBackend):
    """A native tree with the files of a mapping.

    It leaves out what no tree can hold: files whose path is relative or malformed, and files with other files beneath their
    path. Files in base64 are not searched, as in deepagents.
    """

    def __init__(self) -> None:
        self._files: dict[str, _files.Stored] = {}
        self._native = treehold.StateBackend()

    def _tree(self) -> treehold.Backend:
        return self._native

    def update(self, files: Files) -> None:
        """Makes the tree equal to `files`. The cost is that of what changed, and of comparing the files with the last ones."""
        last = self._files
        if last == files:
            return
        changed = [path for path, stored in files.items() if (known := last.get(path)) is not stored and known != stored]
        removed = [path for path in last if path not in files] if len(last) + len(changed) > len(files) else []
        self._files = dict(files)
        try:
            self._remove(removed)
            self._native.write_many((path, searched(files[path])) for path in changed if is_normal(path))
        except treehold.Error:
            self._rebuild()

    def _remove(self, paths: Iterable[str]) -> None:
        """Removes files, and the directories that become empty."""
        for path in filter(is_normal, paths):
            self._native.delete(path)
            directory = path[: path.rfind("/")]
            while directory and not self._native.ls(directory, limit=1).entries:
                self._native.delete(directory)
                directory = directory[: directory.rfind("/")]

    def _rebuild(self) -> None:
        """Makes a new tree, without the files that no tree can hold."""
        directories = {path[:end] for path in self._files for end in ends_of_directories(path)}
        held = {path: searched(stored) for path, stored in self._files.items() if path not in directories and is_normal(path)}
        self._native = treehold.StateBackend()
        try:
            self._native.write_many(held)
        except treehold.Error:
            for path, content in held.items():
                try:
                    self._native.write(path, content)
                except treehold.Error:
                    continue

    def _info(self, entry: treehold.Entry) -> FileInfo:
        stored = self._files.get(entry.path)
        if entry.is_dir or stored is None:
            return FileInfo(path=entry.path + "/", is_dir=True, size=0, modified_at="")
        return FileInfo(path=entry.path, is_dir=False, size=_files.size_of(stored), modified_at=str(stored.get("modified_at", "")))


class Mirrors:
    """The trees of several mappings. A tree that one caller uses is not given to another."""

    def __init__(self) -> None:
        self._idle: OrderedDict[object, Mirror] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def of(self, key: object, files: Files) -> Generator[Mirror, None, None]:
        """Lends a tree with these files. `key` names their owner, whose last tree needs the fewest changes."""
        with self._lock:
            mirror = self._idle.pop(key, None)
        mirror = mirror or Mirror()
        mirror.update(files)
        try:
            yield mirror
        finally:
            with self._lock:
                self._idle[key] = mirror
                while len(self._idle) > IDLE_MAX:
                    self._idle.popitem(last=False)


def searched(stored: _files.Stored) -> str | bytes:
    """Returns the content that a search sees: text without lone surrogates, and nothing of what is stored in base64."""
    if _files.is_binary(stored):
        return b""
    text = _files.text_of(stored)
    return text if text.isascii() else text.encode("utf-8", "replace")


def is_normal(path: str) -> bool:
    """Tells whether a path is written as a tree writes it."""
    return path.startswith("/") and not path.endswith("/") and "//" not in path and "/./" not in path and not path.endswith("/.")


def ends_of_directories(path: str) -> Iterator[int]:
    """Yields where the paths of the directories above a file end."""
    end = path.rfind("/")
    while end > 0:
        yield end
        end = path.rfind("/", 0, end)
