"""What the tests run in processes of their own: `python workers.py append|count URL WORKER COUNT`."""

from __future__ import annotations

import sys
from typing import Any

from langgraph.checkpoint.base.id import uuid6

from treehold.langgraph import TreeholdSaver, TreeholdStore

NAMESPACE = ("acme", "ada", "shared")

THREAD: Any = {"configurable": {"thread_id": "shared", "checkpoint_ns": ""}}


def append(url: str, worker: int, count: int) -> None:
    """Puts checkpoints and writes on the thread that others put on too."""
    with TreeholdSaver.from_conn_string(url, namespace=NAMESPACE) as saver:
        for number in range(count):
            latest = saver.get_tuple(THREAD)
            config = THREAD if latest is None else latest.config
            files = {} if latest is None else latest.checkpoint["channel_values"]["files"]
            files = {**files, f"/{worker}": {"content": f"{number} " + "x" * 2000}}
            version = f"{worker}.{number}"
            checkpoint: Any = {
                "v": 4,
                "id": str(uuid6()),
                "ts": "2026-01-01T00:00:00+00:00",
                "channel_values": {"files": files, "by": [worker, number]},
                "channel_versions": {"files": version, "by": version},
                "versions_seen": {},
            }
            metadata: Any = {"source": "loop", "step": number}
            stored = saver.put(config, checkpoint, metadata, {"files": version, "by": version})
            saver.put_writes(stored, [("by", [worker, number])], f"task-{worker}")
            saver.put_writes(config if latest else stored, [("by", [worker, number])], f"task-{worker}-{number}")


def count_up(url: str, worker: int, count: int) -> None:
    """Counts an item up that others count up too."""
    with TreeholdStore.from_conn_string(url, namespace=NAMESPACE) as items:
        for _ in range(count):
            items.update(("a",), "n", lambda value: {"n": (value or {"n": 0})["n"] + 1})


if __name__ == "__main__":
    work = {"append": append, "count": count_up}[sys.argv[1]]
    work(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
