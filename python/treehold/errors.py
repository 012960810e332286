"""The exceptions of treehold: one class for each code, and subclasses for three reasons of `treehold.traces`.

Catch `Error` for all of them. `code` is the name that the HTTP API, the tools and the command line use as well. Where Python has an
exception for the same fact, the class is one of those, too: `NotFound` is a `FileNotFoundError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

__all__ = [
    "AlreadyExists",
    "Ambiguous",
    "BadTraceId",
    "Conflict",
    "Corrupt",
    "Deadline",
    "Error",
    "ForeignTrace",
    "Internal",
    "InvalidArgument",
    "InvalidPath",
    "IsDirectory",
    "NoMatch",
    "NotADirectory",
    "NotFound",
    "PermissionDenied",
    "QuotaExceeded",
    "ReadOnly",
    "TooLarge",
    "Unavailable",
    "UnknownAgent",
    "Unsupported",
]


class Error(Exception):
    """The base of all errors of treehold."""

    code: ClassVar[str] = "internal"
    """The stable name of the kind."""

    message: str
    """What went wrong and what to do."""

    path: str | None
    """The path as the caller wrote it."""

    operation: str | None
    """The operation that failed, such as `read`."""

    current_version: int | None
    """The version that a conflict found, if something exists."""

    lines: list[int]
    """The lines, from 1, where an ambiguous text occurs."""

    change: int | None
    """Which change or condition of a batch failed, from 0."""

    applied: int
    """How many changes of a batch took effect all the same."""

    may_have_effect: bool
    """Whether the failed change may have been made. Look before you repeat it."""

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        operation: str | None = None,
        current_version: int | None = None,
        lines: Sequence[int] = (),
        change: int | None = None,
        applied: int = 0,
        may_have_effect: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.operation = operation
        self.current_version = current_version
        self.lines = list(lines)
        self.change = change
        self.applied = applied
        self.may_have_effect = may_have_effect

    @property
    def hint(self) -> str | None:
        """What to do about it: the part of the message after its first semicolon."""
        _, separator, hint = self.message.partition("; ")
        return hint if separator else None

    @property
    def is_transient(self) -> bool:
        """Whether the same call may succeed later with nothing else changed."""
        return self.code == Unavailable.code

    @property
    def occurrences(self) -> int:
        """How often an ambiguous text occurs."""
        return len(self.lines)

    def __str__(self) -> str:
        if self.path is None or f"`{self.path}`" in self.message:
            return self.message
        return f"`{self.path}`: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.__dict__)


def _restored(kind: type[Error], fields: dict[str, Any]) -> Error:
    """Makes an exception that was pickled, such as one from another process."""
    error = kind(fields["message"])
    error.__dict__.update(fields)
    return error


class NotFound(Error, FileNotFoundError):
    """Nothing exists at the path, key or id."""

    code = "not_found"


class AlreadyExists(Error, FileExistsError):
    """Something exists already and the call was to create it."""

    code = "already_exists"


class IsDirectory(Error, IsADirectoryError):
    """The path is a directory and the call needs a file."""

    code = "is_directory"


class NotADirectory(Error, NotADirectoryError):
    """The path, or one above it, is a file, and the call needs a directory."""

    code = "not_a_directory"


class InvalidPath(Error, ValueError):
    """The text is not a valid path."""

    code = "invalid_path"


class InvalidArgument(Error, ValueError):
    """An argument is outside its range or malformed."""

    code = "invalid_argument"


class Conflict(Error):
    """The content changed since the version that the caller expects."""

    code = "conflict"


class NoMatch(Error, LookupError):
    """The text to replace does not occur."""

    code = "no_match"


class Ambiguous(Error, LookupError):
    """The text to replace occurs several times although it must be unique."""

    code = "ambiguous"


class PermissionDenied(Error, PermissionError):
    """A rule or the host's permissions forbid the call."""

    code = "permission_denied"


class ReadOnly(Error, PermissionError):
    """The tree is read-only."""

    code = "read_only"


class TooLarge(Error, ValueError):
    """The content or an argument exceeds a fixed limit."""

    code = "too_large"


class QuotaExceeded(Error):
    """The change would exceed a quota."""

    code = "quota_exceeded"


class Unsupported(Error, NotImplementedError):
    """The tree or store does not support the call."""

    code = "unsupported"


class Unavailable(Error, ConnectionError):
    """The tier is temporarily unavailable. Retrying may help."""

    code = "unavailable"


class Deadline(Error, TimeoutError):
    """The call timed out. A change may have taken effect."""

    code = "deadline"


class Corrupt(Error):
    """Stored data is damaged."""

    code = "corrupt"


class Internal(Error):
    """A bug of treehold or of an engine."""

    code = "internal"


class BadTraceId(InvalidArgument):
    """The text is not the id of a trace."""


class UnknownAgent(InvalidArgument):
    """The agent or host in the id of a trace is not registered. Nothing was sent."""


class ForeignTrace(PermissionDenied):
    """The trace belongs to another user."""


_KINDS: dict[str, type[Error]] = {
    kind.code: kind
    for kind in (
        NotFound,
        AlreadyExists,
        IsDirectory,
        NotADirectory,
        InvalidPath,
        InvalidArgument,
        Conflict,
        NoMatch,
        Ambiguous,
        PermissionDenied,
        ReadOnly,
        TooLarge,
        QuotaExceeded,
        Unsupported,
        Unavailable,
        Deadline,
        Corrupt,
        Internal,
    )
}

_REASONS: dict[str | None, type[Error]] = {
    "bad_trace_id": BadTraceId,
    "foreign_trace": ForeignTrace,
    "unknown_agent": UnknownAgent,
}


def _make(  # pyright: ignore[reportUnusedFunction]  # the native module calls it
    code: str,
    message: str,
    path: str | None,
    operation: str | None,
    current_version: int | None,
    lines: list[int],
    change: int | None,
    applied: int,
    may_have_effect: bool,
    reason: str | None,
) -> Error:
    """Makes the exception for an error of the library."""
    kind, special = _KINDS.get(code, Internal), _REASONS.get(reason)
    if special is not None and issubclass(special, kind):
        kind = special
    return kind(
        message,
        path=path,
        operation=operation,
        current_version=current_version,
        lines=lines,
        change=change,
        applied=applied,
        may_have_effect=may_have_effect,
    )
