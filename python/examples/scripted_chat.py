"""A chat model of LangChain that follows a script, so that the examples run without a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable


class ScriptedChat(BaseChatModel):
    """Answers the n-th question of a thread with the n-th step: a text, or tool calls as pairs of name and arguments."""

    steps: list[Any]
    prompts: list[str] = []
    """The system prompts that the model saw."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, Any]:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        self.prompts.append(next((message.text for message in messages if message.type == "system"), ""))
        turn = sum(isinstance(message, AIMessage) for message in messages)
        step = self.steps[turn]
        if isinstance(step, str):
            return ChatResult(generations=[ChatGeneration(message=AIMessage(content=step))])
        calls: list[tuple[str, dict[str, Any]]] = step if isinstance(step, list) else [step]
        made: Any = [{"name": name, "args": args, "id": f"call-{turn}-{at}"} for at, (name, args) in enumerate(calls)]
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content="", tool_calls=made))])
