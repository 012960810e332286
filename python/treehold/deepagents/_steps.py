"""Which task of a step of a graph changes a file.

The tasks of a step run at the same time and each sees the files as they were before the step, so of two changes of one file the
graph would keep the last and lose the other, which was acknowledged. The second task is refused instead.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final, cast

from langgraph.config import get_config

REMEMBERED_MAX: Final = 10_000
"""How many changed files of past steps are remembered. Only those of running steps are needed."""

REFUSED: Final = "Error: parallel file mutations to the same path are not allowed."
"""What deepagents answers if one message of the model changes a file twice."""


class Steps:
    """The changes of the running steps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: OrderedDict[tuple[str, str], str] = OrderedDict()

    def claim(self, paths: Iterable[str]) -> bool:
        """Claims files for the running task. Returns false if another task of the same step has changed one of them."""
        step, task = _step_and_task()
        if step is None or task is None:
            return True
        keys = [(step, path) for path in paths]
        with self._lock:
            if any(self._owners.get(key, task) != task for key in keys):
                return False
            for key in keys:
                self._owners[key] = task
            while len(self._owners) > REMEMBERED_MAX:
                self._owners.popitem(last=False)
        return True


def _step_and_task() -> tuple[str | None, str | None]:
    """Returns the checkpoint that the running step began with, and the running task."""
    try:
        configurable: dict[str, Any] = get_config().get("configurable", {})
    except RuntimeError:
        # An application provides the files itself, outside of a graph.
        return None, None
    task = configurable.get("checkpoint_ns")
    checkpoints = configurable.get("checkpoint_map")
    if not isinstance(task, str) or not isinstance(checkpoints, dict):
        return None, None
    step = cast("dict[str, object]", checkpoints).get(task.rpartition("|")[0])
    return (step, task) if isinstance(step, str) else (None, None)
