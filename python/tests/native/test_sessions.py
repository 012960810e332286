"""Workspaces and sessions: tool calls, checkpoints, merges, memory and the feed."""

import asyncio
from pathlib import Path

import pytest

import treehold
from treehold import Batch, Store, Workspace


def workspace(directory: Path) -> tuple[Store, Workspace]:
    store = Store.open(f"sqlite:{directory / 'agent.db'}")
    memories = treehold.StoreBackend(store, "ada/memories")
    return store, Workspace.of({"/memories": memories}, store=store, audit=True, events=True, memory=["/memories/AGENTS.md"])


def test_state_of_a_closed_session_is_found_by_the_next_one(tmp_path: Path) -> None:
    _, space = workspace(tmp_path)
    with space.session(thread="monday") as session:
        assert session.scope["thread"] == "monday"
        session.write("/plan.md", "1. ask\n")
        session.write("/memories/AGENTS.md", "The colour is red.\n")
    with pytest.raises(treehold.InvalidArgument, match="closed"):
        session.checkpoints()
    assert space.session(thread="monday").read_text("/plan.md") == "1. ask\n"
    friday = space.session(thread="friday")
    assert not friday.exists("/plan.md") and "red" in friday.memory_prompt()
    assert space.threads() == ["monday"]
    space.delete_thread("monday")
    assert space.threads() == []


