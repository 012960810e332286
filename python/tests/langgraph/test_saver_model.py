"""Random histories of threads against LangGraph's in-memory saver."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME
from langgraph.checkpoint.serde.types import _DeltaSnapshot as DeltaSnapshot

from treehold import Store
from treehold.langgraph import TreeholdSaver
from treehold.langgraph import _content, _removal

CHANNELS = ("files", "messages", "count", "delta")
THREADS = ("one", "two/..", "")
NAMESPACES = ("", "child:1|x")
RUNS = ("run-1", "run-2")


class Model(RuleBasedStateMachine):
    """Does everything to both savers, synchronously or asynchronously, and compares what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.model = InMemorySaver()
        self.store = Store.open("memory:")
        # Forms of one parent: what a graph would hold in memory.
        self.states: list[tuple[RunnableConfig, dict[str, Any]]] = []

    @initialize(is_encrypted=st.booleans(), cache_bytes=st.sampled_from([0, 50_000, 64 << 20]))
    def open(self, is_encrypted: bool, cache_bytes: int) -> None:
        serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef") if is_encrypted else None
        self.savers = [
            TreeholdSaver(self.store, namespace=("t", "threads"), serde=serde, cache_bytes=cache_bytes) for _ in range(2)
        ]
        self.turn = 0

    @property
    def saver(self) -> TreeholdSaver:
        """The next saver: two, with caches of their own, share the store as two processes would."""
        self.turn += 1
        return self.savers[self.turn % 2]

    def both(self, name: str, *args: Any, **options: Any) -> tuple[Any, Any]:
        """Calls a method of both savers; every third time the async twin of ours."""
        expected = getattr(self.model, name)(*args, **options)
        saver = self.saver
        if self.turn % 3 == 0:
            return expected, asyncio.run(getattr(saver, "a" + name)(*args, **options))
        return expected, getattr(saver, name)(*args, **options)

    @rule(
        thread=st.sampled_from(THREADS),
        ns=st.sampled_from(NAMESPACES),
        place=st.integers(0, 30),
        is_root=st.integers(0, 9).map(lambda number: number == 0),
        changes=st.lists(st.tuples(st.sampled_from(CHANNELS), st.integers(0, 5), st.integers(0, 60)), max_size=4),
        run=st.sampled_from((None, *RUNS)),
        step=st.integers(0, 3),
    )
    def put(
        self, thread: str, ns: str, place: int, is_root: bool, changes: Any, run: str | None, step: int
    ) -> None:
        """Puts a checkpoint that follows any other, or none."""
        config: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_ns": ns}}
        state: dict[str, Any] = {"values": {}, "versions": {}}
        if self.states and not is_root:
            config, state = self.states[place % len(self.states)]
        values, versions, new = dict(state["values"]), dict(state["versions"]), {}
        for channel, kind, number in changes:
            new[channel] = versions[channel] = self.model.get_next_version(versions.get(channel), None)
            self.change(values, channel, kind, number)
        metadata: dict[str, Any] = {"source": "loop", "step": step, "parents": {}}
        if run is not None:
            metadata["run_id"] = run
        metadata["counters_since_delta_snapshot"] = {"delta": [1, 1]}
        checkpoint: Any = {
            "v": 4,
            "id": str(uuid6()),
            "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": values,
            "channel_versions": versions,
            "versions_seen": {"node": dict(versions)},
            "updated_channels": sorted(new),
        }
        expected, actual = self.both("put", config, copy.copy(checkpoint), metadata, new)
        assert expected == actual
        self.states.append((actual, {"values": values, "versions": versions}))

    def change(self, values: dict[str, Any], channel: str, kind: int, number: int) -> None:
        if channel == "delta":
            if kind < 2:
                values["delta"] = DeltaSnapshot({f"f{place}": "x" * 1500 for place in range(number)})
            else:
                values.pop("delta", None)
        elif channel == "files":
            files = dict(values.get("files", {}))
            for place in range(number if kind == 0 else 1):
                files[f"/f{(number + place) % 70}"] = {"content": f"{number} " + "y" * 900, "n": [number]}
            values["files"] = files
        elif channel == "messages":
            values["messages"] = [*values.get("messages", [])[kind // 5 :], {"text": str(number) + "z" * 700, "t": (1, kind)}] * (
                1 + kind // 4
            )
        elif kind == 0:
            values.pop("count", None)
        else:
            values["count"] = number

    @precondition(lambda self: self.states)
    @rule(
        place=st.integers(0, 30),
        task=st.sampled_from(("task-a", "task-b", "task\x01/c")),
        path=st.sampled_from(("", "~p1", "~p2")),
        writes=st.lists(
            st.tuples(st.sampled_from(("files", "delta", ERROR, INTERRUPT, RESUME)), st.integers(0, 5)), max_size=4
        ),
    )
    def put_writes(self, place: int, task: str, path: str, writes: Any) -> None:
        config, _ = self.states[place % len(self.states)]
        self.both("put_writes", config, writes, task, path)

    @rule(thread=st.sampled_from(THREADS), ns=st.sampled_from((None, *NAMESPACES)))
    def get_latest(self, thread: str, ns: str | None) -> None:
        configurable = {"thread_id": thread} if ns is None else {"thread_id": thread, "checkpoint_ns": ns}
        expected, actual = self.both("get_tuple", {"configurable": configurable})
        self.same(expected, actual)
        if actual is not None:
            # A graph goes on with what it read, and changes it in place.
            self.states.append(
                (
                    actual.config,
                    {"values": actual.checkpoint["channel_values"], "versions": actual.checkpoint["channel_versions"]},
                )
            )

    @precondition(lambda self: self.states)
    @rule(place=st.integers(0, 30))
    def get(self, place: int) -> None:
        config, _ = self.states[place % len(self.states)]
        expected, actual = self.both("get_tuple", config)
        self.same(expected, actual)

    @rule(
        thread=st.sampled_from((None, *THREADS)),
        ns=st.sampled_from((None, *NAMESPACES)),
        limit=st.sampled_from((None, 0, 1, 3)),
        step=st.sampled_from((None, 0, 1)),
        before=st.none() | st.integers(0, 30),
    )
    def list(self, thread: str | None, ns: str | None, limit: int | None, step: int | None, before: int | None) -> None:
        config: Any = None
        if thread is not None:
            config = {"configurable": {"thread_id": thread}}
            if ns is not None:
                config["configurable"]["checkpoint_ns"] = ns
        options: dict[str, Any] = {"filter": None if step is None else {"step": step}}
        if before is not None and self.states:
            options["before"] = self.states[before % len(self.states)][0]
        # The model lists namespaces one after the other; ours lists by time, as LangGraph's databases do.
        def order(found: CheckpointTuple) -> tuple[str, str]:
            return found.config["configurable"]["checkpoint_id"], found.config["configurable"]["thread_id"]

        expected = sorted(self.model.list(config, **options), key=order, reverse=True)
        ties = len(expected) - len({order(found)[0] for found in expected})
        expected = expected if ties else expected[:limit]
        limit = None if ties else limit
        if self.turn % 2:
            actual = list(self.saver.list(config, limit=limit, **options))
        else:
            saver = self.saver

            async def listed() -> list[CheckpointTuple]:
                return [found async for found in saver.alist(config, limit=limit, **options)]

            actual = asyncio.run(listed())
        assert len(actual) == len(expected)
        if ties:
            actual.sort(key=order, reverse=True)
        for one, other in zip(expected, actual, strict=True):
            self.same(one, other)

    @precondition(lambda self: self.states)
    @rule(place=st.integers(0, 30))
    def history(self, place: int) -> None:
        config, _ = self.states[place % len(self.states)]
        expected = self.model.get_delta_channel_history(config=config, channels=["delta", "files"])
        actual = self.saver.get_delta_channel_history(config=config, channels=["delta", "files"])
        if self.model.get_tuple(config) is not None and not self.is_pruned:
            assert dict(expected) == dict(actual)

    is_pruned = False

    @rule(thread=st.sampled_from(THREADS))
    def delete_thread(self, thread: str) -> None:
        self.both("delete_thread", thread)
        self.drop_removed()

    def drop_removed(self) -> None:
        """Forgets states whose checkpoint is gone: the model loses their values, which ours stores again."""
        self.states = [state for state in self.states if self.model.get_tuple(state[0]) is not None]

    @rule(thread=st.sampled_from(THREADS))
    def copy_thread(self, thread: str) -> None:
        target = f"copy of {thread}"
        self.model.delete_thread(target)
        self.saver.delete_thread(target)
        self.saver.copy_thread(thread, target)
        source = {key: copy.copy(found) for key, found in self.model.storage[thread].items()}
        if any(source.values()):
            self.model.storage[target].update(source)
        self.model.writes.update({(target, *key[1:]): dict(found) for key, found in self.model.writes.items() if key[0] == thread})
        self.model.blobs.update({(target, *key[1:]): found for key, found in self.model.blobs.items() if key[0] == thread})

    @rule(thread=st.sampled_from(THREADS))
    def prune(self, thread: str) -> None:
        """Keeps the latest of each namespace, and what delta channels were."""
        self.remove(lambda saver: saver.prune([thread]), lambda at, id, ids: at == thread and id != max(ids))

    @rule(run=st.sampled_from(RUNS))
    def delete_for_runs(self, run: str) -> None:
        def is_victim(thread: str, checkpoint_id: str, ids: Any) -> bool:
            _, metadata, _ = ids[checkpoint_id]
            return bool(self.model.serde.loads_typed(metadata).get("run_id") == run)

        self.remove(lambda saver: saver.delete_for_runs([run]), is_victim)

    def remove(self, remove: Any, is_victim: Any) -> None:
        kept: list[tuple[RunnableConfig, Any]] = []
        victims: list[tuple[str, str, str]] = []
        for thread, spaces in self.model.storage.items():
            for ns, checkpoints in spaces.items():
                for checkpoint_id in checkpoints:
                    if is_victim(thread, checkpoint_id, checkpoints):
                        victims.append((thread, ns, checkpoint_id))
                        continue
                    config: RunnableConfig = {
                        "configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}
                    }
                    # A checkpoint with a value of its own needs no ancestors.
                    found = self.saver.get_tuple(config)
                    if found is not None and "delta" not in found.checkpoint["channel_values"]:
                        kept.append((config, self.saver.get_delta_channel_history(config=config, channels=["delta"])))
        remove(self.saver)
        for thread, ns, checkpoint_id in victims:
            del self.model.storage[thread][ns][checkpoint_id]
            self.model.writes.pop((thread, ns, checkpoint_id), None)
        self.is_pruned = self.is_pruned or bool(victims)
        for config, history in kept:
            assert self.saver.get_delta_channel_history(config=config, channels=["delta"]) == history
        self.drop_removed()

    def same(self, expected: CheckpointTuple | None, actual: CheckpointTuple | None) -> None:
        if expected is None or actual is None:
            assert expected is actual
            return
        assert expected.checkpoint == actual.checkpoint
        assert expected.metadata == actual.metadata
        assert expected.parent_config == actual.parent_config
        assert expected.pending_writes == actual.pending_writes
        for name in ("thread_id", "checkpoint_ns", "checkpoint_id"):
            assert expected.config["configurable"].get(name, "") == actual.config["configurable"][name]

    @invariant()
    def nothing_is_missing(self) -> None:
        """Every listed checkpoint can be read; a sweep finds nothing that is still held."""
        if self.turn_is_checked():
            threads = self.saver._roots.plain
            for thread in THREADS:
                from treehold._io import run

                run(_removal.sweep(threads, threads.namespace(thread)), self.store)

    def turn_is_checked(self) -> bool:
        return bool(self.states) and self.turn % 5 == 0


def test_any_history_of_threads_equals_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    # Small chunks and pages, so that histories of a few steps have trees of several levels.
    monkeypatch.setattr(_content, "CHUNKED_BYTES_MIN", 4000)
    monkeypatch.setattr(_content, "CHUNK_BYTES", 2000)
    monkeypatch.setattr(_content, "CHUNK_BYTES_MAX", 8000)
    monkeypatch.setattr(_content, "PAGE_NAMES", 4)
    monkeypatch.setattr(_content, "PAGE_NAMES_MAX", 8)
    checks = settings(
        max_examples=300, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
    )
    run_state_machine_as_test(Model, settings=checks)
