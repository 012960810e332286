"""Rows: reads, batches, conditions, watches and JSON values."""

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

import treehold
from treehold import Batch, Store

NS = ("acme", "a/b")


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = "memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'rows.db'}"
    with Store.open(url) as opened:
        yield opened


def test_put_row_is_read_with_meta_version_and_times(store: Store) -> None:
    before = datetime.now(timezone.utc) - timedelta(seconds=5)
    [version] = store.commit(Batch().put(NS, "k", b"body", meta="meta", ttl_seconds=60))
    row = store.get(NS, "k")
    assert row is not None
    assert (row.key, row.body, row.meta, row.version) == ("k", b"body", b"meta", version)
    assert before < row.created_at == row.updated_at
    assert row.expires_at is not None and row.expires_at > row.created_at
    assert row.created_at == datetime.fromtimestamp(row.created_at_us / 1e6, timezone.utc)
    assert store.get(NS, "other") is None


@pytest.mark.parametrize(
    ("seconds", "fault"),
    [
        (-1, "too short: the shortest duration is 0 seconds"),
        (timedelta(seconds=-1), "too short: the shortest duration is 0 seconds"),
        (1e300, "too long: the longest duration is 18446744073709551615 seconds"),
        (float("inf"), "too long: the longest duration is 18446744073709551615 seconds"),
        (float("nan"), "no duration in seconds"),
    ],
)
def test_duration_out_of_bounds_is_refused_with_its_bound(seconds: float | timedelta, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Batch().put(NS, "k", b"body", ttl_seconds=seconds)
    with pytest.raises(ValueError, match=fault):
        Batch().touch(NS, "k", seconds)


def test_get_many_keeps_order_of_keys_and_marks_absent_ones(store: Store) -> None:
    batch = Batch()
    for number in range(5_000):
        batch.put(NS, f"{number:04}", str(number))
    store.commit(batch)
    keys = [f"{number:04}" for number in reversed(range(5_000))]
    rows = store.get_many(NS, [*keys, "none"])
    assert [row.key for row in rows if row is not None] == keys
    assert rows[-1] is None


def test_scan_pages_and_groups_cover_every_key_once(store: Store) -> None:
    store.commit(Batch().put(NS, "a/1", "x").put(NS, "a/2", "x").put(NS, "b", "x").put(NS, "c/1", "x"))
    seen: list[str] = []
    after = None
    while True:
        page = store.scan(NS, after=after, limit=3, with_values=False)
        seen += [row.key for row in page.rows]
        after = page.next
        if after is None:
            break
    assert seen == ["a/1", "a/2", "b", "c/1"]
    grouped = store.scan(NS, delimiter="/")
    assert ([row.key for row in grouped.rows], grouped.groups) == (["b"], ["a/", "c/"])
    assert [row.key for row in store.scan(NS, prefix="a/").rows] == ["a/1", "a/2"]


def test_condition_that_fails_names_its_index_and_what_was_found(store: Store) -> None:
    [version] = store.commit(Batch().put(NS, "k", "1"))
    with pytest.raises(treehold.Conflict) as caught:
        store.commit(Batch().require(NS, "k", version).require(NS, "k", None).put(NS, "k", "2"))
    assert (caught.value.change, caught.value.current_version, caught.value.code) == (1, version, "conflict")
    with pytest.raises(treehold.Conflict):
        store.commit(Batch().require(NS, "none", True).put(NS, "k", "2"))
    with pytest.raises(treehold.Conflict):
        store.commit(Batch().require_none_beneath(NS, "").put(NS, "k", "2"))
    with pytest.raises(treehold.Conflict):
        store.commit(Batch().require_none_beneath_since(NS, "", version - 1).put(NS, "k", "2"))
    row = store.get(NS, "k")
    assert row is not None and row.body == b"1"
    store.commit(Batch().require_none_beneath_since(NS, "", store.current_version(NS)).delete_prefix(NS))
    assert store.get(NS, "k") is None


def test_appends_list_in_commit_order_and_created_at_is_kept(store: Store) -> None:
    made = datetime(2001, 2, 3, 4, 5, 6, 789, tzinfo=timezone.utc)
    store.commit(Batch().append("acme/ada/log", "1").append("acme/ada/log", "2").put("acme/ada/log2", "k", "x", created_at=made))
    assert [row.body for row in store.scan("acme/ada/log").rows] == [b"1", b"2"]
    row = store.get("acme/ada/log2", "k")
    assert row is not None and row.created_at == made


def test_namespaces_are_tuples_with_unescaped_components(store: Store) -> None:
    store.commit(Batch().put(NS, "k", "x"))
    store.commit(Batch().put("other", "k", "x"))
    assert store.namespaces() == ([NS, ("other",)], False)
    assert store.namespaces(prefix=("acme",)) == ([NS], False)
    assert store.namespaces(limit=1) == ([NS], True)


def test_batch_over_two_partitions_is_refused(store: Store) -> None:
    for batch in (Batch().put(NS, "k", "x").put("other", "k", "x"), Batch().require("other", "k", None).put(NS, "k", "x")):
        with pytest.raises(treehold.Unsupported, match="spans the partitions"):
            store.commit(batch)
    assert store.namespaces() == ([], False)


def test_partition_of_one_component_has_an_empty_second_component(store: Store) -> None:
    shared = ("acme", "", "ada", "notes")
    store.commit(Batch().put(shared, "k", "shared").put("acme//policies", "k", "x"))
    store.commit(Batch().put(("acme", "ada", "notes"), "k", "own"))
    listed = [("acme", "", "ada", "notes"), ("acme", "", "policies"), ("acme", "ada", "notes")]
    assert store.namespaces(prefix=("acme",)) == (listed, False)
    assert store.namespaces(prefix=("acme", "ada")) == (listed[2:], False)
    assert store.namespaces(after=shared) == (listed[1:], False)
    found = [store.get(namespace, "k") for namespace in ("acme//ada/notes", "acme/ada/notes")]
    assert [row.body for row in found if row is not None] == [b"shared", b"own"]
    for bad in (("", "a"), ("a", ""), ("a", "", ""), ("a", "b", "", "c")):
        with pytest.raises(treehold.InvalidArgument):
            store.get(bad, "k")


async def test_watch_reports_commit_of_another_task(store: Store) -> None:
    watch = await store.awatch(NS)
    assert not watch.changed(0)
    waiting = asyncio.ensure_future(watch.achanged(30))
    await asyncio.sleep(0)
    await store.acommit(Batch().put(NS, "k", "x"))
    assert await waiting


def test_closed_store_refuses_calls_and_trees_keep_it_open(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:{tmp_path / 'a.db'}")
    tree = treehold.StoreBackend(store, "files")
    store.close()
    with pytest.raises(treehold.InvalidArgument, match="closed"):
        store.get(NS, "k")
    tree.write("/a", "kept")
    del tree
    with Store.open(f"sqlite:{tmp_path / 'a.db'}", create=False) as again:
        assert treehold.StoreBackend(again, "files").read_text("/a") == "kept"


def test_unknown_url_and_missing_file_are_typed_errors(tmp_path: Path) -> None:
    with pytest.raises(treehold.InvalidArgument):
        Store.open("nonsense:x")
    with pytest.raises(FileNotFoundError) as caught:
        Store.open(f"sqlite:{tmp_path / 'none.db'}", create=False)
    assert isinstance(caught.value, treehold.NotFound)


def test_json_values_are_searched_by_filter_page_by_page(store: Store) -> None:
    items = store.json()
    for number in range(10):
        items.put(("tasks", str(number % 2)), f"{number}", {"number": number, "odd": bool(number % 2), "nested": [None, 1.5, "é"]})
    item = items.get(("tasks", "1"), "3")
    assert item is not None and item.value == {"number": 3, "odd": True, "nested": [None, 1.5, "é"]}
    found: list[int] = []
    after = None
    while True:
        page = items.search("tasks", filter={"number": {"$gte": 4}}, beneath=True, limit=2, after=after)
        found += [item.value["number"] for item in page.items]
        after = page.next
        if after is None:
            break
    assert found == [4, 6, 8, 5, 7, 9]
    assert items.namespaces(prefix=["tasks"], suffix=["1"]) == ([("tasks", "1")], None)


def test_json_put_with_condition_is_refused_when_it_does_not_hold(store: Store) -> None:
    items = store.json()
    version = items.put("a", "k", 1, if_version=None)
    with pytest.raises(treehold.Conflict):
        items.put("a", "k", 2, if_version=None)
    assert items.put("a", "k", 2, if_version=version) > version
    with pytest.raises(treehold.Conflict):
        items.delete("a", "k", if_version=version)
    items.delete("a", "k")
    assert items.get("a", "k") is None
    with pytest.raises(TypeError):
        items.put("a", "k", object())
    with pytest.raises(treehold.InvalidArgument):
        items.search("a", filter={"x": {"$near": 1}})


def test_rows_of_json_are_found_without_decoding_them(store: Store) -> None:
    items = store.json(ttl_seconds=3600)
    for number in range(5):
        items.put(("tasks", "a"), f"{number}", {"number": number})
    page = items.search_rows("tasks", filter=treehold.JsonFilter({"number": {"$gt": 1}}), beneath=True, limit=2)
    assert [(namespace, row.key, row.body) for namespace, row in page.rows] == [
        (("tasks", "a"), "2", b'{"number":2}'),
        (("tasks", "a"), "3", b'{"number":3}'),
    ]
    assert page.next == (("tasks", "a"), "3")
    rest = items.search_rows("tasks", filter={"number": {"$gt": 1}}, beneath=True, after=page.next)
    assert [row.key for _, row in rest.rows] == ["4"] and rest.next is None
    some = treehold.JsonFilter({"a": 1})
    assert some.matches(b'{"a": 1, "b": 2}') and not some.matches(b'{"a": 2}') and not some.matches(b"no JSON")
