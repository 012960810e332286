"""The programs that agentscope's file tools run, on a tree instead of a disk."""

from __future__ import annotations

import argparse
import json
import posixpath
import re
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from typing import Literal, NoReturn

from agentscope.tool import ExecResult

from treehold import Backend, Entry
from treehold.errors import Error, InvalidArgument

Command = Callable[["Commands", list[str], str], Awaitable[ExecResult]]

_EPOCH = datetime.fromtimestamp(0, timezone.utc)


class _Usage(Exception):
    """The arguments of a program are wrong."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Usage(message)


def _ripgrep_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="rg", add_help=False, allow_abbrev=False)
    for name in ("--hidden", "--multiline-dotall"):
        parser.add_argument(name, action="store_true")
    for short, name in (("-U", "multiline"), ("-i", "ignore_case"), ("-l", "files"), ("-c", "count"), ("-n", "line_number")):
        parser.add_argument(short, dest=name, action="store_true")
    for short, name in (("-A", "after"), ("-B", "before"), ("-C", "context"), ("--max-columns", "columns")):
        parser.add_argument(short, dest=name, type=int, default=0)
    for short, name in (("--glob", "globs"), ("--type", "types"), ("-e", "patterns")):
        parser.add_argument(short, dest=name, action="append", default=[])
    parser.add_argument("--sort", choices=["path"])
    parser.add_argument("positional", nargs="*")
    return parser


_RIPGREP = _ripgrep_parser()


class Commands:
    """Runs `rg`, the helper of the Glob tool, and a few programs of POSIX on a tree."""

    def __init__(self, tree: Backend, *, entries_max: int) -> None:
        self.tree = tree
        self.entries_max = entries_max

    def knows(self, command: list[str]) -> Command | None:
        """Returns the program for a command, if it is one of these."""
        if not command:
            return None
        if len(command) > 1 and posixpath.basename(command[1].replace("\\", "/")) == "_glob_helper.py":
            return Commands._glob
        return _PROGRAMS.get(command[0])

    async def run(self, program: Command, command: list[str], cwd: str) -> ExecResult:
        """Runs a program. Its errors are those of a process: an exit code and a text."""
        try:
            return await program(self, command[1:], cwd)
        except (_Usage, Error) as error:
            return _failed(2, f"{command[0]}: {error}")

    async def _pwd(self, _arguments: list[str], cwd: str) -> ExecResult:
        return _done(cwd + "\n")

    async def _printenv(self, arguments: list[str], _cwd: str) -> ExecResult:
        return _done("/\n") if arguments == ["HOME"] else _failed(1, "")

    async def _mkdir(self, arguments: list[str], cwd: str) -> ExecResult:
        if not arguments or arguments[0] != "-p" or len(arguments) < 2:
            raise _Usage("only `mkdir -p DIRECTORY…` works on a tree")
        for path in arguments[1:]:
            await self.tree.acreate_dir(_absolute(path, cwd))
        return _done("")

    async def _glob(self, arguments: list[str], cwd: str) -> ExecResult:
        parser = _Parser(prog="glob", add_help=False)
        parser.add_argument("--pattern", required=True)
        parser.add_argument("--base-dir", required=True)
        options = parser.parse_args(arguments[1:])
        base = _absolute(str(options.base_dir), cwd)
        parts = [part for part in re.split(r"[\\/]+", str(options.pattern)) if part not in ("", ".")]
        if not parts or not await self.tree.aexists(base):
            return _done("[]")
        # The helper knows `*`, `?` and `**` only, and `**` at the end means every file beneath.
        # A leading slash keeps a bare name from matching in directories beneath.
        pattern = "/" + "/".join(parts if parts[-1] != "**" else [*parts, "*"])
        pattern = re.sub(r"[\[\]{}!\\]", lambda special: "\\" + special.group(), pattern)
        found: list[Entry] = []
        after: str | None = None
        while True:
            page = await self.tree.aglob(pattern, base, limit=min(self.entries_max + 1, 10_000), after=after, hidden=True, ignored=True)
            found.extend(page.entries)
            if len(found) > self.entries_max:
                raise InvalidArgument(f"over {self.entries_max} files match; use a narrower pattern or directory")
            if page.next is None:
                break
            after = page.next
        found.sort(key=lambda entry: (entry.modified_at or _EPOCH), reverse=True)
        return _done(json.dumps([entry.path for entry in found]))

    async def _ripgrep(self, arguments: list[str], cwd: str) -> ExecResult:
        head, tail = arguments, list[str]()
        if "--" in arguments:
            split = len(arguments) - 1 - arguments[::-1].index("--")
            head, tail = arguments[:split], arguments[split + 1 :]
        # A pattern that follows `-e` may begin with a dash, which argparse takes only as `-e=…`.
        patterns: list[str] = []
        while "-e" in head[:-1]:
            at = head.index("-e")
            patterns.append(head[at + 1])
            head = head[:at] + head[at + 2 :]
        options = _RIPGREP.parse_args(head)
        words = [*options.positional, *tail]
        if not patterns:
            if not words:
                raise _Usage("a pattern is missing")
            patterns.append(words.pop(0))
        path = _absolute(words[0] if words else cwd, cwd)
        if len(words) > 1 or len(patterns) > 1:
            raise _Usage("one pattern and one path work on a tree")
        entry = await self.tree.astat(path)
        regex = f"(?s){patterns[0]}" if options.multiline and options.multiline_dotall else patterns[0]
        before, after = int(options.before or options.context), int(options.after or options.context)
        globs: list[str] = options.globs
        output: Literal["content", "files", "counts"] = "files" if options.files else "counts" if options.count else "content"
        lines: list[str] = []
        cursor: str | None = None
        while True:
            result = await self.tree.agrep(
                regex,
                path,
                regex=True,
                case="insensitive" if options.ignore_case else "sensitive",
                multiline=bool(options.multiline),
                before=before if output == "content" else 0,
                after=after if output == "content" else 0,
                include=[glob for glob in globs if not glob.startswith("!")],
                exclude=[glob[1:] for glob in globs if glob.startswith("!")],
                types=options.types,
                output=output,
                hidden=bool(options.hidden),
                cursor=cursor,
            )
            for file in result.files:
                prefix = "" if not entry.is_dir else file.path
                if options.files:
                    lines.append(file.path)
                elif options.count:
                    lines.append(f"{prefix}:{file.count}" if prefix else str(file.count))
                else:
                    last: int | None = None
                    for line in file.lines:
                        if (before or after) and lines and (last is None or line.line > last + 1):
                            lines.append("--")
                        last = line.line
                        mark = ":" if line.is_match else "-"
                        text = line.text.rstrip("\r\n")
                        if options.columns and len(text.encode()) > options.columns:
                            text = "[Omitted long matching line]" if line.is_match else "[Omitted long context line]"
                        number = f"{line.line}{mark}" if options.line_number else ""
                        lines.append(f"{prefix}{mark if prefix else ''}{number}{text}")
            if len(lines) > self.entries_max:
                raise InvalidArgument(f"over {self.entries_max} lines match; use a narrower pattern or directory")
            if result.next is None:
                break
            cursor = result.next
        return _done("".join(line + "\n" for line in lines), code=0 if lines else 1)


_PROGRAMS: dict[str, Command] = {
    "mkdir": Commands._mkdir,  # pyright: ignore[reportPrivateUsage]
    "printenv": Commands._printenv,  # pyright: ignore[reportPrivateUsage]
    "pwd": Commands._pwd,  # pyright: ignore[reportPrivateUsage]
    "rg": Commands._ripgrep,  # pyright: ignore[reportPrivateUsage]
}


def _absolute(path: str, cwd: str) -> str:
    return posixpath.normpath("/" + posixpath.join(cwd, path).lstrip("/"))


def _done(text: str, *, code: int = 0) -> ExecResult:
    return ExecResult(exit_code=code, stdout=text.encode("utf-8", "replace"), stderr=b"")


def _failed(code: int, text: str) -> ExecResult:
    return ExecResult(exit_code=code, stdout=b"", stderr=text.encode("utf-8", "replace"))
