"""The file tools of a session as a toolset of Pydantic AI.

    session = workspace.session(thread="friday", user="ada")
    agent = Agent(model, toolsets=[TreeholdToolset(session)], instructions=memory_instructions(session))

A call that destroys something needs an approval, by treehold's rules: the run ends with `DeferredToolRequests` (add it to the
output types of the agent), whose metadata has the question for the person.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeAlias

from pydantic_ai import ApprovalRequired, RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

import treehold

__all__ = ["TreeholdToolset", "memory_instructions"]

SessionSource: TypeAlias = "treehold.Session | Callable[[RunContext[Any]], treehold.Session]"
"""One session for all runs, or a function that returns the session for the context of a run."""

ARGUMENTS = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))
"""Accepts any object: treehold checks arguments itself and tells the model what is wrong."""


class TreeholdToolset(AbstractToolset[Any]):
    """The file tools of a session. A failed call is an answer that tells the model what to do."""

    def __init__(
        self,
        session: SessionSource,
        *,
        workspace: treehold.Workspace | None = None,
        tools: Collection[str] | None = None,
        id: str | None = "treehold",
    ) -> None:
        """Makes a toolset.

        Args:
            session: The session, or a function of the run's context.
            workspace: The workspace of the sessions, if `session` is a function: it knows which tools there are.
            tools: The names of the tools to offer. By default all.
            id: The id of the toolset, for frameworks of durable execution.
        """
        describes = session if isinstance(session, treehold.Session) else workspace
        if describes is None:
            raise ValueError("pass `workspace` too if the session depends on the run: it knows which tools there are")
        self._session = session
        self._id = id
        described: list[dict[str, Any]] = describes.tools("mcp")
        self._definitions = [
            ToolDefinition(name=each["name"], description=each["description"], parameters_json_schema=each["inputSchema"])
            for each in described
            if tools is None or each["name"] in tools
        ]

    @property
    def id(self) -> str | None:
        return self._id

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        return {
            each.name: ToolsetTool(toolset=self, tool_def=each, max_retries=1, args_validator=ARGUMENTS) for each in self._definitions
        }

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]) -> str:
        session = _session(self._session, ctx)
        question = await session.aquestion(name, tool_args)
        if question is not None and not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"question": question})
        result = await session.acall(name, tool_args, call_id=ctx.tool_call_id, consented=question is not None)
        return result.text


def memory_instructions(session: SessionSource) -> Callable[[RunContext[Any]], Awaitable[str]]:
    """Returns instructions for an agent with the memory of the session, read anew for each run."""

    async def made(ctx: RunContext[Any]) -> str:
        return await _session(session, ctx).amemory_prompt()

    return made


def _session(source: SessionSource, ctx: RunContext[Any]) -> treehold.Session:
    return source if isinstance(source, treehold.Session) else source(ctx)
