"""The past of files: log, moments, restores and undo."""

from datetime import datetime, timedelta, timezone

import pytest

import treehold


def workspace() -> treehold.Workspace:
    store = treehold.Store.open("memory:")
    notes = treehold.StoreBackend(store, ("ada", "notes"), history=True)
    plain = treehold.StoreBackend(store, ("ada", "plain"))
    return treehold.Workspace.of({"/memories": notes, "/plain": plain}, store=store)


def test_tree_keeps_as_many_contents_as_it_was_told_to() -> None:
    store = treehold.Store.open("memory:")
    tree = treehold.StoreBackend(store, ("notes",), history=True, keep_last=2, older_than_seconds=timedelta(days=1))
    for text in ("one", "two", "three", "four"):
        tree.write("/a.md", text)
    assert [(revision["number"], revision["is_kept"]) for revision in tree.log("/a.md")] == [(4, True), (3, True), (2, True)]
    assert [tree.at(moment).read("/a.md").text() for moment in ("latest", "~1", "v2")] == ["four", "three", "two"]
    with pytest.raises(treehold.NotFound):
        tree.at("v1").read("/a.md")


def test_moment_may_be_a_time() -> None:
    tree = treehold.StoreBackend(treehold.Store.open("memory:"), ("notes",), history=True)
    written = tree.write("/a.md", "one")
    tree.delete("/a.md")
    assert written.path == "/a.md"
    before = datetime.now(timezone.utc) - timedelta(days=2)
    with pytest.raises(treehold.NotFound):
        tree.at(before).read("/a.md")
    assert tree.at(datetime.now(timezone.utc) + timedelta(days=2)).ls("/").entries == []
    with pytest.raises(treehold.InvalidArgument, match="names no version"):
        tree.at("soon")


def test_tree_without_a_history_says_so() -> None:
    tree = treehold.StoreBackend(treehold.Store.open("memory:"), ("notes",))
    tree.write("/a.md", "one")
    with pytest.raises(treehold.Unsupported):
        tree.log("/a.md")
    with pytest.raises(treehold.Unsupported):
        tree.at("~1")
    with pytest.raises(treehold.InvalidArgument, match="history=True"):
        treehold.StoreBackend(treehold.Store.open("memory:"), ("notes",), keep_last=3)


def test_session_shows_restores_and_undoes_over_all_routes() -> None:
    with workspace() as trees, trees.session(thread="t", user="ada") as session:
        for text in ("one", "two"):
            result = session.call("write_file", {"file_path": "/memories/a.md", "content": text}, call_id=f"call-{text}")
            assert not result.is_error, result.text
        session.call("write_file", {"file_path": "/plan.md", "content": "draft"})
        log = session.log("/memories/a.md")
        assert isinstance(log["revisions"], list)
        assert len(log["revisions"]) == 2
        assert log["more"] is False
        assert session.as_of("~1").read("/memories/a.md").text() == "one"
        with pytest.raises(treehold.Unsupported):
            session.as_of("~1").ls("/plain")
        assert session.undo()["author"] is not None
        assert not session.exists("/plan.md")
        session.undo()
        assert session.read("/memories/a.md").text() == "one"
        changed = session.restore_files(["/memories/a.md"], "v2")
        assert [change.path for change in changed] == ["/memories/a.md"]
        assert session.read("/memories/a.md").text() == "two"
        session.undo(of="user")
        assert session.read("/memories/a.md").text() == "one"
        with pytest.raises(treehold.InvalidArgument):
            session.undo(of="nobody")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_asynchronous_twins_do_the_same() -> None:
    trees = workspace()
    session = await trees.asession(thread="t", user="ada")
    await session.acall("write_file", {"file_path": "/memories/a.md", "content": "one"})
    await session.acall("write_file", {"file_path": "/memories/a.md", "content": "two"})
    assert (await (await session.aas_of("~1")).aread("/memories/a.md")).text() == "one"
    assert len((await session.alog("/memories/a.md", limit=1))["revisions"]) == 1  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await session.aundo()
    assert (await session.aread("/memories/a.md")).text() == "one"
    await session.arestore_files(["/memories/a.md"], "v2")
    assert (await session.aread("/memories/a.md")).text() == "two"
    await session.aclose()
