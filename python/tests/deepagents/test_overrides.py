"""Subclasses of our backends, as applications write them."""

from __future__ import annotations

import asyncio

from deepagents.backends.protocol import GrepResult, LsResult
from langgraph.store.memory import InMemoryStore

from treehold.deepagents import CompositeBackend, StoreBackend


class Refusing(StoreBackend):
    """Overrides one synchronous and one asynchronous method."""

    def grep(self, pattern: str, path: str | None = None, glob: str | None = None, **_: object) -> GrepResult:
        return GrepResult(error="no searches here")

    async def als(self, path: str) -> LsResult:
        return LsResult(error="no listings here")


def test_asynchronous_methods_call_the_overridden_ones() -> None:
    backend = Refusing(namespace=lambda _: ("a",), store=InMemoryStore())

    async def work() -> None:
        assert (await backend.agrep("x")).error == "no searches here"
        assert (await backend.als("/")).error == "no listings here"
        assert (await backend.aglob("*")).matches == []

    asyncio.run(work())
    assert backend.ls("/").entries == []


def test_composite_asks_the_overridden_methods() -> None:
    store = InMemoryStore()
    default = StoreBackend(namespace=lambda _: ("b",), store=store)
    composite = CompositeBackend(default, {"/m/": Refusing(namespace=lambda _: ("a",), store=store)})
    assert asyncio.run(composite.agrep("x", "/m")).error == "no searches here"
