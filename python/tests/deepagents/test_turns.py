"""Turns of threads and coroutines."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from treehold.deepagents._turns import Busy, Queue


def test_threads_and_loops_never_share_a_turn() -> None:
    queue, inside, counted = Queue(), 0, 0

    def enter() -> None:
        nonlocal inside, counted
        inside += 1
        assert inside == 1
        counted += 1
        inside -= 1

    def blocking() -> None:
        for _ in range(200):
            with queue:
                enter()

    async def awaiting() -> None:
        async def one() -> None:
            for _ in range(50):
                async with queue.aturn():
                    enter()
                    await asyncio.sleep(0)

        await asyncio.gather(*(one() for _ in range(4)))

    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(blocking) for _ in range(3)] + [pool.submit(lambda: asyncio.run(awaiting())) for _ in range(3)]
        for job in jobs:
            job.result()
    assert counted == 3 * 200 + 3 * 200


async def test_thread_of_a_loop_does_not_wait_for_a_coroutine_of_it() -> None:
    queue = Queue()
    async with queue.aturn():
        with pytest.raises(Busy), queue:
            pass
    with queue:
        pass


async def test_cancelled_waiter_leaves_the_queue() -> None:
    queue = Queue()
    async with queue.aturn():
        waiting = asyncio.create_task(_enter(queue))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await asyncio.wait_for(_enter(queue), timeout=60)


async def test_waiter_cancelled_as_its_turn_comes_passes_it_on() -> None:
    queue = Queue()
    turn = queue.aturn()
    await turn.__aenter__()
    first, second = asyncio.create_task(_enter(queue)), asyncio.create_task(_enter(queue))
    await asyncio.sleep(0)
    # The turn passes to the first waiter, which is cancelled before it can notice.
    await turn.__aexit__(None, None, None)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.wait_for(second, timeout=60)


async def _enter(queue: Queue) -> None:
    async with queue.aturn():
        pass


def test_waiting_thread_gets_its_turn_when_the_owner_leaves() -> None:
    queue, entered = Queue(), threading.Event()

    def wait() -> None:
        with queue:
            entered.set()

    with queue:
        thread = threading.Thread(target=wait)
        thread.start()
        assert not entered.is_set()
    thread.join()
    assert entered.is_set()
