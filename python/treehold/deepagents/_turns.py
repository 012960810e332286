"""Turns of threads and coroutines at one thing, in the order of their arrival.

A `BaseStore` cannot compare and put in one step, so an edit takes turns with the other edits of the same file in this process.
Threads wait for theirs by blocking and coroutines by awaiting. A thread that runs an event loop never waits for a coroutine of
that loop, which could not go on meanwhile; it gets `Busy`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakKeyDictionary

_running_loop = asyncio._get_running_loop  # pyright: ignore[reportPrivateUsage]
"""Returns the event loop that the thread runs, if any. The public function raises where there is none, which takes longer."""

QUEUES: Final = 64
"""How many queues a store has. Two files that share one merely wait for each other."""


class Busy(Exception):
    """A coroutine of the event loop that the thread runs has its turn."""


class Queue:
    """One thing that is used by one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loops: deque[asyncio.AbstractEventLoop | None] = deque()
        """The event loops of the one whose turn it is and of those that wait."""
        self._waiting: deque[Future[None]] = deque()

    def _arrive(self, loop: asyncio.AbstractEventLoop | None, *, blocks: bool) -> Future[None] | None:
        """Queues up. Returns what to wait for, or `None` if it is one's turn."""
        with self._lock:
            if blocks and loop is not None and loop in self._loops:
                raise Busy
            self._loops.append(None if blocks else loop)
            if len(self._loops) == 1:
                return None
            turn: Future[None] = Future()
            self._waiting.append(turn)
            return turn

    def _leave(self) -> None:
        """Ends one's turn and gives it to the next one who still waits."""
        with self._lock:
            self._loops.popleft()
            while self._waiting:
                turn = self._waiting.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                    return
                self._loops.popleft()

    def __enter__(self) -> None:
        """Waits for one's turn by blocking."""
        waiting = self._arrive(_running_loop(), blocks=True)
        if waiting is not None:
            waiting.result()

    def __exit__(self, *_: object) -> None:
        self._leave()

    @asynccontextmanager
    async def aturn(self) -> AsyncGenerator[None, None]:
        """Waits for one's turn by awaiting."""
        waiting = self._arrive(_running_loop(), blocks=False)
        if waiting is not None:
            try:
                await asyncio.wrap_future(waiting)
            except asyncio.CancelledError:
                # If it is one's turn already, it cannot be declined any more.
                if not waiting.cancel() and not waiting.cancelled():
                    self._leave()
                raise
        try:
            yield
        finally:
            self._leave()


class Queues:
    """The queues of all stores."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stores: WeakKeyDictionary[object, list[Queue]] = WeakKeyDictionary()

    def of(self, store: object) -> list[Queue]:
        """Returns the queues for the files of a store. Equal keys of files have equal hashes, and so the same queue."""
        with self._lock:
            queues = self._stores.get(store)
            if queues is None:
                queues = self._stores[store] = [Queue() for _ in range(QUEUES)]
        return queues
