"""A person's consent to calls that destroy something."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain.agents.middleware.types import PrivateStateAttr, ToolCallRequest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt
from typing_extensions import NotRequired

import treehold
from treehold.langchain._sessions import SessionSource, config_of, session_of
from treehold.langchain._toolkit import is_ours

CHANGED = "what this call would destroy has changed since a person was asked; nothing was changed; repeat the call to ask again"


class ConsentState(AgentState[Any]):
    """The state of an agent with the questions about the calls of the last message."""

    consent_questions: NotRequired[Annotated[dict[str, str], PrivateStateAttr]]


class ApprovalMiddleware(AgentMiddleware[ConsentState, Any]):
    """Interrupts the run before a file tool destroys something, until a person agrees.

    The rules are those of treehold's consent: a person is asked about the removal of a directory with its content, about files
    that a patch removes or replaces, about a file that a move replaces, and about files that make tools run code. Everything else
    runs without a question, because people who must confirm everything stop reading.

    The interrupt has the form of LangChain's `HumanInTheLoopMiddleware`, so its clients work: one action request whose
    description is the question, and the decisions `approve` and `reject`. The question is kept with the thread. If the answer to
    it would be another one when the run resumes, perhaps days later in another process, the call is refused.
    """

    state_schema = ConsentState

    def __init__(self, session: SessionSource) -> None:
        """Asks before file tools destroy something.

        Args:
            session: The session, or a function of the run's configuration such as `Sessions(workspace)`.
        """
        super().__init__()
        self._source = session

    def after_model(self, state: ConsentState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        session = session_of(self._source)
        questions: dict[str, str | None] = {}
        for call in _calls(state):
            questions[str(call["id"])] = session.question(call["name"], call["args"])
        return _update(state, questions)

    async def aafter_model(self, state: ConsentState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        session = session_of(self._source)
        questions: dict[str, str | None] = {}
        for call in _calls(state):
            questions[str(call["id"])] = await session.aquestion(call["name"], call["args"])
        return _update(state, questions)

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        if not is_ours(request.tool):
            return handler(request)
        asked = _asked(request)
        refused = None if asked is None else _ask(request, asked)
        if refused is not None:
            return refused
        session, call = session_of(self._source, config_of(request)), request.tool_call
        question = session.question(call["name"], call["args"])
        if question != asked:
            return _error(request, CHANGED)
        if question is None:
            return handler(request)
        return _answer(request, session.call(call["name"], call["args"], call_id=call["id"], consented=True))

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        if not is_ours(request.tool):
            return await handler(request)
        asked = _asked(request)
        refused = None if asked is None else _ask(request, asked)
        if refused is not None:
            return refused
        session, call = session_of(self._source, config_of(request)), request.tool_call
        question = await session.aquestion(call["name"], call["args"])
        if question != asked:
            return _error(request, CHANGED)
        if question is None:
            return await handler(request)
        return _answer(request, await session.acall(call["name"], call["args"], call_id=call["id"], consented=True))


def _calls(state: ConsentState) -> list[Any]:
    """Returns the calls of the last message of the model."""
    messages = state.get("messages", [])
    last = messages[-1] if messages else None
    return list(last.tool_calls) if isinstance(last, AIMessage) else []


def _update(state: ConsentState, questions: dict[str, str | None]) -> dict[str, Any] | None:
    """Returns the change of the state, if there is one."""
    asked = {call: question for call, question in questions.items() if question is not None}
    return {"consent_questions": asked} if asked or state.get("consent_questions") else None


def _asked(request: ToolCallRequest) -> str | None:
    """Returns the question about a call, as it was when the model made the call."""
    state: Any = request.state
    questions: Any = state.get("consent_questions") or {}
    question: str | None = questions.get(str(request.tool_call["id"]))
    return question


def _ask(request: ToolCallRequest, question: str) -> ToolMessage | None:
    """Asks a person. Returns the message for the model if the person does not agree."""
    call = request.tool_call
    answer: Any = interrupt(
        {
            "action_requests": [{"name": call["name"], "args": call["args"], "description": question}],
            "review_configs": [{"action_name": call["name"], "allowed_decisions": ["approve", "reject"]}],
        }
    )
    decisions: Any = answer.get("decisions")
    decision: Any = decisions[0] if decisions else {}
    if decision.get("type") == "approve":
        return None
    reason: Any = decision.get("message")
    return _error(request, f"the user did not agree; nothing was changed{': ' + str(reason) if reason else ''}")


def _answer(request: ToolCallRequest, result: treehold.ToolResult) -> ToolMessage:
    call = request.tool_call
    status = "error" if result.is_error else "success"
    return ToolMessage(content=result.text, artifact=result.data, name=call["name"], tool_call_id=call["id"], status=status)


def _error(request: ToolCallRequest, text: str) -> ToolMessage:
    call = request.tool_call
    return ToolMessage(content=f"error: {text}", name=call["name"], tool_call_id=call["id"], status="error")
