"""Which version of each file a task of the event loop acts on."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any
from weakref import WeakKeyDictionary

PATHS_MAX = 1024
"""How many paths are remembered for a task. The least recently used is forgotten first."""

Version = int | None
"""A version of a file, or `None` for a file that does not exist."""


class Seen:
    """The versions of files as tasks found them, so that a write replaces only what its task has seen.

    agentscope's tools check a file, decide, and write. `stat_mtime` is the check that decides, so what it found stays until the
    next one, even if the tool reads the file again before it writes.
    """

    def __init__(self) -> None:
        self._tasks: WeakKeyDictionary[asyncio.Task[Any], OrderedDict[str, tuple[Version, bool]]] = WeakKeyDictionary()

    def _paths(self) -> OrderedDict[str, tuple[Version, bool]] | None:
        task = asyncio.current_task()
        return None if task is None else self._tasks.setdefault(task, OrderedDict())

    def note(self, path: str, version: Version, *, decides: bool = False) -> None:
        """Notes what the running task found at a path."""
        paths = self._paths()
        if paths is None:
            return
        present = paths.get(path)
        if present is None or decides or not present[1]:
            paths[path] = (version, decides)
        paths.move_to_end(path)
        if len(paths) > PATHS_MAX:
            paths.popitem(last=False)

    def of(self, path: str) -> tuple[Version] | None:
        """Returns what the running task found at a path, if it looked."""
        paths = self._paths()
        present = None if paths is None else paths.get(path)
        return None if present is None else (present[0],)

    def forget(self, path: str, *, beneath: bool = False) -> None:
        """Forgets a path, and what is beneath it if it was a directory."""
        paths = self._paths()
        if paths is None:
            return
        paths.pop(path, None)
        if beneath:
            prefix = path.rstrip("/") + "/"
            for below in [key for key in paths if key.startswith(prefix)]:
                del paths[below]
