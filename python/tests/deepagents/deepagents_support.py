"""Backends to test, and graphs to test them in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from deepagents.backends.protocol import BackendProtocol
from langgraph.graph import END, START, StateGraph
from langgraph.store.memory import InMemoryStore
from typing_extensions import TypedDict

import treehold
from treehold.deepagents import FilesystemBackend, StateBackend, StoreBackend
from treehold.langgraph import TreeholdStore

T = TypeVar("T")

KINDS = ("state", "items", "tree", "indexed", "filesystem")
"""The backends that hold files: the state of a graph, items of a foreign store, a tree of our store, and a directory."""


def merged(left: dict[str, Any] | None, right: dict[str, Any] | None) -> dict[str, Any]:
    """Merges changed files into a channel; `None` removes one."""
    files = {**(left or {}), **(right or {})}
    return {path: data for path, data in files.items() if data is not None}


class State(TypedDict):
    """The state of a graph with files."""

    files: Annotated[dict[str, Any], merged]


def in_graph(work: Callable[[], T], files: dict[str, Any] | None = None) -> tuple[T, dict[str, Any]]:
    """Runs work in a node of a graph. Returns its result and the files afterwards."""
    results: list[T] = []

    def node(_: State) -> dict[str, Any]:
        results.append(work())
        return {}

    graph = StateGraph(State).add_node("work", node).add_edge(START, "work").add_edge("work", END).compile()
    after = graph.invoke({"files": files or {}})
    return results[0], after["files"]


class Held:
    """A state backend outside of a graph, whose channel is a dict."""

    def __init__(self) -> None:
        self.files: dict[str, Any] = {}
        self.backend = StateBackend()
        vars(self.backend)["_read_files"] = lambda: self.files
        vars(self.backend)["_send_files_update"] = self.update

    def update(self, changes: dict[str, Any]) -> None:
        self.files = merged(self.files, changes)


@contextmanager
def made(kind: str, directory: Path) -> Iterator[BackendProtocol]:
    """Makes an empty backend of a kind."""
    if kind == "state":
        yield Held().backend
    elif kind == "items":
        yield StoreBackend(namespace=lambda _: ("ada", "files"), store=InMemoryStore())
    elif kind == "tree":
        with treehold.Store.open(f"sqlite:{directory / 'store.db'}") as store:
            yield StoreBackend(namespace=lambda _: ("ada", "files"), store=TreeholdStore(store))
    elif kind == "indexed":
        with treehold.Store.open(f"sqlite:{directory / 'store.db'}") as store:
            yield StoreBackend(namespace=lambda _: ("ada", "files"), store=TreeholdStore(store), index="trigram")
    else:
        root = directory / "root"
        root.mkdir()
        yield FilesystemBackend(root_dir=root)


def edit_in_process(url: str, worker: int) -> None:
    """Makes every third of 60 edits of one file, as one of three processes."""
    with treehold.Store.open(url) as store:
        backend = StoreBackend(namespace=lambda _: ("ada",), store=TreeholdStore(store))
        for n in range(worker, 60, 3):
            assert backend.edit("/count.md", f"[{n}]", f"<{n}>").error is None
