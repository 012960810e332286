"""The store: batches, namespaces, time to live, vectors, conditions."""

from __future__ import annotations

import asyncio
import math
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from langgraph.store.base import GetOp, InvalidNamespaceError, ListNamespacesOp, MatchCondition, PutOp, SearchOp

from treehold import Batch, Conflict, Error, InvalidArgument, Store
from treehold.langgraph import TreeholdIndexConfig, TreeholdStore, _vectors
from treehold.langgraph._filter import Filter

ROOT = ("acme", "ada", "memories")

VECTORS = ("acme", "ada", "_treehold", "item-vectors", "memories")

WORKERS = Path(__file__).parent / "workers.py"


@pytest.fixture
def items(store: Store) -> TreeholdStore:
    """A store of items on a new store of each engine."""
    return TreeholdStore(store, namespace=ROOT)


def letters(texts: Sequence[str]) -> list[list[float]]:
    """Embeds texts by how often each letter occurs."""
    return [[float(Counter(text.lower())[chr(97 + place)]) for place in range(26)] for text in texts]


INDEX: TreeholdIndexConfig = {"dims": 26, "embed": letters, "fields": ["text"]}


def places(found: Sequence[Any]) -> list[str]:
    return [item.key for item in found]


# Batches.


def test_reads_of_a_batch_show_what_was_there_before_its_puts(items: TreeholdStore) -> None:
    items.put(("a",), "k", {"n": 1})
    results = items.batch(
        [
            PutOp(("a",), "k", {"n": 2}),
            GetOp(("a",), "k"),
            SearchOp(("a",)),
            PutOp(("b",), "new", {"n": 3}),
            ListNamespacesOp(),
            GetOp(("b",), "new"),
        ]
    )
    assert results[1].value == {"n": 1}
    assert [item.value for item in results[2]] == [{"n": 1}]
    assert results[4] == [("a",)]
    assert results[0] is results[3] is results[5] is None
    assert items.get(("a",), "k").value == {"n": 2}


def test_list_of_namespaces_takes_an_empty_prefix(items: TreeholdStore) -> None:
    items.put(("a", "b"), "k", {})
    assert items.list_namespaces(prefix=(), suffix=()) == [("a", "b")]
    assert items.batch([ListNamespacesOp((MatchCondition("prefix", ()),))]) == [[("a", "b")]]


def test_last_put_of_an_item_in_a_batch_counts(items: TreeholdStore) -> None:
    items.batch([PutOp(("a",), "k", {"n": 1}), PutOp(("a",), "k", None), PutOp(("a",), "k", {"n": 2})])
    assert items.get(("a",), "k").value == {"n": 2}
    items.batch([PutOp(("a",), "k", {"n": 3}), PutOp(("a",), "k", None)])
    assert items.get(("a",), "k") is None


@pytest.mark.parametrize(
    "bad",
    [
        PutOp(("a", ""), "k", {}),
        PutOp(("a.b",), "k", {}),
        PutOp(("a\x00",), "k", {}),
        PutOp(cast("Any", (1,)), "k", {}),
        PutOp(cast("Any", "text"), "k", {}),
        PutOp(("\ud800",), "k", {}),
        PutOp(("a",) * 20, "k", {}),
        PutOp(("a",), cast("Any", 1), {}),
        PutOp(("a",), "\ud800", {}),
        PutOp(("a",), "x" * 5000, {}),
        PutOp(("a",), "k", cast("Any", [1])),
        PutOp(("a",), "k", {"x": object()}),
        PutOp(("a",), "k", {"x": float("nan")}),
        PutOp(("a",), "k", {"x": "\ud800"}),
        PutOp(("a",), "k", {"x": {1: 2}}),
        PutOp(("a",), "k", cast("Any", {1: 2})),
        PutOp(("a",), "k", {}, ttl=0),
        PutOp(("a",), "k", {}, ttl=-1),
        PutOp(("a",), "k", {}, ttl=math.inf),
        PutOp(("a",), "k", {}, ttl=1_440_000_001),
        PutOp(("a",), "k", {}, ttl=1e300),
        PutOp(("a",), "k", {}, index=cast("Any", "text")),
        PutOp(("a",), "k", {}, index=cast("Any", True)),
        GetOp(("a", ""), "k"),
        SearchOp(("a", "")),
        SearchOp(("a",), limit=-1),
        SearchOp(("a",), offset=-1),
        SearchOp(("a",), limit=cast("Any", "1")),
        SearchOp(("a",), filter={"$gt": 1}),
        SearchOp(("a",), filter={"n": {"$near": 1}}),
        SearchOp(("a",), filter={"n": {"$gt": None}}),
        SearchOp(("a",), filter={"n": {"$gt": 1, "m": 2}}),
        SearchOp(("a",), filter=cast("Any", {1: 2})),
        SearchOp(("a",), filter={str(number): 1 for number in range(300)}),
        ListNamespacesOp((MatchCondition(cast("Any", "infix"), ("a",)),)),
        ListNamespacesOp(max_depth=-1),
        ListNamespacesOp(limit=-1),
        cast("Any", ("get", "k")),
    ],
    ids=repr,
)
def test_bad_operation_is_refused_before_anything_is_stored(memory: Store, bad: Any) -> None:
    items = TreeholdStore(memory, namespace=ROOT, index=INDEX)
    for ops in ([PutOp(("a",), "good", {"text": "x"}), bad], [bad, PutOp(("a",), "good", {"text": "x"})]):
        with pytest.raises(InvalidArgument):
            items.batch(ops)
        with pytest.raises(InvalidArgument):
            asyncio.run(items.abatch(ops))
    assert memory.namespaces() == ([], False)


