"""What the native module calls of Python."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_process = 0


def run(awaitable: Awaitable[T]) -> T:
    """Runs an awaitable to its end on an event loop in a thread of its own.

    The loop is the same for every call, so that what a backend in Python opens on it, such as a connection, can be used again. It is never
    the loop of the caller, which may be waiting for this call.
    """

    return asyncio.run_coroutine_threadsafe(_wait(awaitable), _running_loop()).result()


def start(awaitable: Awaitable[T], done: Callable[[Future[T]], object]) -> Future[T]:
    """Starts an awaitable on the loop of `run`, and calls `done` at its end. Cancelling the future cancels the awaitable."""
    future = asyncio.run_coroutine_threadsafe(_wait(awaitable), _running_loop())
    future.add_done_callback(done)
    return future


async def _wait(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _running_loop() -> asyncio.AbstractEventLoop:
    global _loop, _process
    with _lock:
        if _loop is None or _process != os.getpid():
            _loop, _process = asyncio.new_event_loop(), os.getpid()
            threading.Thread(target=_loop.run_forever, name="treehold-loop", daemon=True).start()
        return _loop


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
