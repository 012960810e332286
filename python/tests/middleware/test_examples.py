"""The examples run to their end, each with a scripted model."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

EXPECTED: dict[str, tuple[str, list[str]]] = {
    "langchain_agent.py": (
        "langchain",
        [
            "monday asks: Remove `/drafts` and the 2 entries in it?",
            "monday write_file: Created /memories/AGENTS.md (1 line, 29 bytes)",
            "monday write_file: Created /drafts/one.md (1 line, 4 bytes)",
            "monday write_file: Created /drafts/two.md (1 line, 4 bytes)",
            "monday measure: The result has 224263 characters and was written to `/large_tool_results/call-1-0`."
            " Read it in parts, or search it. It begins and ends with:",
            "monday grep: /large_tool_results/call-1-0:5000:step 4999: 24990001 ms",
            "monday delete: Deleted /drafts and the 2 entries in it",
            "monday knows the colour: True",
            "monday answers: The drafts are gone.",
            "tuesday knows the colour: True",
            "tuesday answers: It is #FD5108.",
        ],
    ),
    "openai_agents_agent.py": (
        "agents",
        [
            "asks: Remove `/drafts` and the 1 entry in it?",
            "tool: Created /drafts/one.md (1 line, 4 bytes)",
            "tool: one",
            "tool: Deleted /drafts and the 1 entry in it",
            "knows Ada: True",
            "answers: Done.",
            "left: ['/memories/AGENTS.md']",
        ],
    ),
    "pydantic_ai_agent.py": (
        "pydantic_ai",
        [
            "asks: Remove `/drafts` and the 1 entry in it?",
            "tool: Created /drafts/one.md (1 line, 4 bytes)",
            "tool: Edited /drafts/one.md (1 replacement); it now reads:",
            "tool: error [no_match]: the text to replace does not occur; read the file again and copy the text exactly",
            "tool: Deleted /drafts and the 1 entry in it",
            "knows Ada: True",
            "answers: Done.",
            "left: ['/memories/AGENTS.md']",
        ],
    ),
    "anthropic_memory.py": (
        "anthropic.lib.tools",
        [
            "tool: ok: File created successfully at: /memories/notes.md",
            "tool: ok: The memory file has been edited. Here is the snippet showing the change (with line numbers):",
            "tool: failed: No replacement was performed, old_str `oil paint` did not appear verbatim in /memories/notes.md.",
            "tool: ok: Here's the content of /memories/notes.md with line numbers:",
            "answers: Noted.",
            "memory: Ada likes watercolour.",
        ],
    ),
}


@pytest.mark.parametrize("example", EXPECTED)
def test_example_prints_what_it_promises(example: str) -> None:
    framework, expected = EXPECTED[example]
    if find_spec(framework.partition(".")[0]) is None:
        pytest.skip(f"{framework} is not installed")
    ended = subprocess.run([sys.executable, str(EXAMPLES / example)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == expected