def test_bad_namespace_is_langgraphs_own_error_too(memory: Store) -> None:
    items = TreeholdStore(memory)
    with pytest.raises(InvalidNamespaceError):
        items.batch([PutOp(("a.b",), "k", {})])
    with pytest.raises(InvalidNamespaceError):
        items.put((), "k", {})
    with pytest.raises(InvalidNamespaceError):
        items.put_if((), "k", {}, version=None)


def test_value_that_contains_itself_is_refused(memory: Store) -> None:
    value: dict[str, Any] = {}
    value["self"] = value
    with pytest.raises(InvalidArgument, match="itself"):
        TreeholdStore(memory).put(("a",), "k", value)


def test_batch_with_many_reads_shows_one_moment(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'items.db'}"
    ended = threading.Event()
    with TreeholdStore.from_conn_string(url) as writer, TreeholdStore.from_conn_string(url) as reader:
        writer.batch([PutOp((name,), "n", {"n": 0}) for name in "abc"])

        def write() -> None:
            number = 0
            while not ended.is_set() and number < 200:
                number += 1
                writer.batch([PutOp((name,), "n", {"n": number}) for name in "abc"])

        thread = threading.Thread(target=write)
        thread.start()
        try:
            torn = 0
            for _ in range(100):
                results = reader.batch([GetOp((name,), "n") for name in "abc"])
                torn += len({item.value["n"] for item in results}) > 1
        finally:
            ended.set()
            thread.join()
    # A reader that loses every race reads what is there. That is rare.
    assert torn < 20


# Namespaces.


@pytest.mark.parametrize("root", [("acme",), ("acme", "ada"), ("acme", "ada", "items")])
def test_rows_of_treehold_are_not_items(memory: Store, root: tuple[str, ...]) -> None:
    """The reserved component has its meaning only directly after the partition."""
    memory.commit(Batch().put("acme/ada/_treehold/threads", "k", "{}").put("acme/ada/_treehold/items/x", "k", "{}"))
    memory.commit(Batch().put("acme//_treehold/history", "k", "{}"))
    items = TreeholdStore(memory, namespace=root)
    labels = tuple(["ada"] * (2 - len(root)))
    if len(root) <= 2:
        with pytest.raises(InvalidNamespaceError, match="own rows"):
            items.get((*labels, "_treehold"), "k")
        with pytest.raises(InvalidNamespaceError, match="own rows"):
            items.put((*labels, "_treehold", "x"), "k", {"a": 1})
    else:
        items.put(("_treehold", "x"), "k", {"a": 1})
    items.put((*labels, "notes", "_treehold"), "k", {"a": 2})
    own = [(*labels, "notes", "_treehold")] + ([("_treehold", "x")] if len(root) > 2 else [])
    assert sorted(items.list_namespaces()) == sorted(own)
    assert sorted(item.namespace for item in items.search(())) == sorted(own)


