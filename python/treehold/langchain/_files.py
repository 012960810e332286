"""File tools for an agent, and large results in files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import ToolMessage
from langgraph.types import Command

import treehold
from treehold.langchain._sessions import SessionSource, config_of, session_of
from treehold.langchain._toolkit import TreeholdToolkit

TOKEN_CHARACTERS: Final = 4
"""About how many characters a token has."""

PREVIEW_LINES: Final = 5
"""How many lines of the start and of the end of a large result the model still sees."""

PREVIEW_LINE_CHARACTERS: Final = 1000
"""How much of such a line it sees."""


class FilesystemMiddleware(AgentMiddleware[AgentState[Any], Any]):
    """Gives an agent the file tools of a session, and moves large results of any tool to a file.

    A result over `evict_tokens` is written below `results_root`, and the model gets its path with the first and last lines, so
    it can read or search the rest with the file tools. If the file cannot be written, the model gets the result itself.
    """

    def __init__(
        self,
        session: SessionSource,
        *,
        workspace: treehold.Workspace | None = None,
        tools: Collection[str] | None = None,
        evict_tokens: int | None = 20_000,
        results_root: str = "/large_tool_results",
    ) -> None:
        """Adds tools.

        Args:
            session: The session, or a function of the run's configuration such as `Sessions(workspace)`.
            workspace: The workspace of the sessions, if `session` is a function.
            tools: The names of the tools to offer. By default all.
            evict_tokens: The largest result that stays in the conversation, in tokens. `None` moves nothing.
            results_root: The directory of the files with results.
        """
        super().__init__()
        self.tools = TreeholdToolkit(session, workspace=workspace, tools=tools).get_tools()
        self._source = session
        self._evict_tokens = evict_tokens
        self._results_root = results_root.rstrip("/")

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        result = handler(request)
        text = self._large(result)
        if text is None or not isinstance(result, ToolMessage):
            return result
        try:
            path = self._path(result)
            session_of(self._source, config_of(request)).write(path, text)
        except treehold.Error:
            return result
        return _moved(result, path, text)

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        result = await handler(request)
        text = self._large(result)
        if text is None or not isinstance(result, ToolMessage):
            return result
        try:
            path = self._path(result)
            await session_of(self._source, config_of(request)).awrite(path, text)
        except treehold.Error:
            return result
        return _moved(result, path, text)

    def _large(self, result: ToolMessage | Command[Any]) -> str | None:
        """Returns the text of a result that is too large for the conversation."""
        if self._evict_tokens is None or not isinstance(result, ToolMessage):
            return None
        text = result.text
        return text if len(text) > self._evict_tokens * TOKEN_CHARACTERS else None

    def _path(self, result: ToolMessage) -> str:
        """Returns the path for a result, named by the id of its call."""
        name = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in result.tool_call_id)
        return f"{self._results_root}/{name[:128] or 'result'}"


def _moved(result: ToolMessage, path: str, text: str) -> ToolMessage:
    """Makes the message that replaces a large result."""
    lines = text.splitlines()
    omitted = len(lines) - 2 * PREVIEW_LINES
    first = [line[:PREVIEW_LINE_CHARACTERS] for line in lines[:PREVIEW_LINES]]
    last = [line[:PREVIEW_LINE_CHARACTERS] for line in lines[PREVIEW_LINES:][-PREVIEW_LINES:]]
    middle = [f"... {omitted} lines omitted ..."] if omitted > 0 else []
    notice = f"The result has {len(text)} characters and was written to `{path}`. Read it in parts, or search it. It begins and ends with:"
    return result.model_copy(update={"content": "\n".join([notice, "", *first, *middle, *last])})
