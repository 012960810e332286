"""Sixteen threads, each with four event loops one after the other, on one store: `python stress.py [seconds]`.

It fails if an acknowledged append is lost, if a call hangs, or if memory grows: the second half of the time may not need much more than
the first. Ctrl-C ends it.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import treehold

THREADS = 16
LOOPS = 4
TASKS = 8
GROWTH_BYTES_MAX = 48 << 20


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


async def task(tree: treehold.Backend, name: str, until: float) -> int:
    appended = 0
    turn = random.Random(name)
    while time.monotonic() < until:
        path = f"/shared/{turn.randrange(20)}"
        await tree.aappend(path, f"{name}\n")
        appended += 1
        await tree.aread(path, limit=10)
        await tree.awrite(f"/own/{name}", "x" * turn.randrange(20_000))
        await tree.als("/own", limit=20)
        await tree.agrep("needle", f"/own/{name}", matches_max=5)
        # A call that is cancelled half-way leaves the old content or the new.
        call = asyncio.ensure_future(tree.awrite(f"/cancelled/{name}", str(appended)))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        try:
            tree.read(f"/none/{name}")
        except treehold.NotFound:
            pass
    return appended


def thread(tree: treehold.Backend, name: str, seconds: float, counts: list[int], failures: list[BaseException]) -> None:
    async def loop(number: int) -> int:
        until = time.monotonic() + seconds / LOOPS
        return sum(await asyncio.gather(*(task(tree, f"{name}.{number}.{which}", until) for which in range(TASKS))))

    try:
        counts.append(sum(asyncio.run(loop(number)) for number in range(LOOPS)))
    except BaseException as error:
        failures.append(error)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 300.0
    counts: list[int] = []
    failures: list[BaseException] = []
    with tempfile.TemporaryDirectory() as directory, treehold.Store.open(f"sqlite:{directory}/stress.db") as store:
        tree = treehold.CompositeBackend(treehold.StateBackend(), {"/shared": treehold.StoreBackend(store, "shared")})
        arguments = [(tree, f"t{number}", seconds, counts, failures) for number in range(THREADS)]
        threads = [threading.Thread(target=thread, args=some, daemon=True) for some in arguments]
        for one in threads:
            one.start()
        time.sleep(seconds / 2)
        half = resident_bytes()
        for one in threads:
            one.join(seconds + 120)
            if one.is_alive():
                raise SystemExit("a thread hangs")
        grown = resident_bytes() - half
        lines = sum(tree.read_bytes(f"/shared/{number}").count(b"\n") for number in range(20) if tree.exists(f"/shared/{number}"))
    print(f"{sum(counts)} rounds, {lines} lines, {grown >> 20} MiB more than at half time, {len(failures)} failures")
    if failures:
        raise failures[0]
    if lines != sum(counts):
        raise SystemExit("acknowledged appends are lost")
    if grown > GROWTH_BYTES_MAX:
        raise SystemExit("memory grows")


if __name__ == "__main__":
    main()
