"""Anthropic's memory tool on a session, with answers of the API from a script.

    python anthropic_memory.py
"""

from __future__ import annotations

import itertools
import json
from typing import Any

from anthropic import Anthropic

import treehold
from treehold.anthropic import MemoryTool

try:
    import httpx2 as httpx
except ImportError:
    # Earlier versions of the SDK use this one.
    import httpx

CONFIG = """
[routes."/"]
type = "state"

[threads]
store = "main"

[stores.main]
url = "memory:"
"""

COMMANDS: list[dict[str, Any]] = [
    {"command": "create", "path": "/memories/notes.md", "file_text": "Ada likes oil paint.\n"},
    {"command": "str_replace", "path": "/memories/notes.md", "old_str": "oil paint", "new_str": "watercolour"},
    {"command": "str_replace", "path": "/memories/notes.md", "old_str": "oil paint", "new_str": "watercolour"},
    {"command": "view", "path": "/memories/notes.md"},
]


turns = itertools.count()


def answer(request: httpx.Request) -> httpx.Response:
    """Answers as the API would: with the next command of the script, and at the end with a text."""
    messages: list[Any] = json.loads(request.content)["messages"]
    turn = next(turns)
    if turn:
        result = messages[-1]["content"][0]
        text = result["content"] if isinstance(result["content"], str) else result["content"][0]["text"]
        print("tool:", "failed:" if result.get("is_error") else "ok:", text.splitlines()[0])
    content: dict[str, Any] = {"type": "text", "text": "Noted."}
    if turn < len(COMMANDS):
        content = {"type": "tool_use", "id": f"call-{turn}", "name": "memory", "input": COMMANDS[turn]}
    message = {
        "id": f"message-{turn}",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [content],
        "stop_reason": "tool_use" if turn < len(COMMANDS) else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    return httpx.Response(200, json=message)


def main() -> None:
    session = treehold.Workspace.open(config=CONFIG).session(thread="friday", user="ada")
    client = Anthropic(api_key="none", http_client=httpx.Client(transport=httpx.MockTransport(answer)))
    runner = client.beta.messages.tool_runner(
        model="scripted",
        max_tokens=100,
        tools=[MemoryTool(session)],
        messages=[{"role": "user", "content": "Ada paints with watercolour now."}],
    )
    final: Any = runner.until_done()
    print("answers:", final.content[0].text)
    print("memory:", session.read("/memories/notes.md").text().strip())


if __name__ == "__main__":
    main()
