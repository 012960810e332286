"""Searches with deepagents' rules on a native tree.

A pattern without `/` matches names at any depth, also in directories whose names start with a dot, but no name that starts
with a dot unless the pattern does. Any other pattern is anchored at the search root, and a segment that starts with a dot
matches only a segment of the pattern that does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from deepagents.backends.protocol import ContextLine, FileInfo, GlobResult, GrepMatch, GrepResult
from deepagents.backends.utils import compile_grep_include_glob

import treehold

LIMIT: Final = 1_000_000
"""How many entries or matches are asked for at once. Longer results are read in several parts."""


class InvalidPattern(Exception):
    """deepagents' matcher refuses a pattern."""


class Pattern:
    """A glob, as the native search takes it."""

    def __init__(self, pattern: str) -> None:
        try:
            compile_grep_include_glob(pattern)
        except ValueError as error:
            raise InvalidPattern(str(error)) from error
        self.is_bare = "/" not in pattern
        # A `!` at the start is an ordinary character for deepagents.
        self.native = "\\" + pattern if pattern.startswith("!") else pattern


class Globbing:
    """One call of `glob`, in as many parts as its result needs."""

    def __init__(self, pattern: str, root: str) -> None:
        rule = Pattern(pattern)
        self.pattern = rule.native
        self.root = root
        self.options: dict[str, Any] = {"limit": LIMIT, "hidden_directories": rule.is_bare, "ignored": True, "partial": True}
        self.is_done = False
        self._entries: list[treehold.Entry] = []
        self._unreadable = False

    def add(self, page: treehold.Listing) -> None:
        """Adds a part of the result."""
        self._entries += page.entries
        self._unreadable = self._unreadable or bool(page.failures)
        self.options["after"] = page.next
        self.is_done = page.next is None

    def result(self, info: Callable[[treehold.Entry], FileInfo]) -> GlobResult:
        """Returns what was found, in path order."""
        matches = [info(entry) for entry in self._entries]
        matches.sort(key=lambda match: match["path"])
        if not self._unreadable:
            return GlobResult(matches=matches)
        result = GlobResult(matches=matches, truncated=True)
        if hasattr(result, "truncation_reason"):
            result.truncation_reason = "unreadable"
        return result


class Grepping:
    """One call of `grep`, in as many parts as its result needs."""

    def __init__(
        self,
        pattern: str,
        root: str,
        glob: str | None,
        *,
        outer: Callable[[str], str],
        max_count: int | None,
        context_lines: int,
        hidden: bool,
        ignored: bool,
        size_max_bytes: int | None,
    ) -> None:
        if context_lines < 0:
            raise ValueError("context_lines must be non-negative")
        rule = Pattern(glob) if glob else None
        self.pattern = pattern
        self.root = root
        self._outer = outer
        self._max_count = max_count
        self._context_lines = context_lines
        self.options: dict[str, Any] = {
            "before": context_lines,
            "after": context_lines,
            "include": [rule.native] if rule else [],
            "hidden": hidden and rule is None,
            "hidden_directories": hidden and rule is not None and rule.is_bare,
            "ignored": ignored,
            "size_max_bytes": size_max_bytes,
            "matches_max": LIMIT if max_count is None else max_count + 1,
            "partial": True,
        }
        self.is_done = False
        self._matches: list[GrepMatch] = []
        self._failures: list[str] = []

    def add(self, page: treehold.GrepResult) -> None:
        """Adds a part of the result."""
        for file in page.files:
            path = self._outer(file.path)
            if self._context_lines:
                self._matches += with_context(path, file.lines, self._context_lines)
            else:
                self._matches += [GrepMatch(path=path, line=line.line, text=line.text) for line in file.lines if line.is_match]
        self._failures += [f"- {self._outer(failure.path)}: {failure.message}" for failure in page.failures]
        self.options["cursor"] = page.next
        self.is_done = page.next is None or (self._max_count is not None and len(self._matches) > self._max_count)

    def result(self) -> GrepResult:
        """Returns what was found, in path order."""
        matches = self._matches
        truncated = self._max_count is not None and len(matches) > self._max_count
        if truncated:
            matches = matches[: self._max_count]
        error = "One or more files could not be fully searched:\n" + "\n".join(self._failures) if self._failures else None
        return GrepResult(error=error, matches=matches, truncated=truncated)


def with_context(path: str, lines: Sequence[treehold.GrepLine], count: int) -> list[GrepMatch]:
    """Gives each match of a file the lines around it that are no matches themselves."""
    matches: list[GrepMatch] = []
    around = [ContextLine(line=line.line, text=line.text) for line in lines if not line.is_match]
    start = 0
    for found in lines:
        if not found.is_match:
            continue
        while start < len(around) and around[start]["line"] < found.line - count:
            start += 1
        before: list[ContextLine] = []
        after: list[ContextLine] = []
        for beside in around[start:]:
            if beside["line"] > found.line + count:
                break
            (before if beside["line"] < found.line else after).append(beside)
        matches.append({"path": path, "line": found.line, "text": found.text, "context_before": before, "context_after": after})
    return matches
