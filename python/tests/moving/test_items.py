"""The vectors of items, which earlier versions stored in a partition of their own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from failing import Counting, Failing, Stopped, archived, contents, relocate, versions
from langgraph.store.base import PutOp, SearchOp

from treehold import Batch, Conflict, InvalidArgument, Store
from treehold.langgraph import InvalidNamespace, TreeholdIndexConfig, TreeholdStore
from treehold.langgraph._keys import items_of, vectors_of

ROOTS = [("langgraph", "store"), ("acme",), ("acme", "ada"), ("acme", "ada", "memories")]

LABELS: list[tuple[str, ...]] = [("docs",), ("docs", "drafts"), ("bob",)]


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[float(text.count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]


INDEX: TreeholdIndexConfig = {"dims": 26, "embed": embed, "fields": ["text"]}


def refuse(texts: Sequence[str]) -> list[list[float]]:
    """Embeds queries, and nothing that was embedded before."""
    assert texts == ["bbb"]
    return embed(texts)


def items_at(store: Any, root: tuple[str, ...]) -> TreeholdStore:
    return TreeholdStore(store, namespace=root, index={**INDEX, "embed": refuse})


def fill(store: Store, root: tuple[str, ...]) -> None:
    """Stores items as an earlier version did."""
    items = TreeholdStore(store, namespace=root, index=INDEX)
    for labels in LABELS:
        for number in range(3):
            items.put(labels, f"{number}", {"text": "b" * number + "c"}, ttl=60 if number else None)
    former = (*root[:-1], root[-1] + "~vectors")
    for labels in LABELS:
        relocate(store, vectors_of((*root, *labels)), (*former, *labels))
    # The vectors of an item that expired or was removed by other means.
    store.commit(Batch().delete((*root, "docs"), "0"))
    assert store.namespaces(prefix=former)[0]


def check(store: Store, root: tuple[str, ...], items: TreeholdStore) -> None:
    found = items.search((), query="bbb", limit=100)
    assert {(item.namespace, item.key) for item in found if item.score is not None} == {
        (labels, key) for labels in LABELS for key in "012" if (labels, key) != (("docs",), "0")
    }
    assert found[0].key == "2" and cast("float", found[0].score) > 0.8
    assert [item.key for item in items.search(("docs", "drafts"), query="bbb", limit=1)] == ["2"]
    assert store.namespaces(prefix=(*root[:-1], root[-1] + "~vectors")) == ([], False)
    rows = {key: row for key, row in contents(store).items() if "item-vectors" in key[0]}
    assert len(rows) == 8
    for space, key in rows:
        items_space = items_of(space)
        assert items_space is not None
        item, vectors = store.get(items_space, key), store.get(space, key)
        assert item is not None and vectors is not None
        assert (item.expires_at is None) == (vectors.expires_at is None)


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("is_async", [False, True])
async def test_vectors_of_earlier_versions_are_found(store: Store, root: tuple[str, ...], is_async: bool) -> None:
    fill(store, root)
    items = items_at(store, root)
    if is_async:
        await items.asearch(("docs",), query="bbb")
    check(store, root, items)
    before = contents(store), versions(store)
    check(store, root, items_at(store, root))
    assert (contents(store), versions(store)) == before


@pytest.mark.parametrize("root", [("langgraph", "store"), ("acme",)])
def test_move_of_vectors_that_stops_at_any_commit_continues(store: Store, root: tuple[str, ...], moment: str) -> None:
    for commits in count():
        for space in store.namespaces()[0]:
            store.commit(Batch().delete_prefix(space))
        fill(store, root)
        try:
            items_at(Failing(store, commits, moment), root).search((), query="bbb")
        except Stopped:
            check(store, root, items_at(store, root))
        else:
            assert commits >= 6
            return


def test_first_use_asks_once_whether_vectors_are_to_be_moved(store: Store) -> None:
    counting: Any = Counting(store)
    items = TreeholdStore(counting)
    for _ in range(2):
        items.put(("a",), "k", {"n": 1})
        items.get(("a",), "k")
    assert counting.calls == ["namespaces", "commit", "get_many", "commit", "get_many"]


def test_vectors_stay_with_the_item_that_was_put_first_at_the_new_place(store: Store) -> None:
    fill(store, ("langgraph", "store"))
    items = TreeholdStore(store, index=INDEX)
    items.put(("docs",), "2", {"text": "zzz"})
    found = items.search(("docs",), query="zzz", limit=1)
    assert found[0].key == "2" and cast("float", found[0].score) > 0.99


def test_archive_has_the_vectors_of_items(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'rows.db'}"
    with Store.open(url) as store:
        fill(store, ("langgraph", "store"))
        check(store, ("langgraph", "store"), items_at(store, ("langgraph", "store")))
    with Store.open(archived(tmp_path, url)) as store:
        check(store, ("langgraph", "store"), items_at(store, ("langgraph", "store")))


# Beneath a root of one component, items are in several partitions.


def test_items_and_their_vectors_are_in_one_partition(store: Store) -> None:
    items = TreeholdStore(store, namespace=("acme",), index=INDEX)
    puts = [PutOp(labels, "k", {"text": "b"}) for labels in ((), ("ada",), ("ada", "notes"), ("bob", "notes"), ("ada", "drafts"))]
    items.batch(puts)
    spaces = {space for space, _ in contents(store)}
    assert spaces == {(*("acme", *op.namespace),) for op in puts} | {vectors_of(("acme", *op.namespace)) for op in puts}
    assert [item.namespace for item in items.search((), query="b")] == [(), ("ada",), ("ada", "drafts"), ("ada", "notes"), ("bob", "notes")]
    assert [item.namespace for item in items.search(("ada",), query="b")] == [("ada",), ("ada", "drafts"), ("ada", "notes")]
    assert items.list_namespaces() == [(), ("ada",), ("ada", "drafts"), ("ada", "notes"), ("bob", "notes")]
    items.batch([PutOp(op.namespace, "k", None) for op in puts])
    assert contents(store) == {}


def test_puts_are_one_commit_for_each_partition_in_the_order_of_their_first(store: Store) -> None:
    puts = [PutOp(labels, "k", {"n": 1}) for labels in (("bob", "x"), ("ada", "x"), ("bob", "y"))]
    counting: Any = Counting(store)
    TreeholdStore(counting, namespace=("acme",)).batch(puts)
    assert counting.calls == ["namespaces", "commit", "commit"]
    counting.calls.clear()
    TreeholdStore(counting, namespace=("acme", "all")).batch(puts)
    assert counting.calls == ["namespaces", "commit"]
    # A later commit that fails leaves the first.
    failing: Any = Failing(store, 1, "before")
    with pytest.raises(Stopped):
        TreeholdStore(failing, namespace=("other",)).batch(puts)
    assert TreeholdStore(store, namespace=("other",)).list_namespaces() == [("bob", "x"), ("bob", "y")]


async def test_conditional_puts_and_refreshes_work_in_every_partition(store: Store) -> None:
    items = TreeholdStore(store, namespace=("acme",), index=INDEX, ttl={"default_ttl": 10})
    for labels in (("ada", "x"), ("bob", "x")):
        version = items.put_if(labels, "k", {"text": "b"}, version=None)
        with pytest.raises(Conflict):
            await items.aput_if(labels, "k", {"text": "c"}, version=None)
        assert await items.aput_if(labels, "k", {"text": "d"}, version=version) > version
        for space in (("acme", *labels), vectors_of(("acme", *labels))):
            store.commit(Batch().touch(space, "k", 60))
    assert len(items.search((), query="d")) == 2
    for labels in (("ada", "x"), ("bob", "x")):
        for space in (("acme", *labels), vectors_of(("acme", *labels))):
            row = store.get(space, "k")
            assert row is not None and row.expires_at is not None
            assert (row.expires_at - row.updated_at).total_seconds() > 300


def test_namespace_of_a_tenant_can_be_the_root(store: Store) -> None:
    items = TreeholdStore(store, namespace=("acme", "", "handbook"), index=INDEX)
    items.batch([PutOp(("a",), "k", {"text": "b"}), PutOp((), "k", {"text": "b"})])
    assert {space[:2] for space, _ in contents(store)} == {("acme", "")}
    assert [item.namespace for item in items.search((), query="b")] == [(), ("a",)]
    # Items beneath the tenant alone cannot have the empty label.
    assert TreeholdStore(store, namespace=("acme",)).batch([SearchOp(())]) == [[]]
    for bad in (("acme", ""), ("", "", "a"), ("a", "", "")):
        with pytest.raises(InvalidArgument):
            TreeholdStore(store, namespace=bad)


def test_namespace_without_room_for_one_of_vectors_is_refused_where_vectors_are_needed(store: Store) -> None:
    labels = tuple("abcdefghijklmn")
    items = TreeholdStore(store, index=INDEX)
    with pytest.raises(InvalidNamespace, match="no room"):
        items.put(labels, "k", {"text": "b"})
    items.put(labels, "k", {"text": "b"}, index=False, ttl=10)
    assert items.get(labels, "k") is not None
    items.put(labels[:-1], "k", {"text": "b"})
    assert [item.key for item in items.search((), query="b")] == ["k", "k"]
    assert [item.score for item in items.search(labels, query="b")] == [None]
    items.delete(labels, "k")
    assert items.get(labels, "k") is None


def test_vectors_without_room_are_left_once_and_removed_if_their_items_are_gone(store: Store) -> None:
    stuck, gone = tuple("abcdefghijklmn"), tuple("abcdefghijklmo")
    items = TreeholdStore(store)
    items.put(stuck, "k", {"text": "b"})
    former = ("langgraph", "store~vectors")
    for labels, key in ((stuck, "k"), (stuck, "orphan"), (gone, "orphan")):
        store.commit(Batch().put((*former, *labels), key, "vectors"))
    assert items_at(store, ("langgraph", "store")).get(stuck, "k") is not None
    left = {place for place in contents(store) if place[0][:2] == former}
    assert left == {((*former, *stuck), "k")}
    counting: Any = Counting(store)
    assert TreeholdStore(counting).get(stuck, "k") is not None
    assert counting.calls == ["namespaces", "get_many", "get_many"]
    # Others that come later, such as those of an imported archive, are looked at.
    store.commit(Batch().put((*former, *gone), "orphan", "vectors"))
    store.commit(Batch().put((*former, "a"), "orphan", "vectors"))
    assert TreeholdStore(store).get(stuck, "k") is not None
    assert {place for place in contents(store) if place[0][:2] == former} == left
    # The vectors go with the item.
    TreeholdStore(store).delete(stuck, "k")
    assert {place for place in contents(store) if place[0][:2] == former} == set()


def test_namespace_of_a_tenant_has_no_vectors_to_move(store: Store) -> None:
    counting: Any = Counting(store)
    TreeholdStore(counting, namespace=("acme", "", "handbook")).get((), "k")
    assert counting.calls == ["get_many"]
