"""LangGraph's conformance suite for checkpointers.

The released suite lacks the tests of delta channels. `upstream.py` runs this file with the suite of a checkout too.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import langgraph.checkpoint
import pytest

from treehold import Store
from treehold.langgraph import TreeholdSaver

CHECKOUT = os.environ.get("TREEHOLD_LANGGRAPH_CHECKOUT")
if CHECKOUT is not None:
    suite = str(Path(CHECKOUT) / "libs/checkpoint-conformance/langgraph/checkpoint")
    langgraph.checkpoint.__path__ = [suite, *langgraph.checkpoint.__path__]

conformance = pytest.importorskip("langgraph.checkpoint.conformance")

TESTS = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}
"""The number of tests of each capability in the suite that this file was written against."""

DELTA_TESTS = 8


async def test_saver_passes_the_conformance_suite(new_url: Callable[[], str]) -> None:
    @conformance.checkpointer_test(name="TreeholdSaver")  # type: ignore[untyped-decorator]
    async def saver() -> AsyncGenerator[TreeholdSaver, None]:
        store = Store.open(new_url())
        yield TreeholdSaver(store)
        store.close()

    report = await conformance.validate(saver)
    results = {name: result for name, result in report.results.items() if result.detected}
    assert {name: result.failures for name, result in results.items() if result.failures} == {}
    expected = {**TESTS, "delta_channel_history": DELTA_TESTS} if CHECKOUT is not None else TESTS
    assert all(results[name].tests_passed >= count for name, count in expected.items())
    print(f"{new_url().partition(':')[0]}: {sum(result.tests_passed for result in results.values())} tests passed")
