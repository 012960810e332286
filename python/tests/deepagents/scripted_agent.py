"""An agent of deepagents with a scripted model, run in a process of its own.

    python scripted_agent.py (theirs|backends|ours) DIRECTORY THREAD [--kill-before N]

The tree has deepagents' backends (`theirs`), ours over the same store (`backends`), or ours over our store (`ours`).

The agent has scratch files in the state of its thread, a project on the disk, and memories in a store that all threads
share. The process prints a JSON document: the texts that the model saw, the files and the memories. With `--kill-before`
it kills itself when the model is asked for the N-th time, and a second run resumes the thread from its last checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepagents import create_deep_agent
from deepagents.backends.protocol import BackendProtocol
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.base import BaseStore

Step = tuple[str, dict[str, Any]] | list[tuple[str, dict[str, Any]]] | str
"""What the model answers: one tool call, several at once, or a text."""

SCRIPTS: dict[str, tuple[str, list[Step]]] = {
    "monday": (
        "Plan the release and remember the colour #FD5108.",
        [
            ("ls", {"path": "/"}),
            ("write_file", {"file_path": "/plan.md", "content": "# Plan\n\n1. ask\n2. build\n3. ship\n"}),
            ("edit_file", {"file_path": "/plan.md", "old_string": "1. ask", "new_string": "1. measure"}),
            ("read_file", {"file_path": "/plan.md"}),
            [
                ("write_file", {"file_path": "/notes/a.md", "content": "alpha\nneedle one\n"}),
                ("write_file", {"file_path": "/notes/b.md", "content": "beta\nneedle two\n"}),
            ],
            ("edit_file", {"file_path": "/plan.md", "old_string": "not there", "new_string": "x"}),
            ("edit_file", {"file_path": "/notes/a.md", "old_string": "a", "new_string": "A"}),
            ("read_file", {"file_path": "/nowhere.md"}),
            ("write_file", {"file_path": "/memories/AGENTS.md", "content": "The theme colour is #FD5108.\n"}),
            ("write_file", {"file_path": "/memories/people/ada.md", "content": "Ada likes oil paint. needle three\n"}),
            ("edit_file", {"file_path": "/project/main.py", "old_string": "print('old')", "new_string": "print('new')"}),
            ("grep", {"pattern": "needle", "output_mode": "content"}),
            ("grep", {"pattern": "needle", "path": "/notes", "output_mode": "count"}),
            ("glob", {"pattern": "**/*.md"}),
            ("ls", {"path": "/notes"}),
            ("ls", {"path": "/memories/"}),
            ("read_file", {"file_path": "/plan.md", "offset": 2, "limit": 2}),
            ("delete", {"file_path": "/notes/b.md"}),
            ("glob", {"pattern": "*.md", "path": "/notes"}),
            "The plan is written.",
        ],
    ),
    "tuesday": (
        "Which colour?",
        [
            ("read_file", {"file_path": "/memories/AGENTS.md"}),
            ("edit_file", {"file_path": "/memories/AGENTS.md", "old_string": "#FD5108", "new_string": "#0A7E8C"}),
            ("grep", {"pattern": "colour", "path": "/memories", "output_mode": "content"}),
            ("read_file", {"file_path": "/plan.md"}),
            "The colour is #0A7E8C now.",
        ],
    ),
}


class ScriptedModel(BaseChatModel):
    """Answers by script: the n-th question of a thread gets the n-th step. So another process can go on with it."""

    steps: list[Any]
    kill_before: int = 0
    seen: list[str] = []

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
        turn = sum(isinstance(message, AIMessage) for message in messages)
        if turn + 1 == self.kill_before:
            os.kill(os.getpid(), signal.SIGKILL)
        if turn == 0:
            self.seen.extend(memory_of(message) for message in messages if isinstance(message, SystemMessage))
        step = self.steps[turn]
        if isinstance(step, str):
            answer = AIMessage(content=step)
        else:
            calls = step if isinstance(step, list) else [step]
            answer = AIMessage(
                content="",
                tool_calls=[{"name": name, "args": args, "id": f"call-{turn}-{index}"} for index, (name, args) in enumerate(calls)],
            )
        return ChatResult(generations=[ChatGeneration(message=answer)])


def memory_of(message: SystemMessage) -> str:
    """Returns the part of a system prompt that holds the memory."""
    text = message.text
    start, end = text.find("<agent_memory>"), text.find("</agent_memory>")
    return text[start:end] if start >= 0 else ""


def backend_of(whose: str, directory: Path) -> tuple[BackendProtocol, Any]:
    """Makes the same tree with deepagents' classes or with ours. Where they come from is all that differs."""
    if whose == "theirs":
        from deepagents.backends import CompositeBackend, FilesystemBackend, StateBackend, StoreBackend
    else:
        from treehold.deepagents import CompositeBackend, FilesystemBackend, StateBackend, StoreBackend
    memories = StoreBackend(namespace=lambda _runtime: ("agents", "ada"), store=store_of(whose, directory))
    project = FilesystemBackend(root_dir=directory / "project", virtual_mode=True)
    return CompositeBackend(default=StateBackend(), routes={"/memories/": memories, "/project/": project}), memories


def store_of(whose: str, directory: Path) -> BaseStore:
    """Opens the store of memories: LangGraph's own, also for our backends by themselves, or ours."""
    if whose == "ours":
        import treehold
        from treehold.langgraph import TreeholdStore

        return TreeholdStore(treehold.Store.open(f"sqlite:{directory / 'memories.db'}"))
    from langgraph.store.sqlite import SqliteStore

    store = SqliteStore(sqlite3.connect(directory / "memories.db", check_same_thread=False, isolation_level=None))
    store.setup()
    return store


def main(arguments: Sequence[str]) -> None:
    whose, directory, thread, *more = arguments
    kill_before = int(more[1]) if more else 0
    root = Path(directory)
    (root / "project").mkdir(parents=True, exist_ok=True)
    if not (root / "project" / "main.py").exists():
        (root / "project" / "main.py").write_text("print('old')\n", newline="")
    backend, memories = backend_of(whose, root)
    question, steps = SCRIPTS[thread]
    model = ScriptedModel(steps=steps, kill_before=kill_before)
    with SqliteSaver.from_conn_string(str(root / "threads.db")) as saver:
        agent = create_deep_agent(model=model, backend=backend, memory=["/memories/AGENTS.md"], checkpointer=saver)
        config: Any = {"configurable": {"thread_id": thread}, "recursion_limit": 200}
        resumed = agent.get_state(config).next
        result = agent.invoke(None if resumed else {"messages": [HumanMessage(content=question)]}, config, durability="sync")
    transcript = [message.text for message in result["messages"] if isinstance(message, (ToolMessage, AIMessage, HumanMessage))]
    print(
        json.dumps(
            {
                "transcript": transcript,
                "memory": model.seen,
                "files": {path: data["content"] for path, data in sorted(result.get("files", {}).items())},
                "memories": {
                    entry["path"]: (memories.download_files([entry["path"]])[0].content or b"").decode()
                    for entry in memories.glob("**/*.md").matches or []
                },
                "project": (root / "project" / "main.py").read_bytes().decode(),
                "resumed": bool(resumed),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
