"""agentscope's own file tools on a tree."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agentscope.state import AgentState
from agentscope.tool import Edit, Glob, Grep, LocalBackend, Read, ToolBase, ToolChunk, Write

import treehold
from treehold.agentscope import TreeholdBackend


@pytest.fixture
def tree() -> treehold.StoreBackend:
    return treehold.StoreBackend(treehold.Store.open("memory:"), ("files", "u"))


async def run(tool: ToolBase, **arguments: Any) -> str:
    chunk = await tool.call(**arguments)
    assert isinstance(chunk, ToolChunk)
    return "".join(getattr(block, "text", "") for block in chunk.content)


async def test_tools_read_write_and_edit_the_tree(tree: treehold.StoreBackend) -> None:
    files, state = TreeholdBackend(tree), AgentState()
    await run(Write(backend=files), file_path="/d/a.md", content="one\ntwo\n", _agent_state=state)
    assert "two" in await run(Read(backend=files), file_path="/d/a.md", _agent_state=state)
    await run(Edit(backend=files), file_path="/d/a.md", old_string="two", new_string="three", _agent_state=state)
    assert tree.read("/d/a.md").text() == "one\nthree\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "/src/.b.py\n/src/a.py"),
        ({"output_mode": "content"}, "/src/.b.py:1:x = 3\n/src/a.py:2:x = 1"),
        ({"output_mode": "count"}, "/src/.b.py:1\n/src/a.py:1"),
        ({"output_mode": "content", "path": "/src/a.py", "context": 1}, "1-import os\n2:x = 1\n3-y = 2"),
        ({"glob": "a.*"}, "/src/a.py"),
        ({"type": "md"}, "No matches found for pattern: x ="),
        ({"path": "/none"}, "ripgrep error (code 2): rg: `/none` does not exist"),
    ],
)
async def test_grep_prints_what_ripgrep_prints(tree: treehold.StoreBackend, arguments: dict[str, Any], expected: str) -> None:
    tree.write("/src/a.py", "import os\nx = 1\ny = 2\n")
    tree.write("/src/.b.py", "x = 3\n")
    assert await run(Grep(backend=TreeholdBackend(tree)), pattern="x =", **arguments) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("**/*.py", "/src/a.py"), ("*.py", "No files found matching pattern: *.py"), ("src/**", "/src/[b].md\n/src/a.py"), ("src/[b].md", "/src/[b].md")],
)
async def test_glob_finds_newest_first_and_takes_brackets_literally(tree: treehold.StoreBackend, pattern: str, expected: str) -> None:
    tree.write("/src/a.py", "")
    tree.write("/src/[b].md", "")
    assert await run(Glob(backend=TreeholdBackend(tree)), pattern=pattern, path="/") == expected


async def test_write_after_a_check_does_not_replace_what_another_process_wrote_since(tree: treehold.StoreBackend) -> None:
    files = TreeholdBackend(tree)
    await files.write_file("/a", b"old")
    await files.stat_mtime("/a")
    tree.write("/a", "theirs")
    await files.read_file("/a")
    with pytest.raises(treehold.Conflict):
        await files.write_file("/a", b"mine")
    assert tree.read("/a").content == b"theirs"


async def test_new_file_does_not_replace_one_that_appeared_since_the_check(tree: treehold.StoreBackend) -> None:
    files = TreeholdBackend(tree)
    assert not await files.file_exists("/a")
    tree.write("/a", "theirs")
    with pytest.raises(treehold.AlreadyExists):
        await files.write_file("/a", b"mine")
    assert tree.read("/a").content == b"theirs"


async def test_two_tasks_that_change_one_file_lose_nothing(tree: treehold.StoreBackend) -> None:
    files = TreeholdBackend(tree)
    await files.write_file("/n", b"0")

    async def add() -> None:
        for _ in range(10):
            while True:
                value = int(await files.read_file("/n"))
                try:
                    await files.write_file("/n", str(value + 1).encode())
                except treehold.Conflict:
                    continue
                break

    await asyncio.gather(add(), add(), add())
    assert tree.read("/n").content == b"30"


async def test_last_writer_wins_where_the_caller_asks_for_it(tree: treehold.StoreBackend) -> None:
    files = TreeholdBackend(tree, on_conflict="overwrite")
    await files.write_file("/a", b"old")
    tree.write("/a", "theirs")
    await files.write_file("/a", b"mine")
    assert tree.read("/a").content == b"mine"


@pytest.mark.parametrize("path", ["/../../etc/passwd", "../../etc/passwd"])
async def test_path_cannot_leave_the_tree(tree: treehold.StoreBackend, path: str) -> None:
    files = TreeholdBackend(tree, cwd="/work")
    await files.write_file(path, b"x")
    assert tree.read("/etc/passwd").content == b"x"


@pytest.mark.parametrize("path", ["/a\0b", "/\ud800"])
async def test_path_that_is_none_is_absent_and_refused(tree: treehold.StoreBackend, path: str) -> None:
    files = TreeholdBackend(tree)
    assert not await files.file_exists(path)
    with pytest.raises(treehold.InvalidPath):
        await files.write_file(path, b"x")


async def test_content_and_lists_over_their_limits_are_refused(tree: treehold.StoreBackend) -> None:
    files = TreeholdBackend(tree, file_bytes_max=3, entries_max=1)
    with pytest.raises(treehold.TooLarge):
        await files.write_file("/a", b"four")
    tree.write_many({"/a": b"four", "/b": b""})
    with pytest.raises(treehold.TooLarge):
        await files.read_file("/a")
    for recursive in (False, True):
        with pytest.raises(treehold.TooLarge):
            await files.list_dir("/", recursive=recursive)


async def test_program_without_a_shell_is_not_found_and_with_one_runs(tree: treehold.StoreBackend) -> None:
    assert (await TreeholdBackend(tree).exec_shell(["true"])).exit_code == 127
    assert (await TreeholdBackend(tree, shell=LocalBackend()).exec_shell(["true"], cwd="/")).exit_code == 0