def test_empty_namespace_holds_items(items: TreeholdStore) -> None:
    items.batch([PutOp((), "k", {"n": 1}), PutOp(("a",), "k", {"n": 2})])
    assert items.get((), "k").value == {"n": 1}
    assert [item.namespace for item in items.search(())] == [(), ("a",)]
    assert items.list_namespaces() == [(), ("a",)]


def test_namespaces_match_whole_labels(items: TreeholdStore) -> None:
    for namespace in [("foo",), ("foo", "x"), ("foobar",), ("fo",), ("Foo",), ("f%",), ("f*",), ("a/b",), ("a", "b"), ("a\n",)]:
        items.put(namespace, "k", {"at": list(namespace)})
    assert [item.value["at"] for item in items.search(("foo",))] == [["foo"], ["foo", "x"]]
    assert [item.value["at"] for item in items.search(("a",))] == [["a", "b"]]
    assert items.list_namespaces(prefix=("f*",)) == [("f*",)]
    assert items.list_namespaces(suffix=("x",)) == [("foo", "x")]
    assert items.get(("a/b",), "k").value == {"at": ["a/b"]}


def test_suffix_does_not_match_labels_of_the_root(items: TreeholdStore) -> None:
    items.put(("x",), "k", {})
    assert items.list_namespaces(suffix=("memories", "x")) == []
    assert items.list_namespaces(prefix=("*", "x")) == []
    assert items.list_namespaces(prefix=("*",), suffix=("*",)) == [("x",)]


def test_rows_of_other_tiers_are_no_items(items: TreeholdStore) -> None:
    items.put(("a",), "item", {"n": 1})
    items.store.commit(
        Batch()
        .put((*ROOT, "a"), "file", b"text", meta=b'{"kind":"file"}')
        .put((*ROOT, "a"), "plain", b"not JSON")
        .put((*ROOT, "a"), "list", b"[1]")
        .put((*ROOT, "a"), "other", b'{"n":2}')
    )
    assert places(items.search(("a",))) == ["item", "other"]
    with pytest.raises(Error):
        items.get(("a",), "file")


def test_pages_go_on_while_somebody_writes(items: TreeholdStore) -> None:
    for number in range(30):
        items.put(("a", str(number % 3)), f"{number:02}", {"n": number})
    found: list[int] = []
    cursor = None
    while True:
        page = items.search_page(("a",), limit=7, after=cursor)
        found.extend(item.value["n"] for item in page.items)
        cursor = page.next
        if cursor is None:
            break
        # Items before the cursor come and go; an offset would skip or repeat others.
        items.delete(page.items[0].namespace, page.items[0].key)
        items.put(("a", "0"), f"-{len(found)}", {"n": -1})
    assert sorted(found) == list(range(30))
    with pytest.raises(InvalidArgument, match="another search"):
        items.search_page(("b",), after=items.search_page(("a",), limit=1).next)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        items.search_page(("a",), after="%%%")


def test_pages_of_namespaces_list_each_once(items: TreeholdStore) -> None:
    expected = [("a", f"{number:02}") for number in range(25)]
    items.batch([PutOp(namespace, "k", {}) for namespace in [*expected, ("b",)]])
    found, cursor = [], None
    while True:
        page = items.namespaces_page(("a",), limit=10, after=cursor)
        found.extend(page.namespaces)
        cursor = page.next
        if cursor is None:
            break
    assert found == expected


def test_latest_items_come_first_in_the_order_of_updates(store: Store) -> None:
    items = TreeholdStore(store, namespace=ROOT, order="updated_at")
    for key in ("b", "a", "c"):
        items.put((key,), key, {"n": 1})
    items.put(("b",), "b", {"n": 2})
    assert places(items.search(())) == ["b", "c", "a"]
    assert places(items.search((), limit=1, offset=1)) == ["c"]
    assert places(items.search((), filter={"n": 1}, limit=1)) == ["c"]
    with pytest.raises(InvalidArgument):
        TreeholdStore(store, order=cast("Any", "random"))


def test_offset_skips_items_of_all_namespaces(items: TreeholdStore) -> None:
    items.batch([PutOp(("a", f"{number // 100}"), f"{number:04}", {"n": number}) for number in range(1200)])
    assert [item.value["n"] for item in items.search(("a",), offset=1150, limit=20)] != []
    in_order = [item.value["n"] for item in items.search(("a",), limit=1200)]
    assert sorted(in_order) == list(range(1200))
    assert [item.value["n"] for item in items.search(("a",), offset=617, limit=20)] == in_order[617:637]
    even = [item.value["n"] for item in items.search(("a",), filter={"n": {"$gte": 600}}, offset=17, limit=600)]
    assert even == [number for number in in_order if number >= 600][17:]


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


