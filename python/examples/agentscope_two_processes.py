"""Two processes take turns in one session of an agentscope agent.

Each turn is a process of its own. It opens the same store, reads the session, lets agentscope's agent work in the user's workspace
with agentscope's own tools and skills, and saves the state. The model is scripted, so the example needs no network:

    python agentscope_two_processes.py
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from agentscope.agent import Agent
from agentscope.app.storage import SessionConfig
from agentscope.credential import CredentialBase
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg, TextBlock, ToolCallBlock, UserMsg
from agentscope.model import ChatModelBase, ChatResponse
from agentscope.permission import PermissionMode
from agentscope.tool import Toolkit
from pydantic import BaseModel

import treehold
from treehold.agentscope import TreeholdStorage, TreeholdWorkspace

USER, AGENT, SESSION = "ann", "planner", "trip"

Step = tuple[str, dict[str, Any]] | str

TURNS: list[tuple[str, list[Step]]] = [
    (
        "Start a packing list.",
        [
            ("Write", {"file_path": "/workspace/packing.md", "content": "# Packing\n- tent\n"}),
            "I started the list with a tent.",
        ],
    ),
    (
        "Add a stove.",
        [
            ("Read", {"file_path": "/workspace/packing.md"}),
            ("Edit", {"file_path": "/workspace/packing.md", "old_string": "- tent\n", "new_string": "- tent\n- stove\n"}),
            "The stove is on the list.",
        ],
    ),
    (
        "Is there a stove?",
        [
            ("Grep", {"pattern": "stove", "path": "/work", "output_mode": "content"}),
            ("Glob", {"pattern": "**/*.md", "path": "/"}),
            "Yes, the stove is on line 3.",
        ],
    ),
]


class NoCredential(CredentialBase):
    """The scripted model needs no key."""

    @classmethod
    def get_chat_model_class(cls) -> type[ChatModelBase]:
        """Returns the model."""
        return ScriptedModel


class ScriptedModel(ChatModelBase):
    """Answers with the steps of a turn, one for each call."""

    class Parameters(BaseModel):
        """The model has no parameters."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__(
            credential=NoCredential(), model="scripted", parameters=self.Parameters(), stream=False, context_size=100_000
        )
        self.formatter = OpenAIChatFormatter()
        self.steps = iter(steps)

    async def _call_api(
        self, model_name: str, messages: list[Msg], *_: Any, **__: Any
    ) -> ChatResponse | AsyncGenerator[ChatResponse, None]:
        step = next(self.steps)
        if isinstance(step, str):
            return ChatResponse(content=[TextBlock(text=step)], is_last=True)
        name, arguments = step
        return ChatResponse(content=[ToolCallBlock(id=f"call-{name}", name=name, input=json.dumps(arguments))], is_last=True)


async def take_turn(url: str, number: int) -> None:
    """Takes one turn: this is all that a process knows of the session."""
    question, steps = TURNS[number]
    async with await treehold.Store.aopen(url) as store, TreeholdStorage(store) as storage:
        if await storage.get_session(USER, AGENT, SESSION) is None:
            created = await storage.upsert_session(USER, AGENT, SessionConfig(workspace_id="trip"), session_id=SESSION)
            created.state.permission_context.mode = PermissionMode.BYPASS
            await storage.update_session_state(USER, AGENT, SESSION, created.state)
        files = treehold.StoreBackend(store, ("files", USER))
        async with TreeholdWorkspace(files, workdir="/work") as workspace, storage.turn(USER, AGENT, SESSION) as session:
            agent = Agent(
                name=AGENT,
                system_prompt="You plan trips. " + await workspace.get_instructions(),
                model=ScriptedModel(steps),
                toolkit=Toolkit(
                    tools=await workspace.list_tools(),
                    skills_or_loaders=await workspace.list_skills(agent_id=AGENT),
                    mcps=await workspace.list_mcps(agent_id=AGENT, session_id=SESSION),
                ),
                offloader=workspace,
                state=session.state,
            )
            asked = UserMsg(name=USER, content=question)
            answer = await agent.reply(asked)
            for message in (asked, answer):
                await storage.upsert_message(USER, SESSION, message)
        print(f"turn {number + 1}: {answer.get_text_content()} ({len(agent.state.context)} messages in the state)")


async def show(url: str) -> None:
    """Prints what the turns left behind."""
    async with await treehold.Store.aopen(url) as store, TreeholdStorage(store) as storage:
        messages, _ = await storage.list_messages(USER, SESSION)
        print(f"{len(messages)} messages; the list is:")
        print((await treehold.StoreBackend(store, ("files", USER)).aread("/workspace/packing.md")).text(), end="")


def main(arguments: list[str]) -> int:
    """Runs each turn in a process of its own, or one turn."""
    if arguments:
        asyncio.run(take_turn(arguments[0], int(arguments[1])))
        return 0
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:{Path(directory) / 'agents.db'}"
        for number in range(len(TURNS)):
            subprocess.run([sys.executable, __file__, url, str(number)], check=True)
        asyncio.run(show(url))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
