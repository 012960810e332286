"""An agent of Pydantic AI with files, memory and consent.

    python pydantic_ai_agent.py
"""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import treehold
from treehold.pydantic_ai import TreeholdToolset, memory_instructions

CONFIG = """
[routes."/"]
type = "state"

[threads]
store = "main"

[stores.main]
url = "memory:"
"""

STEPS: list[tuple[str, dict[str, Any]] | str] = [
    ("write_file", {"path": "/drafts/one.md", "content": "one\n"}),
    ("edit_file", {"path": "/drafts/one.md", "old_string": "one", "new_string": "two"}),
    ("edit_file", {"path": "/drafts/one.md", "old_string": "one", "new_string": "two"}),
    ("delete", {"path": "/drafts", "recursive": True}),
    "Done.",
]

prompts: list[str] = []


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    prompts.append(info.instructions or "")
    step = STEPS[sum(isinstance(message, ModelResponse) for message in messages)]
    return ModelResponse(parts=[TextPart(step) if isinstance(step, str) else ToolCallPart(step[0], step[1])])


def main() -> None:
    session = treehold.Workspace.open(config=CONFIG).session(thread="friday", user="ada")
    session.write("/memories/AGENTS.md", "Ada likes oil paint.\n")
    agent: Agent[None, Any] = Agent(
        FunctionModel(scripted),
        output_type=[str, DeferredToolRequests],
        instructions=memory_instructions(session),
        toolsets=[TreeholdToolset(session)],
    )
    result = agent.run_sync("Write a draft and remove it.")
    while isinstance(result.output, DeferredToolRequests):
        answers = DeferredToolResults()
        for call in result.output.approvals:
            print("asks:", result.output.metadata[call.tool_call_id]["question"])
            answers.approvals[call.tool_call_id] = True
        result = agent.run_sync(message_history=result.all_messages(), deferred_tool_results=answers)
    for message in result.all_messages():
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                print("tool:", str(part.content).splitlines()[0])
    print("knows Ada:", "oil paint" in prompts[-1])
    print("answers:", result.output)
    print("left:", [entry.path for entry in session.glob("**").entries])


if __name__ == "__main__":
    main()