ODD: dict[str, dict[str, Any]] = {
    "absent": {},
    "deep": {"n": 1, "deep": nested(200)},
    "exact": {"n": 2**53 + 1},
    "flag": {"n": True},
    "float": {"n": 1.0},
    "high": {"n": 1, "s": "\U0001f600"},
    "huge": {"n": 10**400},
    "int": {"n": 1},
    "list": {"n": [1, {"a": 1.0}]},
    "null": {"n": None},
    "rounded": {"n": float(2**53)},
    "text": {"n": "1", "s": "\uffff"},
}


@pytest.mark.parametrize(
    ("filter", "is_native"),
    [
        ({"n": 1}, True),
        ({"n": {"$ne": 1}}, True),
        ({"n": {"$lte": 1}}, True),
        ({"n": {"$gt": 2**53 - 1}}, True),
        ({"n": None}, True),
        ({"n": [1, {"a": 1}]}, True),
        ({"n": (1, {"a": 1})}, True),
        ({"s": {"$gt": "\uffff"}}, True),
        ({"n": 2**53 + 1}, False),
        ({"n": {"$ne": 2**53 + 1}}, False),
        ({"n": {"$gt": float(2**53)}}, False),
        ({"n": {"$lt": math.inf}}, False),
        ({"n": {"$ne": 10**400}}, False),
        ({"n": {"$ne": b"1"}}, False),
    ],
)
@pytest.mark.parametrize("order", ["key", "updated_at"])
def test_filter_finds_the_same_items_in_the_core_as_in_python(
    filter: dict[str, Any], is_native: bool, order: Any, store: Store
) -> None:
    items = TreeholdStore(store, namespace=ROOT, order=order)
    items.batch([PutOp(("a",), key, value) for key, value in ODD.items()])
    wanted = Filter(filter)
    expected = sorted(key for key, value in ODD.items() if wanted.matches(value))
    assert expected and (wanted.native is not None) == is_native
    assert sorted(places(items.search(("a",), filter=filter, limit=100))) == expected
    if order == "key":
        assert places(items.search(("a",), filter=filter, offset=1, limit=100)) == expected[1:]
        assert [place for start in range(len(expected)) for place in places(items.search(("a",), filter=filter, offset=start, limit=1))] == expected


# Conditions.


def test_conditional_put_fails_once_somebody_changed_the_item(items: TreeholdStore) -> None:
    version = items.put_if(("a",), "k", {"n": 1}, version=None)
    item = items.get(("a",), "k")
    assert item is not None and item.version == version
    changed = items.put_if(("a",), "k", {"n": 2}, version=version)
    for stale in (version, None):
        with pytest.raises(Conflict) as refused:
            items.put_if(("a",), "k", {"n": 3}, version=stale)
        assert refused.value.current_version == changed
    assert items.get(("a",), "k").value == {"n": 2}


def test_updates_of_two_processes_are_all_counted(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'items.db'}"
    commands = [[sys.executable, str(WORKERS), "count", url, str(worker), "40"] for worker in range(2)]
    workers = [subprocess.Popen(command) for command in commands]
    assert [worker.wait() for worker in workers] == [0, 0]
    with TreeholdStore.from_conn_string(url, namespace=("acme", "ada", "shared")) as items:
        assert items.get(("a",), "n").value == {"n": 80}


async def test_async_updates_are_all_counted(items: TreeholdStore) -> None:
    async def count(value: dict[str, Any] | None) -> dict[str, Any]:
        return {"n": (value or {"n": 0})["n"] + 1}

    await asyncio.gather(*(items.aupdate(("a",), "n", count) for _ in range(8)))
    assert (await items.aget(("a",), "n")).value == {"n": 8}


def test_overwritten_item_keeps_the_time_of_its_creation(items: TreeholdStore) -> None:
    items.put(("a",), "k", {"n": 1})
    first = items.get(("a",), "k")
    items.put(("a",), "k", {"n": 2})
    second = items.get(("a",), "k")
    assert first is not None and second is not None
    assert second.created_at == first.created_at <= first.updated_at <= second.updated_at
    assert second.created_at.tzinfo is not None


