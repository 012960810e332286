"""Anthropic's memory tool on the tree of a session.

    message = client.beta.messages.tool_runner(model=…, messages=…, tools=[MemoryTool(session)], …).until_done()

The commands of the tool (`view`, `create`, `str_replace`, `insert`, `delete`, `rename`) work on `/memories` of the session, with
the texts that Anthropic specifies. So the memories are files that other agents and tools see too.
"""

from __future__ import annotations

from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError
from anthropic.types.beta import (
    BetaCacheControlEphemeralParam,
    BetaMemoryTool20250818Command,
    BetaMemoryTool20250818CreateCommand,
    BetaMemoryTool20250818DeleteCommand,
    BetaMemoryTool20250818InsertCommand,
    BetaMemoryTool20250818RenameCommand,
    BetaMemoryTool20250818StrReplaceCommand,
    BetaMemoryTool20250818ViewCommand,
)

import treehold

__all__ = ["AsyncMemoryTool", "MemoryTool"]


class MemoryTool(BetaAbstractMemoryTool):
    """Executes the commands of the memory tool on a session."""

    def __init__(self, session: treehold.Session, *, cache_control: BetaCacheControlEphemeralParam | None = None) -> None:
        super().__init__(cache_control=cache_control)
        self._session = session

    def execute(self, command: BetaMemoryTool20250818Command) -> str:
        return _text(self._session.call("memory", command.to_dict(), set="memory"))

    def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        return self.execute(command)

    def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        return self.execute(command)

    def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        return self.execute(command)

    def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        return self.execute(command)

    def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        return self.execute(command)

    def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        return self.execute(command)

    def clear_all_memory(self) -> str:
        for entry in self._entries():
            self._session.delete(entry.path, recursive=True)
        return "All memory cleared"

    def _entries(self) -> list[treehold.Entry]:
        return self._session.ls("/memories").entries


class AsyncMemoryTool(BetaAsyncAbstractMemoryTool):
    """Executes the commands of the memory tool on a session, asynchronously."""

    def __init__(self, session: treehold.Session, *, cache_control: BetaCacheControlEphemeralParam | None = None) -> None:
        super().__init__(cache_control=cache_control)
        self._session = session

    async def execute(self, command: BetaMemoryTool20250818Command) -> str:
        return _text(await self._session.acall("memory", command.to_dict(), set="memory"))

    async def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        return await self.execute(command)

    async def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        return await self.execute(command)

    async def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        return await self.execute(command)

    async def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        return await self.execute(command)

    async def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        return await self.execute(command)

    async def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        return await self.execute(command)

    async def clear_all_memory(self) -> str:
        listing = await self._session.als("/memories")
        for entry in listing.entries:
            await self._session.adelete(entry.path, recursive=True)
        return "All memory cleared"


def _text(result: treehold.ToolResult) -> str:
    if result.is_error:
        raise ToolError(result.text)
    return result.text

