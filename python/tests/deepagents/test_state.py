"""The state backend and the channel of its graph."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends.utils import create_file_data
from deepagents_support import Held, State, in_graph
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from scripted_agent import ScriptedModel

from treehold.deepagents import StateBackend


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("ls", ("/",)),
        ("read", ("/a",)),
        ("write", ("/a", "x")),
        ("edit", ("/a", "x", "y")),
        ("delete", ("/a",)),
        ("glob", ("*",)),
        ("grep", ("x",)),
        ("upload_files", ([("/a", b"x")],)),
        ("download_files", (["/a"],)),
    ],
)
def test_outside_of_a_graph_every_operation_raises(method: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(RuntimeError, match="graph"):
        getattr(StateBackend(), method)(*args)
    with pytest.raises(RuntimeError, match="graph"):
        asyncio.run(getattr(StateBackend(), "a" + method)(*args))


def test_changes_go_to_the_channel_and_are_seen_at_once() -> None:
    backend = StateBackend()

    def work() -> list[Any]:
        backend.write("/new.md", "one needle\n")
        backend.edit("/old.md", "before", "after")
        backend.delete("/gone.md")
        seen = [entry["path"] for entry in backend.ls("/").entries or []]
        return [seen, backend.read("/old.md").file_data, len(backend.grep("needle").matches or [])]

    old = create_file_data("before", created_at="2025-01-01T00:00:00+00:00")
    (seen, data, hits), files = in_graph(work, {"/old.md": old, "/gone.md": create_file_data("x")})
    assert seen == ["/new.md", "/old.md"]
    assert (data["content"], data["created_at"], hits) == ("after", "2025-01-01T00:00:00+00:00", 1)
    assert {path: each["content"] for path, each in files.items()} == {"/new.md": "one needle\n", "/old.md": "after"}
    assert files["/old.md"]["created_at"] == old["created_at"] < files["/old.md"]["modified_at"]


def test_asynchronous_methods_run_in_an_asynchronous_graph() -> None:
    backend = StateBackend()

    async def node(_: State) -> dict[str, Any]:
        await backend.awrite("/a/x.md", "hit")
        assert [entry["path"] for entry in (await backend.als("/")).entries or []] == ["/a/"]
        assert len((await backend.agrep("hit")).matches or []) == 1
        assert len((await backend.aglob("**/*.md")).matches or []) == 1
        return {}

    graph = StateGraph(State).add_node("work", node).add_edge(START, "work").add_edge("work", END).compile()
    assert list(asyncio.run(graph.ainvoke({"files": {}}))["files"]) == ["/a/x.md"]


def test_files_that_others_put_into_the_channel_are_files() -> None:
    held = Held()
    legacy: dict[str, Any] = {"content": ["one", "two needle"]}
    held.files = {"/a.md": legacy, "relative.md": create_file_data("needle"), "//odd": create_file_data("x")}
    assert [entry["path"] for entry in held.backend.ls("/").entries or []] == ["/a.md"]
    assert held.backend.grep("needle").matches == [{"path": "/a.md", "line": 2, "text": "two needle"}]
    assert held.backend.edit("/a.md", "two", "2").error is None
    assert held.files["/a.md"]["content"] == "one\n2 needle"
    # As a key a path may be anything: reads and writes find it as it is.
    assert held.backend.read("relative.md").error is None


def test_file_with_files_beneath_it_is_listed_as_a_directory() -> None:
    held = Held()
    held.backend.write("/a", "hit")
    assert [entry["path"] for entry in held.backend.ls("/").entries or []] == ["/a"]
    held.backend.write("/a/b", "hit")
    assert [entry["path"] for entry in held.backend.ls("/").entries or []] == ["/a/"]
    assert [match["path"] for match in held.backend.grep("hit").matches or []] == ["/a/b"]
    assert held.backend.read("/a").error is None
    held.backend.delete("/a")
    assert held.files == {}


def test_listing_after_another_thread_of_the_agent_shows_its_own_files() -> None:
    """One backend serves all threads of an agent, so a tree of one must never answer for another."""
    first, second = Held(), Held()
    vars(second.backend)["_mirrors"] = vars(first.backend)["_mirrors"]
    first.backend.write("/one.md", "x")
    second.backend.write("/two.md", "x")
    for _ in range(2):
        assert [entry["path"] for entry in first.backend.ls("/").entries or []] == ["/one.md"]
        assert [entry["path"] for entry in second.backend.ls("/").entries or []] == ["/two.md"]


def test_binary_files_are_neither_searched_nor_edited() -> None:
    held = Held()
    held.backend.upload_files([("/a.bin", b"\xffneedle")])
    assert held.backend.grep("needle").matches == []
    assert held.backend.grep("bmVlZGxl").matches == []
    assert held.backend.edit("/a.bin", "x", "y").error == "Error: Cannot edit binary files with text replacements."
    held.backend.write("/a.bin", "needle")
    assert len(held.backend.grep("needle").matches or []) == 1


def test_agent_resumes_at_an_earlier_checkpoint_with_its_files() -> None:
    steps = [
        ("write_file", {"file_path": "/a.md", "content": "first"}),
        ("edit_file", {"file_path": "/a.md", "old_string": "first", "new_string": "second"}),
        "done",
    ]
    agent = create_deep_agent(model=ScriptedModel(steps=steps), backend=StateBackend(), checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    agent.invoke({"messages": [HumanMessage(content="go")]}, config)
    past = [state for state in agent.get_state_history(config) if state.next == ("model",) and "/a.md" in state.values.get("files", {})]
    assert [state.values["files"]["/a.md"]["content"] for state in past] == ["second", "first"]
    result = agent.invoke(None, past[-1].config)
    assert result["files"]["/a.md"]["content"] == "second"
    assert isinstance(result["messages"][-1], AIMessage)


@pytest.mark.parametrize("with_checkpoints", [True, False])
def test_second_task_of_a_step_that_changes_a_file_is_refused(with_checkpoints: bool) -> None:
    backend = StateBackend()
    results: dict[str, Any] = {}

    def left(_: State) -> dict[str, Any]:
        results["left"] = [backend.edit("/a.md", "one", "1"), backend.edit("/a.md", "1", "uno")]
        return {}

    def right(_: State) -> dict[str, Any]:
        results["right"] = [backend.edit("/a.md", "two", "2"), backend.write("/b.md", "x")]
        return {}

    def after(_: State) -> dict[str, Any]:
        results["after"] = [backend.edit("/a.md", "two", "2")]
        return {}

    graph = StateGraph(State).add_node("left", left).add_node("right", right).add_node("after", after, defer=True)
    graph.add_edge(START, "left").add_edge(START, "right").add_edge("left", "after").add_edge("right", "after").add_edge("after", END)
    compiled = graph.compile(checkpointer=InMemorySaver() if with_checkpoints else None)
    config: Any = {"configurable": {"thread_id": "t"}, "max_concurrency": 1}
    for _ in range(2):
        # The second run is another step, with tasks of its own.
        files = compiled.invoke({"files": {"/a.md": create_file_data("one two"), "/b.md": None}}, config)["files"]
        edits = [*results["left"], results["right"][0]]
        acknowledged = [edit.error is None for edit in edits]
        assert acknowledged in ([True, True, False], [False, False, True])
        assert results["right"][1].error is None
        assert results["after"][0].error is None or acknowledged[2]
        assert files["/a.md"]["content"] == ("uno 2" if acknowledged[0] else "one 2")
