"""The thread that removes expired items at intervals."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from treehold import Error, InvalidArgument

# The name of the public module, which programs configure.
logger = logging.getLogger("treehold.langgraph.store")


class Sweeper:
    """At most one thread that sweeps."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._is_stopped = threading.Event()

    def start(self, sweep: Callable[[], int], seconds: float | None) -> Future[None]:
        """Starts the thread, which calls `sweep` at intervals. Returns a future that is done once the thread ends."""
        if self._thread is not None and self._thread.is_alive():
            raise InvalidArgument("the sweeper runs already; stop it first")
        self._is_stopped.clear()
        ended: Future[None] = Future()

        def work() -> None:
            while not self._is_stopped.wait(seconds):
                try:
                    sweep()
                except Error as error:
                    logger.warning("removing expired items failed: %s", error)
            ended.set_result(None)

        self._thread = threading.Thread(target=work, name="treehold-ttl-sweeper", daemon=True)
        self._thread.start()
        return ended

    def stop(self, timeout: float | None = None) -> bool:
        """Stops the thread. Returns whether it has ended within `timeout` seconds."""
        self._is_stopped.set()
        thread = self._thread
        if thread is None:
            return True
        thread.join(timeout)
        if thread.is_alive():
            return False
        self._thread = None
        return True
