"""Moving items."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from databases import KILLED, contents, their_store
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.store.memory import InMemoryStore

from treehold import Batch, Conflict, Corrupt, InvalidArgument, NotFound, Store, Unavailable, migrate
from treehold.langgraph import TreeholdStore

VALUES: list[dict[str, Any]] = [
    {"content": "line\r\n", "encoding": "utf-8", "created_at": "2026-01-01T00:00:00+00:00"},
    {"content": ["old", "format"]},
    {"n": [1, 1.5, True, None, 2**53 + 1], "deep": {"a": {"b": ["ü", "\u2028"]}}},
    {},
]


def fill(place: str, count: int = 250) -> None:
    with their_store(place) as store:
        for number in range(count):
            space = (("users", f"u{number % 7}", "files") if number % 2 else ("notes",))
            store.put(space, f"/k {number}.md", VALUES[number % 4] | {"number": number})
        store.put(("users",), "likes_%", {"a": 1})
        store.put(("passing",), "by", {"a": 2}, ttl=60)


def ours() -> TreeholdStore:
    return TreeholdStore(Store.open("memory:"))


def test_copy_moves_every_item_and_leaves_the_source_unchanged(place: str) -> None:
    fill(place)
    before = contents(place)
    seen: list[migrate.Progress] = []
    with migrate.open_store(place) as source, ours() as target:
        report = migrate.copy_store(source, target, progress=seen.append)
        assert (report.read, report.written, report.present, report.verified) == (252, 252, 0, 252)
        assert report.is_good, report.examples
        with their_store(place) as store:
            for number in range(0, 250, 9):
                space = ("users", f"u{number % 7}", "files") if number % 2 else ("notes",)
                one, other = store.get(space, f"/k {number}.md"), target.get(space, f"/k {number}.md")
                assert one is not None and other is not None and one.value == other.value
        passing = target.get(("passing",), "by", refresh_ttl=False)
        assert passing is not None and getattr(passing, "expires_at", None) is not None
    assert contents(place) == before
    assert [progress.step for progress in seen if progress.records == 252] == ["copy", "verify"]


def test_copy_into_used_namespace_is_refused_and_resume_moves_the_rest_only(place: str) -> None:
    fill(place, 40)
    with migrate.open_store(place) as source, ours() as target:
        assert migrate.copy_store(source, target).written == 42
        with pytest.raises(Conflict, match="holds items already"):
            migrate.copy_store(source, target)
        target.delete(("notes",), "/k 8.md")
        report = migrate.copy_store(source, target, resume=True)
        assert (report.written, report.present, report.is_good) == (1, 41, True)
        target.put(("notes",), "/k 8.md", {"mine": True})
        with pytest.raises(Conflict, match="the values differ"):
            migrate.copy_store(source, target, resume=True)
        mine = target.get(("notes",), "/k 8.md")
        assert mine is not None and mine.value == {"mine": True}


def test_verify_names_what_is_changed_missing_and_extra(place: str) -> None:
    fill(place, 10)
    with migrate.open_store(place) as source, ours() as target:
        migrate.copy_store(source, target)
        target.put(("notes",), "/k 0.md", VALUES[0] | {"number": False})
        target.delete(("notes",), "/k 2.md")
        target.put(("notes",), "new", {})
        report = migrate.verify_store(source, target)
        assert sorted(example.reason for example in report.examples) == [
            "missing in the source",
            "missing in the target",
            "the values differ",
        ]
        assert report.differences == 3


def test_dry_run_writes_nothing_and_names_what_cannot_move(place: str) -> None:
    fill(place, 10)
    with their_store(place) as store:
        store.put(tuple(f"n{depth}" for depth in range(20)), "deep", {})
    with migrate.open_store(place) as source, ours() as target:
        report = migrate.copy_store(source, target, dry_run=True)
        assert (report.read, report.written, report.differences) == (13, 12, 1)
        assert "labels" in report.examples[0].reason
        assert target.store.namespaces() == ([], False)
        with pytest.raises(InvalidArgument, match="labels"):
            migrate.copy_store(source, target)


def test_copy_out_returns_what_came_in(place: str, tmp_path: Path) -> None:
    fill(place, 60)
    back = str(tmp_path / "back.db")
    with ours() as middle:
        with migrate.open_store(place) as source:
            migrate.copy_store(source, middle)
        with migrate.open_store(back, writable=True) as target:
            report = migrate.copy_store(middle, target)
            assert report.is_good and report.written == 62, report.examples
            with pytest.raises(Conflict):
                migrate.copy_store(middle, target)
            assert migrate.copy_store(middle, target, resume=True).present == 62
        memory = InMemoryStore()
        with pytest.raises(InvalidArgument, match="time to live"):
            migrate.copy_store(middle, memory)
    with their_store(place) as one, their_store(back) as other:
        for found in one.search((), limit=100):
            same = other.get(found.namespace, found.key)
            assert same is not None and same.value == found.value


def test_expired_items_stay_behind(tmp_path: Path) -> None:
    place = str(tmp_path / "theirs.db")
    fill(place, 3)
    with sqlite3.connect(place) as connection:
        connection.execute("UPDATE store SET expires_at = '2001-01-01 00:00:00' WHERE prefix = 'passing'")
    with migrate.open_store(place) as source, ours() as target:
        report = migrate.copy_store(source, target)
        assert (report.expired, report.written, report.is_good) == (1, 4, True)


def test_items_updated_last_stay_last(tmp_path: Path) -> None:
    place = str(tmp_path / "theirs.db")
    fill(place, 6)
    with sqlite3.connect(place) as connection:
        connection.execute("UPDATE store SET updated_at = '2001-01-01 00:00:00' WHERE key = '/k 4.md'")
        connection.execute("UPDATE store SET updated_at = '2099-01-01 00:00:00' WHERE key = '/k 0.md'")
    with migrate.open_store(place) as source, TreeholdStore(Store.open("memory:"), order="updated_at") as target:
        migrate.copy_store(source, target, page=1)
        assert [item.key for item in target.search(("notes",))] == ["/k 0.md", "/k 2.md", "/k 4.md"]


def test_vectors_are_made_anew_and_lives_end_when_they_did(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    place = str(tmp_path / "theirs.db")
    fill(place, 4)

    def embed(texts: Any) -> list[list[float]]:
        return [[float(len(text)), 1.0] for text in texts]

    with sqlite3.connect(place) as connection:
        connection.execute("UPDATE store SET expires_at = datetime('now', '+30 minutes') WHERE prefix = 'passing'")
    with TreeholdStore(Store.open("memory:"), index={"dims": 2, "embed": embed}) as target:
        with migrate.open_store(place) as source:
            assert migrate.copy_store(source, target).is_good
        assert len(target.search(("notes",), query="x")) == 2


def test_pages_hold_few_bytes_and_few_items(tmp_path: Path) -> None:
    place = str(tmp_path / "theirs.db")
    with their_store(place) as store:
        for number in range(9):
            store.put(("large",), str(number), {"content": "x" * (3 << 20)})
        for number in range(30):
            store.put(("small",), str(number), {})
    with migrate.open_store(place) as source, ours() as target:
        counts: list[int] = []
        migrate.copy_store(source, target, page=7, verify=False, progress=lambda at: counts.append(at.records))
        pages = [count - before for before, count in zip([0, *counts], counts, strict=False)]
        assert sum(pages) == 39 and max(pages) == 7
        assert pages[:3] == [3, 3, 3], "three of the large items are over 8 MiB"


def test_store_objects_are_sides_too() -> None:
    from langgraph.store.sqlite import SqliteStore  # pyright: ignore[reportMissingTypeStubs]

    with SqliteStore.from_conn_string(":memory:") as store, ours() as middle:
        memory = InMemoryStore()
        memory.put(("a",), "k", {"n": 1})
        assert migrate.copy_store(memory, middle).is_good
        assert migrate.copy_store(middle, store).is_good
        found = store.get(("a",), "k")
        assert found is not None and found.value == {"n": 1}
        with ours() as other:
            assert migrate.copy_store(store, other).is_good and migrate.verify_store(store, other).verified == 1


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.tuples(
            st.lists(st.text("ab_%*c", min_size=1, max_size=3), min_size=1, max_size=4).map(tuple),
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8),
        ),
        st.dictionaries(
            st.text("abé", max_size=3),
            st.recursive(
                st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
                | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("xy", max_size=2), inner, max_size=3),
                max_leaves=5,
            ),
            max_size=3,
        ),
        max_size=12,
    ),
    st.integers(1, 5),
)
def test_any_items_survive_the_way_in_and_out(
    items: dict[tuple[tuple[str, ...], str], dict[str, Any]], page: int
) -> None:
    source, back = InMemoryStore(), InMemoryStore()
    for (space, key), value in items.items():
        source.put(space, key, value)
    with ours() as middle:
        assert migrate.copy_store(source, middle, page=page).is_good
        assert migrate.copy_store(middle, back, page=page).is_good
    assert {(item.namespace, item.key): item.value for item in back.search((), limit=100)} == items


@pytest.mark.parametrize("after", [20, 60])
def test_killed_move_goes_on_where_it_was(place: str, tmp_path: Path, after: int) -> None:
    fill(place, 90)
    url = f"sqlite:{tmp_path / 'ours.db'}"
    killed = subprocess.run([sys.executable, "-c", KILLED, "store", place, url, str(after)], timeout=120)
    assert killed.returncode == -signal.SIGKILL
    with migrate.open_store(place) as source, TreeholdStore.from_conn_string(url) as target:
        report = migrate.copy_store(source, target, resume=True)
        assert report.is_good and report.present == after and report.written == 92 - after


def test_bad_input_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database" * 1000)
    sqlite3.connect(tmp_path / "empty.db").close()
    (tmp_path / "empty.db").touch()
    with ours() as target:
        for place, error in [("gone.db", NotFound), ("text.db", Corrupt), ("empty.db", NotFound)]:
            with pytest.raises(error), migrate.open_store(str(tmp_path / place)) as source:
                migrate.copy_store(source, target)
        for bad in [":memory:", "http://host", "sqlite:"]:
            with pytest.raises(InvalidArgument), migrate.open_store(bad):
                pass
        with pytest.raises(Unavailable), migrate.open_store("postgres://nobody@127.0.0.1:1/none"):
            pass
        with pytest.raises(InvalidArgument, match="one side"):
            migrate.copy_store(target, ours())
        with pytest.raises(InvalidArgument, match="one side"):
            migrate.copy_store(InMemoryStore(), InMemoryStore())
        for page in (0, True, 1.5, 10_001):
            with pytest.raises(InvalidArgument, match="page"):
                migrate.copy_store(InMemoryStore(), target, page=page)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="not a store"):
            migrate.copy_store("memories.db", target)  # type: ignore[arg-type]
        source = InMemoryStore()
        source.put(("a",), "k", {"v": object()})
        with pytest.raises(InvalidArgument, match="JSON"):
            migrate.copy_store(source, target)
        assert not target.search(())


def test_database_opened_for_reading_cannot_be_a_target(tmp_path: Path) -> None:
    place = str(tmp_path / "theirs.db")
    fill(place, 1)
    with migrate.open_store(place) as theirs, ours() as store, pytest.raises(InvalidArgument, match="writable"):
        migrate.copy_store(store, theirs)


@pytest.mark.parametrize("root", [("acme",), ("acme", "ada"), ("acme", "", "handbook")])
def test_rows_of_the_program_beneath_the_root_are_no_items(root: tuple[str, ...]) -> None:
    with Store.open("memory:") as rows:
        items = TreeholdStore(rows, namespace=root)
        partition = (*root, "ada")[:2]
        elsewhere = TreeholdStore(rows, namespace=("other", "x"))
        elsewhere.put(("a",), "k", {"n": 0})
        row = rows.get(("other", "x", "a"), "k")
        assert row is not None
        # They look like items.
        rows.commit(Batch().put((*partition, "_treehold", "history", "memories"), "k", row.body, meta=row.meta))
        if len(root) == 1:
            rows.commit(Batch().put(("acme", "", "thread"), "k", row.body, meta=row.meta))
        theirs = InMemoryStore()
        report = migrate.copy_store(theirs, items)
        assert (report.read, report.differences) == (0, 0)
        items.put(("ada", "notes"), "k", {"n": 1})
        report = migrate.copy_store(items, theirs)
        assert (report.read, report.verified, report.differences) == (1, 1, 0)
        assert migrate.verify_store(theirs, items).is_good
        with pytest.raises(Conflict):
            migrate.copy_store(InMemoryStore(), items)