def test_configuration_text_opens_the_tree_that_it_describes(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    text = f'[stores.main]\nurl = "memory:"\n[routes."/"]\ntype = "state"\n[routes."/workspace"]\ntype = "filesystem"\nroot = "{tmp_path / "work"}"\n'
    with Workspace.open(config=text + '[threads]\nstore = "main"\n[events]\nstore = "main"\n', data=tmp_path) as space:
        with space.session(thread="t", user="ada") as session:
            session.write("/workspace/a", "x")
        assert (tmp_path / "work" / "a").read_text() == "x"
    with pytest.raises(treehold.InvalidArgument):
        Workspace.open(config="[routes", data=tmp_path)
    with pytest.raises(treehold.InvalidArgument):
        Workspace.open(config=text, path=tmp_path / "x.toml")


def test_tool_calls_answer_text_data_and_errors(tmp_path: Path) -> None:
    _, space = workspace(tmp_path)
    session = space.session(thread="t")
    written = session.call("write_file", {"path": "/a.md", "content": "needle\n"}, call_id="call-1", actor="ada")
    assert not written.is_error and written.error is None and written.unsaved is None
    found = session.call("grep", {"pattern": "needle"})
    assert found.text.strip() == "/a.md:1:needle" and found.data is not None
    failed = session.call("read_file", {"path": "/none"})
    assert failed.is_error and failed.code == "not_found" and isinstance(failed.error, treehold.NotFound)
    assert session.call("nonsense").code == "invalid_argument"
    assert session.checkpoints()[0].metadata["tool_call_id"] == "call-1"
    viewed = session.call("memory", {"command": "view", "path": "/memories"}, set="memory")
    assert not viewed.is_error


def test_question_names_what_a_call_destroys_and_consent_allows_it(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    text = f'[stores.main]\nurl = "memory:"\n[threads]\nstore = "main"\n[events]\nstore = "main"\n[routes."/workspace"]\ntype = "filesystem"\nroot = "{tmp_path / "work"}"\n'
    session = Workspace.open(config=text, data=tmp_path / "data").session(thread="t")
    session.write_many({"/d/a": "x", "/d/b": "x"})
    removal = {"path": "/d", "recursive": True}
    assert session.question("delete", removal) == "Remove `/d` and the 2 entries in it?"
    assert session.question("write_file", {"path": "/d/a", "content": "y"}) is None
    assert session.question("delete", {"path": "/none"}) is None
    assert not session.call("delete", removal, consented=True).is_error
    hook = {"path": "/workspace/.envrc", "content": "echo hi"}
    question = session.question("write_file", hook)
    assert question is not None and "/workspace/.envrc" in question
    assert session.call("write_file", hook).code == "permission_denied"
    assert not session.call("write_file", hook, consented=True).is_error
    assert (tmp_path / "work" / ".envrc").read_text() == "echo hi"


def test_schemas_have_the_form_of_each_vendor(tmp_path: Path) -> None:
    anthropic, openai, mcp = treehold.tools("anthropic"), treehold.tools("openai"), treehold.tools("mcp")
    assert len(anthropic) == len(openai) == len(mcp) == 10
    assert "input_schema" in anthropic[0] and openai[0]["type"] == "function" and "inputSchema" in mcp[0]
    assert treehold.tools("anthropic", set="memory") == [{"type": "memory_20250818", "name": "memory"}]
    _, space = workspace(tmp_path)
    assert space.tools() == space.session(thread="t").tools("openai") == openai
    with pytest.raises(treehold.InvalidArgument):
        treehold.tools("yaml")  # type: ignore[arg-type]


def test_checkpoints_restore_fork_diff_and_history(tmp_path: Path) -> None:
    _, space = workspace(tmp_path)
    session = space.session(thread="main")
    session.write("/plan.md", "1\n")
    first = session.checkpoint("first", metadata={"step": "1"})
    session.write("/plan.md", "2\n")
    second = session.checkpoint("second")
    assert second.parent_id == first.id and second.created_at >= first.created_at
    assert [found.label for found in session.checkpoints()] == ["second", "first"]
    assert [found.id for found in session.checkpoints(metadata={"step": "1"})] == [first.id]
    assert session.checkpoints(before=second.id, limit=5)[0].id == first.id
    assert session.history(first.id).read_text("/plan.md") == "1\n"
    with pytest.raises(treehold.ReadOnly):
        session.history(first.id).write("/plan.md", "x")
    assert session.diff(first.id, second.id)["paths"][0]["path"] == "/plan.md"
    session.restore(first.id, label="back")
    assert session.read_text("/plan.md") == "1\n"
    forked = session.fork("try", at=second.id)
    assert forked.parent_thread == "main" and space.session(thread="try").read_text("/plan.md") == "2\n"
    with pytest.raises(treehold.InvalidArgument):
        session.history("nonsense")
    with pytest.raises(treehold.AlreadyExists):
        session.fork("try")


def test_merge_shows_conflicts_and_takes_resolutions(tmp_path: Path) -> None:
    _, space = workspace(tmp_path)
    main = space.session(thread="main")
    main.write("/a.md", "one\ntwo\n")
    main.save()
    main.fork("other")
    other = space.session(thread="other")
    other.write("/a.md", "one\nTWO\n")
    other.write("/b.md", "new\n")
    other.save()
    main.write("/a.md", "one\n2\n")
    main.save()
    outcome = main.merge("other")
    assert outcome["status"] == "conflict" and outcome["conflicts"][0]["path"] == "/a.md"
    assert not main.exists("/b.md")
    assert main.merge("other", dry_run=True, strategy="theirs")["status"] == "merged" and not main.exists("/b.md")
    merged = main.merge("other", resolutions={"/a.md": "both\n"}, label="merged")
    assert merged["status"] == "merged" and main.read_text("/a.md") == "both\n" and main.read_text("/b.md") == "new\n"
    newest = main.checkpoints(limit=1)[0]
    assert newest.label == "merged" and newest.merged is not None and newest.merged[0] == "other"


def test_rows_commit_together_with_a_checkpoint(tmp_path: Path) -> None:
    _, space = workspace(tmp_path)
    session = space.session(thread="t")
    session.write("/a", "x")
    app = (*session.partition, "app")
    session.checkpoint("with rows", batch=Batch().put(app, "k", "row"))
    row = session.store.get(app, "k")
    assert row is not None and row.body == b"row"
    with pytest.raises(treehold.InvalidArgument):
        session.checkpoint(batch=Batch().require(app, "k", None).put(app, "k", "x"))


def test_rows_of_another_partition_are_refused_before_a_checkpoint_is_made(tmp_path: Path) -> None:
    _, space = workspace(tmp_path)
    session = space.session(thread="t", user="ada", tenant="acme")
    assert session.partition == ("acme", "ada")
    session.write("/a", "x")
    with pytest.raises(treehold.Unsupported, match="acme/ada"):
        session.checkpoint("with rows", batch=Batch().put(("acme", "ada", "app"), "k", "row").put("app", "k", "row"))
    assert session.checkpoints() == []
    assert session.store.get("app", "k") is None


def test_feed_lists_changes_and_follows_them(tmp_path: Path) -> None:
    _, space = workspace(tmp_path)
    session = space.session(thread="t")
    start = session.feed().position
    session.call("write_file", {"path": "/a", "content": "x"})
    session.write("/memories/m", "x")
    page = session.feed(start)
    assert [(event.path, event.operation) for event in page.events] == [("/a", "write"), ("/memories/m", "write")]
    assert page.events[0].thread == "t" and page.events[0].position < page.events[1].position
    assert [event.path for event in session.timeline(limit=1).events] == ["/memories/m"]
    tail = session.follow(start)
    assert next(tail).path == "/a"
    assert [event.path for event in session.feed(tail.position).events] == ["/memories/m"]
    assert next(tail).path == "/memories/m"

    async def follow() -> str:
        waiting = asyncio.ensure_future(anext(tail))
        await asyncio.sleep(0)
        await session.awrite("/memories/n", "x")
        return (await waiting).path

    assert asyncio.run(follow()) == "/memories/n"


async def test_sessions_are_asynchronous_context_managers(tmp_path: Path) -> None:
    _, space = workspace(tmp_path)
    async with space, await space.asession(thread="t") as session:
        await session.awrite("/a", "x")
        assert (await session.acall("ls", {"path": "/"})).text == "a\t1B\nmemories/\n"
    with pytest.raises(treehold.InvalidArgument, match="closed"):
        space.session(thread="t")


def test_workspace_without_a_store_keeps_threads_in_memory() -> None:
    space = Workspace.of()
    with space.session(thread="t") as session:
        session.write("/a", "x")
    assert space.session(thread="t").read_text("/a") == "x"
    with pytest.raises(treehold.Unsupported):
        session = space.session(thread="t")
        session.feed()
    with pytest.raises(treehold.InvalidArgument):
        Workspace.of(events=True)
