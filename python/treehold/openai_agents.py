"""The file tools of a session for the OpenAI Agents SDK.

    session = workspace.session(thread="friday", user="ada")
    agent = Agent(name="Painter", instructions=memory_instructions(session, "You mix colours."), tools=file_tools(session))

Calls that destroy something need an approval, by treehold's rules: the run ends with an interruption, and goes on after
`state.approve(item)`. The question to ask the person is what `consent_question` returns.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeAlias, cast

from agents import Agent, FunctionTool, RunContextWrapper, Tool
from agents.tool_context import ToolContext

import treehold

__all__ = ["consent_question", "file_tools", "memory_instructions"]

SessionSource: TypeAlias = "treehold.Session | Callable[[RunContextWrapper[Any]], treehold.Session]"
"""One session for all runs, or a function that returns the session for the context of a run."""


def file_tools(session: SessionSource, *, workspace: treehold.Workspace | None = None, tools: Collection[str] | None = None) -> list[Tool]:
    """Returns the file tools of a session.

    Args:
        session: The session, or a function of the run's context.
        workspace: The workspace of the sessions, if `session` is a function: it knows which tools there are.
        tools: The names of the tools to offer. By default all.
    """
    describes = session if isinstance(session, treehold.Session) else workspace
    if describes is None:
        raise ValueError("pass `workspace` too if the session depends on the run: it knows which tools there are")
    described: list[dict[str, Any]] = describes.tools("mcp")
    return [_tool(session, each) for each in described if tools is None or each["name"] in tools]


def memory_instructions(session: SessionSource, instructions: str = "") -> Callable[[RunContextWrapper[Any], Agent[Any]], Awaitable[str]]:
    """Returns instructions for an agent that end with the memory of the session, read anew for each turn."""

    async def made(context: RunContextWrapper[Any], _: Agent[Any]) -> str:
        memory = await _session(session, context).amemory_prompt()
        return "\n\n".join(part for part in (instructions, memory) if part)

    return made


def consent_question(session: treehold.Session, tool: str, arguments: str | None) -> str | None:
    """Returns the question to ask a person about an interrupted call, from the item's `name` and `arguments`."""
    return session.question(tool, _arguments(arguments or ""))


def _session(source: SessionSource, context: RunContextWrapper[Any]) -> treehold.Session:
    return source if isinstance(source, treehold.Session) else source(context)


def _tool(source: SessionSource, described: dict[str, Any]) -> FunctionTool:
    name: str = described["name"]

    async def invoke(context: ToolContext[Any], text: str) -> str:
        session = _session(source, context)
        try:
            arguments = _arguments(text)
        except ValueError as error:
            return f"error: the arguments are not a JSON object: {error}"
        # Without a consent the SDK does not come here: a call with a question needs an approval.
        question = await session.aquestion(name, arguments)
        result = await session.acall(name, arguments, call_id=context.tool_call_id, consented=question is not None)
        return result.text

    async def needs_approval(context: RunContextWrapper[Any], arguments: dict[str, Any], _: str) -> bool:
        return await _session(source, context).aquestion(name, arguments) is not None

    return FunctionTool(
        name=name,
        description=described["description"],
        params_json_schema=described["inputSchema"],
        on_invoke_tool=invoke,
        strict_json_schema=False,
        needs_approval=needs_approval,
    )


def _arguments(text: str) -> dict[str, Any]:
    arguments: Any = json.loads(text) if text.strip() else {}
    if not isinstance(arguments, dict):
        raise ValueError("a list or a plain value")
    return cast("dict[str, Any]", arguments)