# Time to live.


def until(condition: Callable[[], bool]) -> None:
    """Waits for something that time brings about."""
    ended = threading.Event()
    for _ in range(600):
        if condition():
            return
        ended.wait(0.05)
    raise AssertionError("it did not happen within 30 seconds")


def test_expired_item_is_absent_and_swept_with_its_vectors(store: Store) -> None:
    items = TreeholdStore(store, namespace=ROOT, index=INDEX, ttl={"default_ttl": 0.5 / 60, "refresh_on_read": False})
    items.put(("a",), "short", {"text": "abc"})
    items.put(("a",), "long", {"text": "abc"}, ttl=None)
    until(lambda: items.get(("a",), "short") is None)
    assert places(items.search(("a",))) == ["long"]
    assert places(items.search(("a",), query="abc")) == ["long"]
    items.sweep_ttl()
    assert [row.key for row in store.scan((*VECTORS, "a")).rows] == ["long"]


def expiry(items: TreeholdStore, key: str) -> Any:
    found = items.get(("a",), key, refresh_ttl=False)
    assert found is not None
    return cast("Any", found).expires_at


@pytest.mark.parametrize("way", ["get", "search", "query", "page"])
def test_read_restarts_the_time_to_live_of_what_it_returns(store: Store, way: str) -> None:
    items = TreeholdStore(store, namespace=ROOT, index=INDEX, ttl={"default_ttl": 1 / 60})
    items.put(("a",), "read", {"text": "abc"}, ttl=10)
    items.put(("a",), "other", {"text": "xyz"}, ttl=10)
    # Most of the time to live has passed.
    for space in (ROOT, VECTORS):
        store.commit(Batch().touch((*space, "a"), "read", 60).touch((*space, "a"), "other", 60))
    before, other = expiry(items, "read"), expiry(items, "other")
    for refresh in (False, True):
        match way:
            case "get":
                items.get(("a",), "read", refresh_ttl=refresh)
            case "search":
                items.search(("a",), filter={"text": "abc"}, refresh_ttl=refresh)
            case "query":
                items.search(("a",), query="abc", limit=1, refresh_ttl=refresh)
            case _:
                items.search_page(("a",), filter={"text": "abc"}, refresh_ttl=refresh)
        assert (expiry(items, "read") > before) == refresh
    assert expiry(items, "other") == other
    vectors = {row.key: row.expires_at for row in store.scan((*VECTORS, "a")).rows}
    assert vectors["read"] > vectors["other"]


def test_read_that_overlaps_a_put_does_not_shorten_its_life(items: TreeholdStore) -> None:
    items.put(("a",), "k", {"n": 1}, ttl=10)
    items.store.commit(Batch().touch((*ROOT, "a"), "k", 60))
    # The read refreshes what it returned, not what the same batch puts.
    items.batch([GetOp(("a",), "k"), PutOp(("a",), "k", {"n": 2})])
    assert expiry(items, "k") is None


def test_update_keeps_the_time_to_live(items: TreeholdStore) -> None:
    items.put(("a",), "k", {"n": 1}, ttl=10)
    items.update(("a",), "k", lambda value: {"n": (value or {})["n"] + 1})
    assert expiry(items, "k") is not None


def test_sweeper_removes_expired_rows_until_it_is_stopped(memory: Store) -> None:
    items = TreeholdStore(memory, namespace=ROOT)
    ended = items.start_ttl_sweeper(0.02 / 60)
    with pytest.raises(InvalidArgument, match="runs already"):
        items.start_ttl_sweeper()
    items.put(("a",), "k", {}, ttl=0.05 / 60)
    until(lambda: memory.stats()["items"] == 0)
    assert items.stop_ttl_sweeper()
    assert ended.done()
    assert items.stop_ttl_sweeper()


# Vectors.


