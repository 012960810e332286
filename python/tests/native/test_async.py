"""Asynchronous calls: tasks, cancellation, threads and event loops."""

import asyncio
import threading
from pathlib import Path

import pytest

import treehold
from treehold import Batch


async def test_call_is_a_coroutine_that_can_be_a_task_or_gathered() -> None:
    tree = treehold.StateBackend()
    await asyncio.create_task(tree.awrite("/a", "1"))
    await asyncio.gather(*(tree.awrite(f"/f{number}", str(number)) for number in range(200)))
    reads = await asyncio.gather(*(tree.aread_text(f"/f{number}") for number in range(200)))
    assert reads == [str(number) for number in range(200)]
    assert await asyncio.wait_for(tree.aread_text("/a"), 30) == "1"


async def test_nothing_happens_before_a_call_is_awaited() -> None:
    tree = treehold.StateBackend()
    call = tree.awrite("/a", "1")
    assert not tree.exists("/a")
    await call
    assert tree.exists("/a")
    with pytest.raises(RuntimeError):
        await call
    tree.awrite("/b", "1").close()
    assert not tree.exists("/b")


async def test_errors_of_asynchronous_calls_are_the_same_classes() -> None:
    with pytest.raises(treehold.NotFound) as caught:
        await treehold.StateBackend().aread("/none")
    assert caught.value.path == "/none"
    store = await treehold.Store.aopen("memory:")
    with pytest.raises(treehold.Conflict):
        await store.acommit(Batch().require("n", "k", True))


def test_call_outside_of_an_event_loop_says_so() -> None:
    call = treehold.StateBackend().aread("/a")
    with pytest.raises(RuntimeError, match="event loop"):
        call.send(None)


async def test_cancelled_wait_ends_and_leaves_the_watch_usable() -> None:
    store = treehold.Store.open("memory:")
    watch = await store.awatch("n")
    waiting = asyncio.create_task(watch.achanged())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(watch.achanged(), 0.01)
    store.commit(Batch().put("n", "k", "x"))
    # The watch is not locked by the cancelled calls.
    assert await asyncio.wait_for(watch.achanged(), 30)


async def test_cancelled_calls_free_what_they_hold() -> None:
    held, go, ended = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    class Slow(treehold.Backend):
        def read(self, path: str) -> bytes:  # type: ignore[override]
            loop.call_soon_threadsafe(held.set)
            go.wait(60)
            ended.set()
            return b"slow"

        def stat(self, path: str) -> treehold.Entry:  # type: ignore[override]
            return treehold.Entry(path)

    # The one place of the limit is free again once the call that held it is cancelled.
    limited = treehold.limit(Slow(), 1, waiting_max=0)
    call = asyncio.create_task(limited.aread("/a"))
    await held.wait()
    with pytest.raises(treehold.Unavailable):
        await limited.astat("/a")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    while True:
        try:
            assert (await limited.astat("/a")).path == "/a"
            break
        except treehold.Unavailable:
            await asyncio.sleep(0)
    assert not ended.is_set(), "the place was given back before the read ended"
    go.set()


async def test_call_that_is_cancelled_as_its_result_arrives_ends_in_one_way(tmp_path: Path) -> None:
    tree = treehold.StoreBackend(treehold.Store.open(f"sqlite:{tmp_path / 'a.db'}"), "f")
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    returned = number = turns = 0
    # On a slow disk, only a loop that is busy for longer still meets a result.
    while number < 200 or not returned:
        task = asyncio.create_task(tree.awrite("/a", str(number)))
        # The loop is busy for longer each time, so that the result arrives at every moment before the cancellation and after it.
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            assert (await task).size_bytes == len(str(number))
            returned += 1
        except asyncio.CancelledError:
            assert task.cancelled()
        number, turns = number + 1, turns + 20 if number < 200 else turns * 2
    assert not faults
    assert tree.read_text("/a").isdigit()


def test_many_threads_with_event_loops_share_one_store(tmp_path: Path) -> None:
    store = treehold.Store.open(f"sqlite:{tmp_path / 'a.db'}")
    tree = treehold.StoreBackend(store, "files")
    tree.write("/log", "")
    failures: list[BaseException] = []

    async def work(name: str) -> None:
        async def one(number: int) -> None:
            await tree.aappend("/log", f"{name}.{number}\n")
            await tree.awrite(f"/{name}/{number}", "x")
            assert await tree.aread_text(f"/{name}/{number}") == "x"

        await asyncio.gather(*(one(number) for number in range(10)))

    def run(name: str) -> None:
        try:
            for round_ in range(2):
                asyncio.run(work(f"{name}-{round_}"))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(f"t{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    lines = tree.read_text("/log").splitlines()
    assert len(lines) == len(set(lines)) == 8 * 2 * 10


def test_threads_block_side_by_side() -> None:
    store = treehold.Store.open("memory:")
    entered = threading.Barrier(9)

    def wait() -> None:
        watch = store.watch("n")
        entered.wait()
        assert watch.changed(30)

    threads = [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    entered.wait()
    store.commit(Batch().put("n", "k", "x"))
    for thread in threads:
        thread.join()


async def test_loop_keeps_running_while_a_call_waits() -> None:
    store = treehold.Store.open("memory:")
    watch = await store.awatch("n")
    waiting = asyncio.create_task(watch.achanged(30))
    ticks = 0
    while ticks < 100:
        await asyncio.sleep(0)
        ticks += 1
    assert not waiting.done()
    await store.acommit(Batch().put("n", "k", "x"))
    assert await waiting
