"""The checkpointer: places, branches, removals, concurrency, encryption."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from langgraph.checkpoint.serde.types import _DeltaSnapshot as DeltaSnapshot

from treehold import AlreadyExists, Corrupt, InvalidArgument, Store
from treehold._io import Steps, run
from treehold.langgraph import TreeholdSaver, _history, _removal
from treehold.langgraph import _keys as keys

NAMESPACE = ("acme", "ada", "threads")

WORKERS = Path(__file__).parent / "workers.py"


@pytest.fixture
def saver(store: Store) -> TreeholdSaver:
    """A saver on a new store of each engine."""
    return TreeholdSaver(store, namespace=NAMESPACE)


def at(thread: str, ns: str = "", checkpoint_id: str | None = None) -> RunnableConfig:
    configurable = {"thread_id": thread, "checkpoint_ns": ns}
    if checkpoint_id is not None:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}


def put(
    saver: TreeholdSaver,
    config: RunnableConfig,
    values: dict[str, Any],
    versions: dict[str, Any] | None = None,
    new: dict[str, Any] | None = None,
    **metadata: Any,
) -> RunnableConfig:
    versions = versions if versions is not None else dict.fromkeys(values, 1)
    checkpoint: Any = {
        "v": 4,
        "id": str(uuid6()),
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": versions,
        "versions_seen": {},
        "updated_channels": None,
    }
    stored: Any = {"source": "loop", "step": 0, "parents": {}, **metadata}
    return saver.put(config, checkpoint, stored, versions if new is None else new)


def values_at(saver: TreeholdSaver, config: RunnableConfig) -> dict[str, Any]:
    found = saver.get_tuple(config)
    assert found is not None
    return found.checkpoint["channel_values"]


def rows(saver: TreeholdSaver, thread: str, prefix: str = "") -> list[str]:
    return [row.key for row in saver.store.scan((*NAMESPACE, keys.component(thread)), prefix=prefix, limit=10_000).rows]


HOSTILE = [
    "",
    " ",
    "..",
    "../../etc/passwd",
    "a/b",
    "a\x01b",
    "a\x00b",
    "%00",
    "~runs",
    "~" + "0" * 64,
    "t",
    "*",
    "'; DROP TABLE rows; --",
    "é\u202e\U0001f600",
    "x" * 5000,
    "x" * 5001,
    "a.b",
    "\x7f",
    "_treehold",
]


def test_hostile_ids_are_separate_threads_namespaces_and_tasks(saver: TreeholdSaver) -> None:
    configs = {(name, ns): put(saver, at(name, ns), {"who": [name, ns]}) for name in HOSTILE for ns in HOSTILE[:6] + HOSTILE[-5:]}
    for (name, ns), config in configs.items():
        saver.put_writes(config, [("channel", [name, ns])], task_id=name, task_path=ns)
    for (name, ns), config in configs.items():
        for asked in (config, at(name, ns)):
            found = saver.get_tuple(asked)
            assert found is not None
            assert found.config == config
            assert found.checkpoint["channel_values"] == {"who": [name, ns]}
            assert found.pending_writes == [(name, "channel", [name, ns])]
    listed = [found.config["configurable"]["thread_id"] for found in saver.list(None)]
    assert sorted(listed) == sorted(name for name, _ in configs)
    for name in HOSTILE:
        saver.delete_thread(name)
        assert saver.get_tuple(at(name)) is None
    assert list(saver.list(None)) == []
    assert saver.store.namespaces(prefix=NAMESPACE) == ([], False)


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({}, "names no thread"),
        ({"configurable": {}}, "names no thread"),
        ({"configurable": {"thread_id": "\ud800"}}, "surrogate"),
    ],
)
def test_configuration_without_a_thread_is_refused(memory: Store, config: Any, part: str) -> None:
    saver = TreeholdSaver(memory)
    for call in (lambda: saver.get_tuple(config), lambda: put(saver, config, {}), lambda: list(saver.list(config or {"a": 1}))):
        with pytest.raises(InvalidArgument, match=part):
            call()
    assert memory.namespaces() == ([], False)


def test_writes_without_a_checkpoint_are_refused(memory: Store) -> None:
    with pytest.raises(InvalidArgument, match="names no checkpoint"):
        TreeholdSaver(memory).put_writes(at("t"), [("c", 1)], "task")


def test_numbers_as_thread_ids_are_texts(memory: Store) -> None:
    saver = TreeholdSaver(memory)
    stored = put(saver, {"configurable": {"thread_id": 7, "checkpoint_ns": ""}}, {"a": 1})
    assert stored["configurable"]["thread_id"] == "7"
    assert saver.get_tuple(at("7")) is not None


def test_savers_with_different_namespaces_do_not_see_each_other(memory: Store) -> None:
    savers = [TreeholdSaver(memory, namespace=name) for name in (("a",), ("a", "b"), ("a", "~runs"), ("ab",))]
    for number, saver in enumerate(savers):
        put(saver, at("b"), {"n": number}, run_id="run")
    for number, saver in enumerate(savers):
        assert [found.checkpoint["channel_values"] for found in saver.list(None)] == [{"n": number}]
    savers[1].delete_for_runs(["run"])
    assert [len(list(saver.list(None))) for saver in savers] == [1, 0, 1, 1]


def test_branches_with_equal_versions_keep_their_own_values(saver: TreeholdSaver) -> None:
    # Versions are numbers where a thread was begun by another saver, so branches from one parent count alike.
    root = put(saver, at("t"), {"a": "root", "b": "kept" * 100}, {"a": 1, "b": 1})
    left = put(saver, root, {"a": "left", "b": "kept" * 100}, {"a": 2, "b": 1}, {"a": 2})
    right = put(saver, root, {"a": "right", "b": "kept" * 100}, {"a": 2, "b": 1}, {"a": 2})
    assert values_at(saver, left) == {"a": "left", "b": "kept" * 100}
    assert values_at(saver, right) == {"a": "right", "b": "kept" * 100}
    assert values_at(saver, root) == {"a": "root", "b": "kept" * 100}
    found = saver.get_tuple(right)
    assert found is not None and found.parent_config == root


def test_put_that_follows_a_removed_checkpoint_stores_all_values(saver: TreeholdSaver) -> None:
    files = {f"/f{number}": {"content": "x" * 1000} for number in range(200)}
    root = put(saver, at("t"), {"files": files, "kept": "y" * 1000}, {"files": 1, "kept": 1})
    other = TreeholdSaver(saver.store, namespace=NAMESPACE)
    put(other, at("t"), {"n": 1})
    other.prune(["t"])
    assert saver.get_tuple(root) is None
    files = {**files, "/new": {"content": "new"}}
    config = put(saver, root, {"files": files, "kept": "y" * 1000}, {"files": 2, "kept": 1}, {"files": 2})
    for reader in (saver, other, TreeholdSaver(saver.store, namespace=NAMESPACE)):
        assert values_at(reader, config) == {"files": files, "kept": "y" * 1000}


def test_value_without_a_new_version_is_stored_where_the_parent_lacks_it(saver: TreeholdSaver) -> None:
    # A graph copies a checkpoint as a sibling, under the parent of the original and without new versions.
    root = put(saver, at("t"), {"a": "old"}, {"a": 1})
    child = put(saver, root, {"a": "new" * 100}, {"a": 2}, {"a": 2})
    copied = put(saver, root, {"a": "new" * 100}, {"a": 2}, {})
    assert values_at(saver, copied) == values_at(saver, child) == {"a": "new" * 100}


def test_second_put_of_an_id_replaces_the_first(saver: TreeholdSaver) -> None:
    root = put(saver, at("t"), {"a": "x" * 1000})
    checkpoint_id = root["configurable"]["checkpoint_id"]
    found = saver.get_tuple(root)
    assert found is not None
    again: Any = {**found.checkpoint, "channel_values": {"a": "y" * 1000}, "channel_versions": {"a": 2}}
    child = put(saver, root, {"a": "x" * 1000}, {"a": 1}, {})
    saver.put(at("t"), again, found.metadata, {"a": 2})
    run(_removal.sweep(saver._roots.plain, saver._roots.plain.namespace("t")), saver.store)
    assert values_at(saver, at("t", "", checkpoint_id)) == {"a": "y" * 1000}
    assert values_at(saver, child) == {"a": "x" * 1000}


def test_writes_come_back_in_the_order_of_path_task_and_index(saver: TreeholdSaver) -> None:
    root = put(saver, at("t"), {})
    saver.put_writes(root, [("c", number) for number in range(12)], "b", "~2")
    saver.put_writes(root, [("c", "first")], "z", "")
    saver.put_writes(root, [("c", "middle")], "a", "~2")
    found = saver.get_tuple(root)
    assert found is not None and found.pending_writes is not None
    assert [value for _, _, value in found.pending_writes] == ["first", "middle", *range(12)]


def test_repeated_write_stays_and_repeated_interrupt_replaces(saver: TreeholdSaver) -> None:
    root = put(saver, at("t"), {})
    saver.put_writes(root, [("a", 1), (ERROR, "first")], "task")
    saver.put_writes(root, [("a", 2), ("b", 3), (INTERRUPT, "i"), (ERROR, "second")], "task")
    found = saver.get_tuple(root)
    assert found is not None and found.pending_writes is not None
    assert sorted(found.pending_writes) == [("task", ERROR, "second"), ("task", INTERRUPT, "i"), ("task", "a", 1), ("task", "b", 3)]


def test_writes_may_come_before_their_checkpoint(saver: TreeholdSaver) -> None:
    checkpoint_id = str(uuid6())
    saver.put_writes(at("t", "", checkpoint_id), [("a", 1)], "task")
    assert saver.get_tuple(at("t", "", checkpoint_id)) is None
    put(saver, at("t"), {"a": 0})
    saver.prune(["t"])
    checkpoint: Any = {"v": 4, "id": checkpoint_id, "ts": "", "channel_values": {}, "channel_versions": {}, "versions_seen": {}}
    saver.put(at("t"), checkpoint, {}, {})
    found = saver.get_tuple(at("t", "", checkpoint_id))
    assert found is not None and found.pending_writes == [("task", "a", 1)]


def test_copied_thread_is_independent(saver: TreeholdSaver) -> None:
    files = {f"/f{number}": {"content": "x" * 1000} for number in range(300)}
    root = put(saver, at("t", "ns"), {"files": files}, run_id="run")
    saver.put_writes(root, [("a", 1)], "task")
    saver.copy_thread("t", "x" * 1000)
    copy_config = at("x" * 1000, "ns", root["configurable"]["checkpoint_id"])
    saver.delete_thread("t")
    assert values_at(saver, copy_config) == {"files": files}
    found = saver.get_tuple(copy_config)
    assert found is not None and found.pending_writes == [("task", "a", 1)] and found.config == copy_config
    with pytest.raises(AlreadyExists):
        saver.copy_thread("x" * 1000, "x" * 1000)
    put(saver, at("t"), {})
    with pytest.raises(AlreadyExists):
        saver.copy_thread("x" * 1000, "t")
    saver.delete_for_runs(["run"])
    assert saver.get_tuple(copy_config) is None


def test_prune_leaves_no_content_that_nothing_holds(saver: TreeholdSaver) -> None:
    config = at("t")
    files: dict[str, Any] = {}
    for number in range(40):
        files = {**files, f"/f{number}": {"content": f"{number} " + "x" * 3000}}
        config = put(saver, config, {"files": files}, {"files": number}, run_id=f"run-{number}")
        saver.put_writes(config, [("files", {"content": "w" * 2000})], "task")
    before = len(rows(saver, "t"))
    saver.prune(["t"], strategy="keep_latest")
    assert values_at(saver, config) == {"files": files}
    threads = saver._roots.plain
    namespace = threads.namespace("t")
    stored = {keys for keys in rows(saver, "t", keys.CONTENT)}
    checkpoints = run(threads.rows_of(namespace, keys.CHECKPOINT), saver.store)
    held = run(_removal._held(threads, namespace, checkpoints), saver.store)
    assert {keys.content_key(name.hex().upper()) for name in held} == stored
    assert len(rows(saver, "t", keys.WRITE)) == 1
    assert len(rows(saver, "t")) < before
    saver.prune(["t"], strategy="delete")
    assert rows(saver, "t") == []
    assert saver.store.scan((*NAMESPACE, keys.RUNS)).rows == []


def test_unknown_strategy_and_bare_text_are_refused(memory: Store) -> None:
    saver = TreeholdSaver(memory)
    with pytest.raises(InvalidArgument, match="keep_latest"):
        saver.prune(["t"], strategy="keep_some")
    with pytest.raises(InvalidArgument, match="into a list"):
        saver.prune("thread")
    with pytest.raises(InvalidArgument, match="into a list"):
        saver.delete_for_runs("run")


def delta_chain(saver: TreeholdSaver, thread: str, runs: list[str], snapshots: tuple[int, ...] = (0,)) -> list[RunnableConfig]:
    """Makes a checkpoint for each run, with a delta channel whose value is stored at some of them."""
    config, configs = at(thread), []
    for step, run_id in enumerate(runs):
        values = {"delta": DeltaSnapshot([step])} if step in snapshots else {}
        config = put(
            saver, config, values, {"delta": step}, run_id=run_id, counters_since_delta_snapshot={"delta": [step, step]}
        )
        saver.put_writes(config, [("delta", step), ("other", "x")], f"task-{step}")
        configs.append(config)
    return configs


def delta_at(saver: TreeholdSaver, config: RunnableConfig) -> tuple[Any, list[Any]]:
    found = saver.get_delta_channel_history(config=config, channels=["delta"])["delta"]
    return found.get("seed"), [value for _, _, value in found["writes"]]


def test_pruned_thread_keeps_the_value_of_its_delta_channels(saver: TreeholdSaver) -> None:
    configs = delta_chain(saver, "t", ["run"] * 30, snapshots=(0, 20))
    expected = DeltaSnapshot([20]), list(range(20, 29))
    assert delta_at(saver, configs[-1]) == expected
    saver.prune(["t"])
    assert len(list(saver.list(at("t")))) == 1
    assert saver.get_tuple(configs[20]) is None
    assert delta_at(saver, configs[-1]) == expected
    assert len(rows(saver, "t", keys.HIDDEN)) == 9
    # Once a checkpoint has a value of its own, nothing else is needed.
    config = put(saver, configs[-1], {"delta": DeltaSnapshot([29])}, {"delta": 30}, counters_since_delta_snapshot={"delta": [0, 0]})
    saver.prune(["t"])
    assert rows(saver, "t", keys.HIDDEN) == []
    assert rows(saver, "t", keys.WRITE) == []
    assert values_at(saver, config) == {"delta": DeltaSnapshot([29])}


def test_pruned_thread_without_a_stored_value_keeps_all_writes(saver: TreeholdSaver) -> None:
    configs = delta_chain(saver, "t", ["run"] * 5, snapshots=())
    saver.prune(["t"])
    assert delta_at(saver, configs[-1]) == (None, [0, 1, 2, 3])


def test_removed_run_leaves_delta_channels_of_later_runs_as_they_are(saver: TreeholdSaver) -> None:
    configs = delta_chain(saver, "t", ["one", "one", "two", "three", "three"])
    before = [delta_at(saver, config) for config in configs]
    saver.delete_for_runs(["two"])
    assert saver.get_tuple(configs[2]) is None
    assert [found.config for found in saver.list(at("t"))] == [configs[4], configs[3], configs[1], configs[0]]
    assert [delta_at(saver, configs[place]) for place in (0, 1, 3, 4)] == [before[place] for place in (0, 1, 3, 4)]
    saver.delete_for_runs(["three", "one"])
    assert rows(saver, "t", keys.HIDDEN) == rows(saver, "t", keys.CHECKPOINT) == rows(saver, "t", keys.CONTENT) == []


def test_history_of_a_branch_has_only_its_own_ancestors(saver: TreeholdSaver) -> None:
    configs = delta_chain(saver, "t", ["run"] * 3)
    left = put(saver, configs[-1], {}, {"delta": 3})
    saver.put_writes(left, [("delta", "left")], "task")
    right = put(saver, configs[-1], {}, {"delta": 3})
    saver.put_writes(right, [("delta", "right")], "task")
    below = put(saver, right, {}, {"delta": 4})
    assert delta_at(saver, below) == (DeltaSnapshot([0]), [0, 1, 2, "right"])


def test_history_ends_where_checkpoints_go_round_in_a_circle(memory: Store) -> None:
    saver = TreeholdSaver(memory, namespace=NAMESPACE)
    root = put(saver, at("t"), {})
    found = saver.get_tuple(root)
    assert found is not None
    saver.put(root, found.checkpoint, found.metadata, {})
    assert delta_at(saver, root) == (None, [])


def test_long_history_is_read_in_few_steps(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = TreeholdSaver(memory, namespace=NAMESPACE)
    configs = delta_chain(saver, "t", ["run"] * 200)
    requests: list[Any] = []

    def counted(steps: Steps[Any], store: Store) -> Any:
        def answered() -> Iterator[Any]:
            answer: Any = None
            while True:
                try:
                    request = steps.send(answer)
                except StopIteration as end:
                    return end.value
                requests.append(request)
                answer = yield request

        return run(answered(), store)  # type: ignore[arg-type]

    history = counted(_history.history(saver._roots.plain, "t", "", configs[-1]["configurable"]["checkpoint_id"], ["delta"]), memory)
    assert [value for _, _, value in history["delta"]["writes"]] == list(range(199))
    assert len(requests) < 20


def test_encrypted_saver_stores_no_plain_text(saver: TreeholdSaver) -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    secret = TreeholdSaver(saver.store, namespace=("secret",), serde=serde)
    files = {f"/{number}": {"content": "treasure " * 100} for number in range(200)}
    config = put(secret, at("t"), {"files": files, "small": "treasure", "text": "treasure" * 50}, note="treasure")
    secret.put_writes(config, [("files", "treasure")], "task")
    for row in saver.store.scan(("secret", "t"), limit=10_000).rows:
        assert b"treasure" not in bytes(row.body or b"") + bytes(row.meta)
    again = TreeholdSaver(saver.store, namespace=("secret",), serde=serde)
    assert values_at(again, config) == {"files": files, "small": "treasure", "text": "treasure" * 50}
    with pytest.raises(Exception):
        TreeholdSaver(saver.store, namespace=("secret",)).get_tuple(config)


def test_saver_with_an_allow_list_has_a_cache_of_its_own(memory: Store) -> None:
    saver = TreeholdSaver(memory, serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    other = saver.with_allowlist([("some.module", "Type")])
    assert isinstance(other, TreeholdSaver) and other is not saver
    assert other._roots is not saver._roots and other.store is saver.store
    config = put(saver, at("t"), {"a": 1})
    assert values_at(other, config) == {"a": 1}


def test_missing_content_is_corrupt(memory: Store) -> None:
    from treehold import Batch

    saver = TreeholdSaver(memory, namespace=NAMESPACE)
    config = put(saver, at("t"), {"a": "x" * 1000})
    memory.commit(Batch().delete_prefix((*NAMESPACE, "t"), keys.CONTENT))
    with pytest.raises(Corrupt, match="missing"):
        saver.get_tuple(config)


def test_list_without_a_namespace_is_by_time_over_all_namespaces(saver: TreeholdSaver) -> None:
    configs = [put(saver, at("t", ns), {"n": number}, step=number) for number, ns in enumerate(("", "a", "b", "a", ""))]
    newest = list(reversed(configs))
    listed = list(saver.list({"configurable": {"thread_id": "t"}}))
    assert [found.config for found in listed] == newest
    assert [found.config for found in saver.list({"configurable": {"thread_id": "t"}}, limit=2)] == newest[:2]
    assert [found.config for found in saver.list({"configurable": {"thread_id": "t"}}, before=newest[1], limit=2)] == newest[2:4]
    assert [found.config for found in saver.list(configs[1])] == [configs[1]]
    assert [found.config for found in saver.list(None, filter={"step": 3})] == [configs[3]]


def test_long_list_is_read_in_pages(saver: TreeholdSaver) -> None:
    config, configs = at("t"), []
    for number in range(120):
        config = put(saver, config, {"n": number}, step=number % 2)
        configs.append(config)
    assert [found.config for found in saver.list(at("t"))] == configs[::-1]
    assert [found.config for found in saver.list(at("t"), filter={"step": 1}, limit=55)] == configs[::-1][::2][:55]
    first = next(iter(saver.list(at("t"))))
    assert first.config == configs[-1]


def test_two_processes_on_one_thread_lose_nothing(tmp_path: Path) -> None:
    url, count = f"sqlite:{tmp_path / 'shared.db'}", 25
    commands = [[sys.executable, str(WORKERS), "append", url, str(worker), str(count)] for worker in range(2)]
    workers = [subprocess.Popen(command) for command in commands]
    assert [worker.wait() for worker in workers] == [0, 0]
    with TreeholdSaver.from_conn_string(url, namespace=("acme", "ada", "shared")) as saver:
        listed = list(saver.list(at("shared")))
        assert sorted(found.checkpoint["channel_values"]["by"] for found in listed) == [[w, n] for w in range(2) for n in range(count)]
        for found in listed:
            by = found.checkpoint["channel_values"]["by"]
            assert (f"task-{by[0]}", "by", by) in (found.pending_writes or [])
            files = found.checkpoint["channel_values"]["files"]
            assert files[f"/{by[0]}"]["content"].startswith(f"{by[1]} ")
            # Each builds on the checkpoint that it read.
            parent = next((other for other in listed if other.config == found.parent_config), None)
            if parent is not None:
                assert {**parent.checkpoint["channel_values"]["files"], f"/{by[0]}": files[f"/{by[0]}"]} == files


def test_prune_beside_puts_and_reads_loses_nothing(saver: TreeholdSaver) -> None:
    ended = threading.Event()
    failures: list[BaseException] = []

    def prune() -> None:
        pruner = TreeholdSaver(saver.store, namespace=NAMESPACE)
        while not ended.is_set():
            try:
                pruner.prune(["t"])
            except BaseException as error:
                failures.append(error)
                return

    thread = threading.Thread(target=prune)
    thread.start()
    try:
        config, files = at("t"), {f"/f{number}": {"content": "x" * 1000} for number in range(60)}
        for number in range(60):
            files = {**files, f"/f{number}": {"content": f"{number} " + "y" * 1000}}
            config = put(saver, config, {"files": files, "kept": "z" * 500}, {"files": number, "kept": 0}, {"files": number})
            reader = TreeholdSaver(saver.store, namespace=NAMESPACE, cache_bytes=0)
            assert values_at(reader, config) == {"files": files, "kept": "z" * 500}
    finally:
        ended.set()
        thread.join()
    assert failures == []


async def test_many_tasks_of_a_loop_lose_nothing(store: Store) -> None:
    saver = TreeholdSaver(store, namespace=NAMESPACE)

    async def work(worker: int) -> None:
        checkpoint: Any = {
            "v": 4,
            "id": str(uuid6()),
            "ts": "",
            "channel_values": {"messages": [HumanMessage(content=f"{worker} {number}", id=str(number)) for number in range(300)]},
            "channel_versions": {"messages": 1},
            "versions_seen": {},
        }
        config = await saver.aput(at("t"), checkpoint, {"step": worker}, {"messages": 1})
        await asyncio.gather(*(saver.aput_writes(config, [("a", number)], f"task-{number}") for number in range(4)))
        found = await saver.aget_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"] == checkpoint["channel_values"]
        assert len(found.pending_writes or []) == 4

    await asyncio.gather(*(work(worker) for worker in range(12)))
    assert len([found async for found in saver.alist(at("t"))]) == 12


def test_connection_strings_of_other_savers_open_a_store(tmp_path: Path) -> None:
    with TreeholdSaver.from_conn_string(":memory:") as saver:
        put(saver, at("t"), {"a": 1})
    path = tmp_path / "checkpoints.sqlite"
    with TreeholdSaver.from_conn_string(str(path)) as saver:
        saver.setup()
        put(saver, at("t"), {"a": 1})
    with TreeholdSaver.from_conn_string(f"sqlite:{path}") as saver:
        assert values_at(saver, at("t")) == {"a": 1}


def test_next_versions_increase_and_differ_between_branches(memory: Store) -> None:
    saver = TreeholdSaver(memory)
    first = saver.get_next_version(None, None)
    versions = [saver.get_next_version(first, None) for _ in range(2)]
    assert first < min(versions) and versions[0] != versions[1]
    assert saver.get_next_version(41, None).startswith("0" * 30 + "42.")
    assert saver.get_next_version(versions[0], None) > max(versions)
