"""An agent of LangChain with files, memory and consent.

    python langchain_agent.py

On Monday the agent notes a colour in its memory, gets a large result of a tool as a file, and asks before it removes a directory.
On Tuesday another thread of the same user finds the colour in its prompt.
"""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from scripted_chat import ScriptedChat

import treehold
from treehold.langchain import ApprovalMiddleware, FilesystemMiddleware, MemoryMiddleware, Sessions

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

MONDAY: list[Any] = [
    [
        ("write_file", {"path": "/memories/AGENTS.md", "content": "The theme colour is #FD5108.\n"}),
        ("write_file", {"path": "/drafts/one.md", "content": "one\n"}),
        ("write_file", {"path": "/drafts/two.md", "content": "two\n"}),
    ],
    ("measure", {}),
    ("grep", {"pattern": "step 4999", "path": "/large_tool_results"}),
    ("delete", {"path": "/drafts", "recursive": True}),
    "The drafts are gone.",
]

TUESDAY: list[Any] = ["It is #FD5108."]


@tool
def measure() -> str:
    """Measures every step."""
    return "\n".join(f"step {n}: {n * n} ms" for n in range(10_000))


def main() -> None:
    workspace = treehold.Workspace.open(config=CONFIG)
    sessions = Sessions(workspace, user="ada")
    middleware = [MemoryMiddleware(sessions), FilesystemMiddleware(sessions, workspace=workspace), ApprovalMiddleware(sessions)]
    for thread, steps, question in (("monday", MONDAY, "Note the colour and tidy up."), ("tuesday", TUESDAY, "Which colour?")):
        model = ScriptedChat(steps=steps)
        agent: Any = create_agent(model, tools=[measure], middleware=middleware, checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": thread}}
        result = agent.invoke({"messages": [HumanMessage(question)]}, config)
        while "__interrupt__" in result:
            request = result["__interrupt__"][0].value["action_requests"][0]
            print(f"{thread} asks: {request['description']}")
            result = agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), config)
        for message in result["messages"]:
            if isinstance(message, ToolMessage):
                print(f"{thread} {message.name}: {message.text.splitlines()[0]}")
        print(f"{thread} knows the colour: {'#FD5108' in model.prompts[-1]}")
        print(f"{thread} answers: {result['messages'][-1].text}")


if __name__ == "__main__":
    main()
