"""Replaces the Python SDK's memory tool with treehold, for the SDK's own tests.

A pytest plugin (`-p memory_tool_suite`), used by scripts/memory-tool.sh. Each command runs with `treehold run` on a host directory at
`/memories`, where the tests look for the effects of a command.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import anyio
from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool
from anthropic.lib.tools import _beta_builtin_memory_tool as builtin
from anthropic.lib.tools._beta_functions import ToolError

TREEHOLD = os.environ["TREEHOLD"]
CONFIG = """
[threads]
save = false
[stores.default]
url = "memory:"
[routes."/memories"]
type = "filesystem"
root = {root}
"""


class Memories:
    """The tree on which commands run."""

    def __init__(self, base_path: str) -> None:
        self.base_path = Path(base_path)
        self.memory_root = self.base_path / "memories"
        self.memory_root.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Outside the base path, since the tests list everything in it.
        self.data = tempfile.TemporaryDirectory()
        self.config = Path(self.data.name) / "treehold.toml"
        self.config.write_text(CONFIG.format(root=json.dumps(str(self.memory_root))))

    def play(self, command) -> str:
        call = {"tool": "memory", "args": command.to_dict(mode="json")}
        played = subprocess.run(
            [TREEHOLD, "--config", self.config, "--data", self.data.name, "--jsonl", "run", "--allow-errors", "-"],
            input=json.dumps(call),
            capture_output=True,
            text=True,
            check=False,
        )
        assert played.returncode == 0, played.stderr
        answer = json.loads(played.stdout)
        if answer["is_error"]:
            raise ToolError(answer["text"])
        return answer["text"]


class MemoryTool(BetaAbstractMemoryTool):
    def __init__(self, base_path: str = "./memory") -> None:
        super().__init__()
        self.memories = Memories(base_path)
        self.base_path, self.memory_root = self.memories.base_path, self.memories.memory_root

    def view(self, command):
        return self.memories.play(command)

    create = str_replace = insert = delete = rename = view


class AsyncMemoryTool(BetaAsyncAbstractMemoryTool):
    def __init__(self, base_path: str = "./memory") -> None:
        super().__init__()
        self.memories = Memories(base_path)
        self.base_path, self.memory_root = anyio.Path(self.memories.base_path), anyio.Path(self.memories.memory_root)

    async def view(self, command):
        return self.memories.play(command)

    create = str_replace = insert = delete = rename = view


builtin.BetaLocalFilesystemMemoryTool = MemoryTool
builtin.BetaAsyncLocalFilesystemMemoryTool = AsyncMemoryTool
