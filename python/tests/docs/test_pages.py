"""Runs the blocks of the pages about Python, in order, in an empty directory."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[3] / "docs"

USUAL_PORT = "7777"
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    line: int
    language: str
    file: str | None
    text: str


def blocks(page: str) -> list[Block]:
    """Returns the blocks of a page."""
    found = [Block(page.count("\n", 0, at.start()) + 1, at[1], at[2], at[3]) for at in BLOCK.finditer(page)]
    assert 2 * len(found) == len(re.findall(r"^```", page, re.MULTILINE)), "a block is not closed, or has no language"
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs commands in the directory. Those in the background end with the test."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, arguments in {"treehold": " -m treehold", "python": ""}.items():
        command = programs / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        command.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    here = tmp_path / "empty"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(home))
    for name in [name for name in os.environ if name.startswith("TREEHOLD_")]:
        monkeypatch.delenv(name)
    background: list[subprocess.Popen[bytes]] = []

    def run(text: str, port: int) -> str:
        if text.rstrip().endswith("&"):
            line = f"exec {text.rstrip().removesuffix('&')}"
            with open(tmp_path / "server.log", "wb") as log:
                server = subprocess.Popen(["bash", "-c", line], stdout=log, stderr=log, start_new_session=True)
            background.append(server)
            until = time.monotonic() + 60
            while server.poll() is None and time.monotonic() < until:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    return ""
            raise AssertionError(f"the server does not answer: {(tmp_path / 'server.log').read_text()}")
        done = subprocess.run(["bash", "-ec", text], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield run
    for server in background:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=60)


class Reader:
    """Does what a page says."""

    def __init__(self, page: Path, shell: Callable[[str, int], str], names: dict[str, Any]) -> None:
        self.page = page
        self.shell = shell
        self.names = {"__name__": page.stem, **names}
        self.loop = asyncio.new_event_loop()
        self.port = free_port()
        self.printed: str | None = None

    def read(self, languages: set[str]) -> set[str]:
        """Runs the blocks in some languages. Returns the languages of all blocks."""
        kinds: set[str] = set()
        try:
            for block in blocks(self.page.read_text(encoding="utf-8")):
                kinds.add(block.language)
                if block.language in languages:
                    self.do(block, block.text.replace(USUAL_PORT, str(self.port)), f"{self.page.name}:{block.line}")
        finally:
            self.loop.close()
        return kinds

    def do(self, block: Block, text: str, where: str) -> None:
        if block.language == "text":
            assert self.printed is not None and _lines(self.printed) == _lines(text), f"{where} shows something else: {self.printed}"
            self.printed = None
        elif block.language == "toml":
            assert block.file is not None, where
            Path(block.file).write_text(text, encoding="utf-8")
        elif block.language == "python":
            self.printed = self.run(text, where)
        elif block.language == "sh":
            self.printed = self.shell(text, self.port)
        else:
            raise AssertionError(f"{where} is in {block.language}, which the test cannot run")

    def run(self, text: str, where: str) -> str:
        """Runs Python, which may await at its top. Returns what it prints."""
        code = compile(text, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            if code.co_flags & inspect.CO_COROUTINE:
                self.loop.run_until_complete(eval(code, self.names))
            else:
                exec(code, self.names)
        return output.getvalue()


class Tutorial(Reader):
    """Also requires that the page shows whatever a block prints."""

    def do(self, block: Block, text: str, where: str) -> None:
        if block.language != "text":
            assert not self.printed, f"the block before {where} prints {self.printed!r}, which the page does not show"
        super().do(block, text, where)


def test_every_block_of_the_tutorial_runs_and_prints_what_it_shows(shell: Any) -> None:
    tutorial = Tutorial(DOCS / "python-tutorial.md", shell, {})
    assert tutorial.read({"python", "sh", "text", "toml"}) == {"python", "sh", "text", "toml"}
    assert not tutorial.printed


def prepared_for_langgraph() -> dict[str, Any]:
    Path("treehold.toml").write_text('data = "data"\n\n[threads]\ndurability = "exit"\n', encoding="utf-8")
    return {}


def prepared_for_sessions() -> dict[str, Any]:
    Path("treehold.toml").write_text('data = "data"\n', encoding="utf-8")
    return {}


def prepared_for_migration() -> dict[str, Any]:
    pytest.importorskip("langgraph.checkpoint.sqlite")
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.store.sqlite import SqliteStore

    with SqliteStore.from_conn_string("memories.db") as store:
        store.setup()
        store.put(("ada",), "tea", {"kind": "green"})
    with SqliteSaver.from_conn_string("checkpoints.db") as saver:
        saver.put({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, empty_checkpoint(), {}, {})
    return {}


def prepared_for_agentscope() -> dict[str, Any]:
    pytest.importorskip("agentscope")
    sys.path.insert(0, str(DOCS.parent / "python" / "examples"))
    try:
        from agentscope_two_processes import ScriptedModel
    finally:
        sys.path.pop(0)
    return {"model": ScriptedModel(["The stove is on the list."])}


PAGES: dict[str, tuple[Callable[[], dict[str, Any]], set[str], int]] = {
    "agentscope-python.md": (prepared_for_agentscope, {"python", "text"}, 4),
    "coming-from-deepagents.md": (dict, {"python", "text"}, 1),
    "langgraph.md": (prepared_for_langgraph, {"python", "text"}, 6),
    "python.md": (prepared_for_sessions, {"python", "text"}, 6),
    "python-migrate.md": (prepared_for_migration, {"python", "sh", "text"}, 2),
    "traces.md": (dict, {"python", "text"}, 3),
}


@pytest.mark.parametrize("name", PAGES)
def test_blocks_of_a_page_run_one_after_the_other(name: str, shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, languages, least = PAGES[name]
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "0123456789abcdef")
    page = DOCS / name
    assert sum(block.language in languages for block in blocks(page.read_text(encoding="utf-8"))) >= least
    Reader(page, shell, prepare()).read(languages)


def test_every_page_with_python_is_read_by_a_test() -> None:
    with_python = {page.name for page in DOCS.glob("*.md") if "\n```python" in page.read_text(encoding="utf-8")}
    # The reference shows signatures, not programs. Two pages show clients of HTTP, which need servers of their own.
    assert with_python - set(PAGES) == {"clients.md", "http.md", "python-reference.md", "python-tutorial.md"}


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]