@pytest.mark.parametrize("metric", _vectors.METRICS)
def test_nearest_items_come_first_with_their_scores(store: Store, metric: Any) -> None:
    items = TreeholdStore(store, namespace=ROOT, index={**INDEX, "distance_type": metric})
    texts = {"one": "aab", "two": "abb", "three": "zzz", "four": "ab"}
    items.batch([PutOp(("docs", key), key, {"text": text}) for key, text in texts.items()])
    query = letters(["aab"])[0]

    def score(text: str) -> float:
        vector = letters([text])[0]
        product = sum(one * other for one, other in zip(query, vector, strict=True))
        if metric == "inner_product":
            return product
        if metric == "l2":
            return -math.dist(query, vector)
        return product / (math.hypot(*query) * math.hypot(*vector))

    found = items.search(("docs",), query="aab")
    assert {item.key: item.score for item in found} == pytest.approx({key: score(text) for key, text in texts.items()})
    assert [item.score for item in found] == sorted((item.score for item in found), reverse=True)
    assert places(items.search(("docs",), query="aab", limit=2, offset=1)) == places(found)[1:3]
    assert places(items.search(("docs", "two"), query="aab")) == ["two"]


def test_item_with_several_texts_counts_with_the_nearest(items: TreeholdStore, store: Store) -> None:
    items = TreeholdStore(store, namespace=ROOT, index={**INDEX, "fields": ["title", "parts[*].text"]})
    items.put(("a",), "many", {"title": "zzz", "parts": [{"text": "abc"}, {"text": "xyz"}]})
    items.put(("a",), "one", {"title": "abx"})
    items.put(("a",), "none", {"other": "abc"})
    items.put(("a",), "unindexed", {"title": "abc"}, index=False)
    items.put(("a",), "own", {"other": "zzy"}, index=["other"])
    found = items.search(("a",), query="abc")
    assert places(found) == ["many", "one", "own", "none", "unindexed"]
    assert found[0].score == pytest.approx(1.0)
    assert found[3].score is found[4].score is None
    assert places(items.search(("a",), query="abc", offset=2, limit=2)) == ["own", "none"]
    assert places(items.search(("a",), query="abc", filter={"title": {"$ne": "zzz"}})) == ["one", "own", "none", "unindexed"]


def test_vectors_follow_their_items(store: Store) -> None:
    items = TreeholdStore(store, namespace=ROOT, index=INDEX)
    other = TreeholdStore(store, namespace=ROOT, index=INDEX)
    items.put(("a",), "k", {"text": "abc"})
    assert [item.score for item in other.search(("a",), query="abc")] == pytest.approx([1.0])
    items.put(("a",), "k", {"text": "xyz"})
    assert [item.score for item in other.search(("a",), query="abc")] == pytest.approx([0.0])
    # A store without an index does not know the vectors; they must not be taken for those of the new text.
    TreeholdStore(store, namespace=ROOT).put(("a",), "k", {"text": "new"})
    assert [item.score for item in other.search(("a",), query="abc")] == [None]
    items.put(("a",), "k", {"text": "abc"}, index=False)
    assert [item.score for item in other.search(("a",), query="abc")] == [None]
    items.put(("a",), "k", {"text": "abc"})
    store.commit(Batch().put((*ROOT, "a"), "k", b'{"text":"by other means"}', meta=b"json"))
    assert [item.score for item in other.search(("a",), query="abc")] == [None]
    items.put(("a",), "k", {"text": "abc"})
    items.delete(("a",), "k")
    assert other.search(("a",), query="abc") == []
    assert store.namespaces(prefix=ROOT[:2]) == ([], False)


def test_item_and_vectors_are_one_commit(store: Store) -> None:
    items = TreeholdStore(store, namespace=ROOT, index=INDEX)
    version = items.put_if(("a",), "k", {"text": "abc"}, version=None)
    with pytest.raises(Conflict):
        items.put_if(("a",), "k", {"text": "xyz"}, version=None)
    found = items.search(("a",), query="abc")[0]
    assert found.score == pytest.approx(1.0) and cast("Any", found).version == version


@pytest.mark.parametrize(
    "vectors", [[[1.0]], [], [[float("nan")] * 26], [[1.0] * 26, [1.0] * 26]], ids=["dims", "none", "nan", "many"]
)
def test_bad_embedding_is_refused_before_anything_is_stored(memory: Store, vectors: Any) -> None:
    items = TreeholdStore(memory, index={"dims": 26, "embed": lambda texts: vectors})
    with pytest.raises(InvalidArgument, match="embedding"):
        items.batch([PutOp(("a",), "k", {"text": "abc"})])
    assert memory.namespaces() == ([], False)


