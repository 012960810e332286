"""The middleware and the tool kit for LangChain."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

import treehold
from treehold.langchain import ApprovalMiddleware, FilesystemMiddleware, MemoryMiddleware, Sessions, TreeholdToolkit

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from scripted_chat import ScriptedChat

CONFIG = """
[stores.main]
url = "memory:"

[routes."/"]
type = "state"

[routes."/memories"]
type = "store"
store = "main"
namespace = "{user}/memories"

[threads]
store = "main"
"""

@pytest.fixture
def workspace() -> Iterator[treehold.Workspace]:
    with treehold.Workspace.open(config=CONFIG) as workspace:
        yield workspace


def run(agent: Any, inputs: Any, thread: str, mode: str) -> Any:
    config = {"configurable": {"thread_id": thread}}
    return agent.invoke(inputs, config) if mode == "sync" else asyncio.run(agent.ainvoke(inputs, config))


def tool_messages(result: Any) -> list[ToolMessage]:
    return [message for message in result["messages"] if isinstance(message, ToolMessage)]


@pytest.fixture(params=("sync", "async"))
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_kit_has_the_tools_of_every_entry_point(workspace: treehold.Workspace) -> None:
    session = workspace.session(thread="t", user="ada")
    tools = {each.name: each for each in TreeholdToolkit(session).get_tools()}
    assert {"ls", "read_file", "write_file", "edit_file", "glob", "grep", "search", "delete"} <= set(tools)
    assert tools["write_file"].invoke({"path": "/a.md", "content": "x"}).startswith("Created /a.md")
    assert asyncio.run(tools["read_file"].ainvoke({"path": "/a.md"})) == "x"
    assert "does not exist" in tools["read_file"].invoke({"path": "/b.md"})
    assert [each.name for each in TreeholdToolkit(session, tools=["ls"]).get_tools()] == ["ls"]
    with pytest.raises(ValueError, match="unheard_of"):
        TreeholdToolkit(session, tools=["unheard_of"])


def test_threads_have_files_of_their_own_and_share_memories(workspace: treehold.Workspace, mode: str) -> None:
    sessions = Sessions(workspace, user="ada")
    steps: list[Any] = [
        [("write_file", {"path": "/a.md", "content": "x"}), ("write_file", {"path": "/memories/AGENTS.md", "content": "Blue.\n"})],
        ("read_file", {"path": "/nowhere.md"}),
        ("ls", {"path": "/"}),
        "done",
    ]
    model = ScriptedChat(steps=steps)
    files = FilesystemMiddleware(sessions, workspace=workspace)
    agent = create_agent(model, middleware=[MemoryMiddleware(sessions), files], checkpointer=InMemorySaver())
    first = tool_messages(run(agent, {"messages": [HumanMessage("go")]}, "one", mode))
    assert [message.status for message in first] == ["success", "success", "error", "success"]
    assert "a.md" in first[-1].text
    assert first[-1].artifact is not None
    assert "Blue." not in model.prompts[0] and "Blue." in model.prompts[1]
    assert workspace.session(thread="one", user="ada").exists("/a.md")
    assert not workspace.session(thread="two", user="ada").exists("/a.md")
    model.prompts.clear()
    run(agent, {"messages": [HumanMessage("go")]}, "two", mode)
    assert "Blue." in model.prompts[0]


def test_memory_is_appended_to_the_system_prompt(workspace: treehold.Workspace, mode: str) -> None:
    session = workspace.session(thread="t", user="ada")
    session.write("/memories/AGENTS.md", "Blue.\n")
    session.write("/rules.md", "Be brief.\n")
    model = ScriptedChat(steps=["done"])
    middleware = [MemoryMiddleware(session, sources=["/rules.md"])]
    run(create_agent(model, system_prompt="You paint.", middleware=middleware), {"messages": [HumanMessage("go")]}, "t", mode)
    assert model.prompts[0].startswith("You paint.")
    assert "Be brief." in model.prompts[0] and "Blue." not in model.prompts[0]


def test_large_result_of_any_tool_becomes_a_file(workspace: treehold.Workspace, mode: str) -> None:
    @tool
    def long(lines: int) -> str:
        """Returns lines."""
        return "\n".join(f"line {n} of many" for n in range(lines))

    session = workspace.session(thread="t", user="ada")
    files = FilesystemMiddleware(session, evict_tokens=100)
    model = ScriptedChat(steps=[("long", {"lines": 1000}), ("long", {"lines": 10}), "done"])
    large, small = tool_messages(run(create_agent(model, tools=[long], middleware=[files]), {"messages": [HumanMessage("go")]}, "t", mode))
    assert session.read("/large_tool_results/call-0-0").text().count("\n") == 999
    assert "/large_tool_results/call-0-0" in large.text and "line 0 of many" in large.text and "line 999 of many" in large.text
    assert "line 500 of many" not in large.text
    assert small.text.count("\n") == 9


def deleting(workspace: treehold.Workspace) -> tuple[Any, treehold.Session]:
    session = workspace.session(thread="t", user="ada")
    session.write("/drafts/one.md", "one")
    middleware: list[Any] = [FilesystemMiddleware(session), ApprovalMiddleware(session)]
    model = ScriptedChat(steps=[("write_file", {"path": "/a.md", "content": "x"}), ("delete", {"path": "/drafts", "recursive": True}), "done"])
    return create_agent(model, middleware=middleware, checkpointer=InMemorySaver()), session


def test_approved_call_is_made(workspace: treehold.Workspace, mode: str) -> None:
    agent, session = deleting(workspace)
    paused = run(agent, {"messages": [HumanMessage("go")]}, "t", mode)
    (asked,) = paused["__interrupt__"]
    assert asked.value["action_requests"][0]["description"] == "Remove `/drafts` and the 1 entry in it?"
    assert session.exists("/drafts/one.md") and session.exists("/a.md")
    done = run(agent, Command(resume={"decisions": [{"type": "approve"}]}), "t", mode)
    assert tool_messages(done)[-1].status == "success"
    assert not session.exists("/drafts")


def test_rejected_call_changes_nothing(workspace: treehold.Workspace, mode: str) -> None:
    agent, session = deleting(workspace)
    run(agent, {"messages": [HumanMessage("go")]}, "t", mode)
    done = run(agent, Command(resume={"decisions": [{"type": "reject", "message": "keep them"}]}), "t", mode)
    assert tool_messages(done)[-1].status == "error"
    assert "keep them" in tool_messages(done)[-1].text
    assert session.exists("/drafts/one.md")


def test_consent_to_something_else_by_now_is_refused(workspace: treehold.Workspace, mode: str) -> None:
    agent, session = deleting(workspace)
    run(agent, {"messages": [HumanMessage("go")]}, "t", mode)
    session.write("/drafts/two.md", "written meanwhile")
    done = run(agent, Command(resume={"decisions": [{"type": "approve"}]}), "t", mode)
    assert "changed since" in tool_messages(done)[-1].text
    assert session.exists("/drafts/one.md")
