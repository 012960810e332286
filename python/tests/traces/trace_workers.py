"""What the tests run in processes of their own: `python trace_workers.py append URL TRACE COUNT` or `hold URL TRACE SECONDS`."""

from __future__ import annotations

import asyncio
import sys

from treehold import Store
from treehold.traces import DatabaseTraceStore, NewMessage, RunContext, RunRequest, TraceRuns


def append(url: str, trace: str, count: int) -> None:
    """Appends messages to a trace that others append to as well."""
    traces = DatabaseTraceStore(url, tenant="acme", user="ada")
    for number in range(count):
        traces.add_message(trace, NewMessage("user", number, tokens=1))


class Holder:
    """Says that it runs, and runs until it is stopped."""

    async def run(self, context: RunContext, request: RunRequest, /) -> str:
        """Runs."""
        await context.traces.aadd_message(context.trace_id, NewMessage("assistant", "I am at it"))
        print("running", flush=True)
        await asyncio.Event().wait()
        return "never"


def hold(url: str, trace: str, lease_seconds: int) -> None:
    """Runs a trace until another process stops the run."""
    store = Store.open(url)
    with TraceRuns(DatabaseTraceStore(store, tenant="acme", user="ada"), Holder(), lease_seconds=lease_seconds) as runs:
        runs.start(trace)
        result = runs.result(trace, 60)
        print(None if result is None else result.status, flush=True)


if __name__ == "__main__":
    work = {"append": append, "hold": hold}[sys.argv[1]]
    work(sys.argv[2], sys.argv[3], int(sys.argv[4]))