@pytest.mark.parametrize(
    "index",
    [
        {"embed": letters},
        {"dims": 0, "embed": letters},
        {"dims": 26},
        {"dims": 26, "embed": letters, "distance_type": "hamming"},
        {"dims": 26, "embed": letters, "fields": "text"},
    ],
)
def test_bad_index_is_refused(memory: Store, index: Any) -> None:
    with pytest.raises(InvalidArgument):
        TreeholdStore(memory, index=index)


def test_vectors_of_another_configuration_are_left_out(store: Store) -> None:
    TreeholdStore(store, namespace=ROOT, index=INDEX).put(("a",), "k", {"text": "abc"})
    other = TreeholdStore(store, namespace=ROOT, index={"dims": 2, "embed": lambda texts: [[1.0, 0.0] for _ in texts]})
    assert [item.score for item in other.search(("a",), query="abc")] == [None]


async def test_async_embedding_function_is_awaited(store: Store) -> None:
    async def embed(texts: Sequence[str]) -> list[list[float]]:
        await asyncio.sleep(0)
        return letters(texts)

    items = TreeholdStore(store, namespace=ROOT, index={**INDEX, "embed": embed})
    await items.abatch([PutOp(("a",), key, {"text": key}) for key in ("abc", "xyz")])
    assert places(await items.asearch(("a",), query="xyz")) == ["xyz", "abc"]


def test_each_text_of_a_batch_is_embedded_once(memory: Store) -> None:
    asked: list[str] = []

    def embed(texts: Sequence[str]) -> list[list[float]]:
        asked.extend(texts)
        return letters(texts)

    items = TreeholdStore(memory, index={**INDEX, "embed": embed})
    items.batch([PutOp(("a",), str(number), {"text": "same"}) for number in range(5)] + [PutOp(("a",), "other", {"text": "x"})])
    assert asked == ["same", "x"]


def scattered(count: int, dims: int) -> dict[str, list[float]]:
    chance = random.Random(1)
    return {f"{number:05}": [chance.gauss(0, 1) for _ in range(dims)] for number in range(count)}


def test_search_without_numpy_finds_the_same(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = scattered(200, 8)
    config: TreeholdIndexConfig = {"dims": 8, "embed": lambda texts: [vectors[text] for text in texts], "fields": ["text"]}
    items = TreeholdStore(memory, index=config)
    items.batch([PutOp(("a",), key, {"text": key}) for key in vectors])
    expected = [(item.key, item.score) for item in items.search(("a",), query="00007", limit=20)]
    monkeypatch.setattr(_vectors, "_numpy", lambda: None)
    plain = TreeholdStore(memory, index=config)
    found = [(item.key, item.score) for item in plain.search(("a",), query="00007", limit=20)]
    assert [key for key, _ in found] == [key for key, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected])


def test_approximate_search_finds_most_of_the_nearest(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("usearch")
    monkeypatch.setattr(_vectors, "APPROXIMATE_MIN", 100)
    vectors = scattered(2000, 16)
    config: TreeholdIndexConfig = {"dims": 16, "embed": lambda texts: [vectors[text] for text in texts], "fields": ["text"]}
    exact = TreeholdStore(memory, index=config)
    near = TreeholdStore(memory, index={**config, "approximate": True})
    exact.batch([PutOp(("a",), key, {"text": key, "even": int(key) % 2 == 0}) for key in vectors])

    def recall(**options: Any) -> float:
        hits = total = 0
        for query in list(vectors)[:20]:
            expected = set(places(exact.search(("a",), query=query, limit=10, **options)))
            found = places(near.search(("a",), query=query, limit=10, **options))
            assert len(found) == len(expected)
            hits, total = hits + len(expected & set(found)), total + len(expected)
        return hits / total

    assert recall() > 0.9
    assert recall(filter={"even": True}) > 0.9
    # Rows that change or go are found as they are now.
    exact.batch([PutOp(("a",), key, None) for key in list(vectors)[:1000]])
    exact.put(("a",), "00000", {"text": "01999", "even": True})
    assert places(near.search(("a",), query="01999", limit=2)) == ["00000", "01999"]
    assert recall() > 0.9
    assert near._tables is not None and near._tables.table(("a",))._graph is not None


def test_query_without_an_index_lists_items(items: TreeholdStore) -> None:
    items.put(("a",), "k", {"text": "abc"})
    assert [(item.key, item.score) for item in items.search(("a",), query="abc")] == [("k", None)]
    assert items.embeddings is None
