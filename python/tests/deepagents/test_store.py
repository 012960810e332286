"""The store backend over a foreign store and over ours."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deepagents.backends.utils import create_file_data
from deepagents_support import edit_in_process
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

import treehold
from treehold.deepagents import StoreBackend
from treehold.deepagents._adoption import files_namespace
from treehold.langgraph import TreeholdStore


@pytest.fixture(params=("memory", "sqlite", "treehold"))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseStore]:
    if request.param == "memory":
        yield InMemoryStore()
    elif request.param == "sqlite":
        connection = sqlite3.connect(tmp_path / "theirs.db", check_same_thread=False, isolation_level=None)
        found = SqliteStore(connection)
        found.setup()
        yield found
        connection.close()
    else:
        with treehold.Store.open(f"sqlite:{tmp_path / 'ours.db'}") as opened:
            yield TreeholdStore(opened)


def backend_of(store: BaseStore, *namespace: str) -> StoreBackend:
    return StoreBackend(namespace=lambda _: namespace or ("ada",), store=store)


def paths(entries: Any) -> list[str]:
    return [entry["path"] for entry in entries]


def test_namespaces_that_share_a_prefix_share_no_files(store: BaseStore) -> None:
    outer, inner = backend_of(store, "a"), backend_of(store, "a", "b")
    inner.write("/secret.md", "hit")
    assert (outer.ls("/").entries, outer.glob("**").matches, outer.grep("hit").matches) == ([], [], [])
    assert outer.delete("/secret.md").error is not None
    assert inner.read("/secret.md").error is None


def test_no_acknowledged_edit_of_several_threads_is_lost(store: BaseStore) -> None:
    backend_of(store).write("/count.md", "".join(f"[{n}]" for n in range(80)))

    def edit(worker: int) -> int:
        backend = backend_of(store)
        results = [backend.edit("/count.md", f"[{n}]", f"<{n}>") for n in range(worker, 80, 4)]
        return sum(result.error is None for result in results)

    with ThreadPoolExecutor(4) as pool:
        acknowledged = sum(pool.map(edit, range(4)))
    content = backend_of(store).read("/count.md").file_data
    assert acknowledged == 80
    assert content is not None and content["content"] == "".join(f"<{n}>" for n in range(80))


async def test_no_acknowledged_edit_of_several_tasks_is_lost() -> None:
    backend = backend_of(InMemoryStore())
    await backend.awrite("/count.md", "".join(f"[{n}]" for n in range(40)))
    await asyncio.gather(*(backend.aedit("/count.md", f"[{n}]", f"<{n}>") for n in range(40)))
    data = (await backend.aread("/count.md")).file_data
    assert data is not None and data["content"] == "".join(f"<{n}>" for n in range(40))


def test_no_acknowledged_edit_of_several_processes_is_lost(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'shared.db'}"
    with treehold.Store.open(url) as opened:
        backend = backend_of(TreeholdStore(opened))
        backend.write("/count.md", "".join(f"[{n}]" for n in range(60)))
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=edit_in_process, args=(url, worker)) for worker in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0, 0, 0]
        data = backend.read("/count.md").file_data
        assert data is not None and data["content"] == "".join(f"<{n}>" for n in range(60))


def test_files_that_an_application_puts_as_items_are_files(store: BaseStore) -> None:
    backend = backend_of(store)
    store.put(("ada",), "/seed.md", dict(create_file_data("hit one")))
    store.put(("ada",), "/legacy.md", {"content": ["hit two", "end"]})
    store.put(("ada",), "note", {"text": "no file"})
    assert paths(backend.ls("/").entries) == ["/legacy.md", "/seed.md"]
    assert sorted(paths(backend.grep("hit").matches)) == ["/legacy.md", "/seed.md"]
    assert backend.edit("/seed.md", "one", "1").error is None
    store.put(("ada",), "/seed.md", dict(create_file_data("put again")))
    data = backend.read("/seed.md").file_data
    assert data is not None and data["content"] == "put again"
    assert store.get(("ada",), "note") is not None


def test_file_put_as_an_item_is_found_by_its_path_first(store: BaseStore) -> None:
    store.put(("ada",), "/seed.md", dict(create_file_data("hit")))
    backend = backend_of(store)
    assert backend.edit("/seed.md", "hit", "miss").occurrences == 1
    assert backend.download_files(["/seed.md"])[0].content == b"miss"
    assert backend.delete("/seed.md").error is None
    assert backend.read("/seed.md").error == "File '/seed.md' not found"


def test_many_files_are_all_listed_and_searched(store: BaseStore) -> None:
    backend = backend_of(store)
    backend.upload_files([(f"/d/{n:04}.md", b"needle" if n % 100 == 0 else b"hay") for n in range(1300)])
    assert len(backend.ls("/d").entries or []) == 1300
    assert len(backend.glob("**/*.md").matches or []) == 1300
    assert len(backend.grep("needle").matches or []) == 13


async def test_native_and_foreign_stores_answer_alike_asynchronously(tmp_path: Path) -> None:
    async with treehold.Store.open(f"sqlite:{tmp_path / 'ours.db'}") as opened:
        answers: list[list[Any]] = []
        for store in (InMemoryStore(), TreeholdStore(opened)):
            backend = backend_of(store)
            answers.append(
                [
                    await backend.awrite("/a/x.md", "one\ntwo\n"),
                    await backend.aedit("/a/x.md", "one", "1"),
                    (await backend.aread("/a/x.md", 0, 1)).next_offset,
                    paths((await backend.als("/")).entries),
                    paths((await backend.aglob("*.md")).matches),
                    (await backend.agrep("two")).matches,
                    await backend.adelete("/a"),
                    paths((await backend.als("/")).entries),
                ]
            )
        assert answers[0] == answers[1]


def test_store_of_the_graph_is_used_if_none_was_given() -> None:
    with pytest.raises(RuntimeError, match="graph"):
        StoreBackend(namespace=lambda _: ("ada",)).ls("/")


def test_an_index_is_of_our_stores() -> None:
    with pytest.raises(ValueError, match="TreeholdStore"):
        StoreBackend(namespace=lambda _: ("ada",), store=InMemoryStore(), index="trigram")
    ours = TreeholdStore(treehold.Store.open("memory:"))
    backend = StoreBackend(namespace=lambda _: ("ada",), store=ours, index="trigram")
    for n in range(200):
        backend.write(f"/{n}.md", f"number {n} of many")
    assert paths(backend.grep("number 77 ").matches) == ["/77.md"]
    tree = treehold.StoreBackend(ours.store, files_namespace(ours.namespace, ("ada",)), index="trigram")
    assert tree.grep("number 77 ").files_searched < 100
