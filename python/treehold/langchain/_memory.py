"""Memory files in the system prompt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain_core.messages import SystemMessage

from treehold.langchain._sessions import SessionSource, session_of


class MemoryMiddleware(AgentMiddleware[AgentState[Any], Any]):
    """Adds the memory of a session to the system prompt of every call of the model.

    The files are read anew for each call, so a thread that goes on sees what others wrote meanwhile. `treehold.toml` says which
    files are memory; `/memories/AGENTS.md` is by default. What the prompt says about them, and how it is kept within a budget of
    tokens, is the same as at every entry point of treehold.
    """

    def __init__(self, session: SessionSource, *, sources: Sequence[str] | None = None, tokens_max: int | None = None) -> None:
        """Adds memory to prompts.

        Args:
            session: The session, or a function of the run's configuration such as `Sessions(workspace)`.
            sources: The files, in order. By default those of the configuration.
            tokens_max: The most tokens of memory in a prompt. By default that of the configuration.
        """
        super().__init__()
        self._source = session
        self._sources = None if sources is None else list(sources)
        self._tokens_max = tokens_max

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]) -> ModelResponse[Any]:
        session = session_of(self._source)
        return handler(_with(request, session.memory_prompt(self._sources, tokens_max=self._tokens_max)))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        session = session_of(self._source)
        return await handler(_with(request, await session.amemory_prompt(self._sources, tokens_max=self._tokens_max)))


def _with(request: ModelRequest[Any], prompt: str) -> ModelRequest[Any]:
    """Appends a text to the system message."""
    if not prompt:
        return request
    before = request.system_message
    blocks: list[Any] = [] if before is None else list(before.content_blocks)
    text = prompt if not blocks else "\n\n" + prompt
    return request.override(system_message=SystemMessage(content=[*blocks, {"type": "text", "text": text}]))
