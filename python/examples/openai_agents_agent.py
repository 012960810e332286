"""An agent of the OpenAI Agents SDK with files, memory and consent.

    python openai_agents_agent.py
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agents import Agent, Runner, ToolCallOutputItem, set_tracing_disabled
from agents.testing.model import ScriptedModel, assistant_message, function_call

import treehold
from treehold.openai_agents import consent_question, file_tools, memory_instructions

CONFIG = """
[routes."/"]
type = "state"

[threads]
store = "main"

[stores.main]
url = "memory:"
"""


def call(tool: str, n: int, **arguments: Any) -> Any:
    return function_call(tool, json.dumps(arguments), call_id=f"call-{n}")


async def main() -> None:
    set_tracing_disabled(True)
    session = treehold.Workspace.open(config=CONFIG).session(thread="friday", user="ada")
    session.write("/memories/AGENTS.md", "Ada likes oil paint.\n")
    model = ScriptedModel(
        [
            [call("write_file", 1, path="/drafts/one.md", content="one\n")],
            [call("read_file", 2, path="/drafts/one.md")],
            [call("delete", 3, path="/drafts", recursive=True)],
            [assistant_message("Done.")],
        ]
    )
    agent = Agent(name="Painter", instructions=memory_instructions(session, "You mix colours."), tools=file_tools(session), model=model)
    result = await Runner.run(agent, "Write a draft and remove it.")
    while result.interruptions:
        state = result.to_state()
        for item in result.interruptions:
            raw: Any = item.raw_item
            print("asks:", consent_question(session, raw.name, raw.arguments))
            state.approve(item)
        result = await Runner.run(agent, state)
    for item in result.new_items:
        if isinstance(item, ToolCallOutputItem):
            print("tool:", str(item.output).splitlines()[0])
    print("knows Ada:", "oil paint" in str(await agent.get_system_prompt(result.context_wrapper)))
    print("answers:", result.final_output)
    print("left:", [entry.path for entry in session.glob("**").entries])


if __name__ == "__main__":
    asyncio.run(main())
