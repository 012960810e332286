"""The file tools of a session as tools of LangChain."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from langchain.tools import ToolRuntime
from langchain_core.tools import BaseTool, BaseToolkit, StructuredTool, ToolException
from pydantic import ConfigDict, PrivateAttr

import treehold
from treehold.langchain._sessions import SessionSource, session_of


class TreeholdToolkit(BaseToolkit):
    """The file tools of a session: `ls`, `read_file`, `write_file`, `edit_file`, `glob`, `grep`, `search` and more.

    The names, descriptions and arguments are those of every entry point of treehold, and so are the answers. A failed call is
    a tool message with the status `error`; its text tells the model what to do. The artifact of a message is the structured
    result.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    _source: SessionSource = PrivateAttr()
    _names: frozenset[str] | None = PrivateAttr()

    def __init__(self, session: SessionSource, *, workspace: treehold.Workspace | None = None, tools: Collection[str] | None = None) -> None:
        """Makes the tools of a session.

        Args:
            session: The session, or a function of the run's configuration such as `Sessions(workspace)`.
            workspace: The workspace of the sessions, if `session` is a function: it knows which tools there are.
            tools: The names of the tools to offer. By default all.
        """
        super().__init__()
        self._source = session
        self._described = _described(session, workspace)
        self._names = None if tools is None else frozenset(tools)
        unknown = sorted((self._names or frozenset()) - {tool["name"] for tool in self._described})
        if unknown:
            known = ", ".join(tool["name"] for tool in self._described)
            raise ValueError(f"no tool is named {unknown[0]!r}; use some of {known}")

    _described: list[dict[str, Any]] = PrivateAttr()

    def get_tools(self) -> list[BaseTool]:
        return [_tool(self._source, tool) for tool in self._described if self._names is None or tool["name"] in self._names]


def is_ours(tool: BaseTool | None) -> bool:
    """Tells whether a tool is one of this kit."""
    return tool is not None and bool((tool.metadata or {}).get("treehold"))


def _described(session: SessionSource, workspace: treehold.Workspace | None) -> list[dict[str, Any]]:
    """Returns the names, descriptions and schemas of the tools."""
    if isinstance(session, treehold.Session):
        tools: list[dict[str, Any]] = session.tools("mcp")
    elif workspace is not None:
        tools = workspace.tools("mcp")
    else:
        raise ValueError("pass `workspace` too if the session depends on the run: it knows which tools there are")
    return tools


def _tool(source: SessionSource, described: dict[str, Any]) -> BaseTool:
    name: str = described["name"]

    def call(runtime: ToolRuntime[Any, Any] | None = None, **arguments: Any) -> tuple[str, Any]:
        session = session_of(source, None if runtime is None else runtime.config)
        return _answer(session.call(name, arguments, call_id=_call_id(runtime)))

    async def acall(runtime: ToolRuntime[Any, Any] | None = None, **arguments: Any) -> tuple[str, Any]:
        session = session_of(source, None if runtime is None else runtime.config)
        return _answer(await session.acall(name, arguments, call_id=_call_id(runtime)))

    return StructuredTool(
        name=name,
        description=described["description"],
        args_schema=described["inputSchema"],
        func=call,
        coroutine=acall,
        response_format="content_and_artifact",
        handle_tool_error=True,
        metadata={"treehold": True},
    )


def _call_id(runtime: ToolRuntime[Any, Any] | None) -> str | None:
    return None if runtime is None else runtime.tool_call_id


def _answer(result: treehold.ToolResult) -> tuple[str, Any]:
    if result.is_error:
        raise ToolException(result.text)
    return result.text, result.data
