"""Operations on one file that LangGraph stores, for the state of a graph and for any `BaseStore`.

They are pure: they take the stored file, or `None`, and return what to store and what to answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deepagents.backends.protocol import EditResult, FileDownloadResponse, ReadResult

import treehold
from treehold.deepagents import _files, _text


def read(stored: _files.Stored | None, path: str, offset: int, limit: int) -> ReadResult:
    """Reads a window of lines, or all of an image or document."""
    if stored is None:
        return ReadResult(error=f"File '{path}' not found")
    data = _files.file_data(stored)
    return ReadResult(file_data=data) if _text.is_media(path) else _text.window(data, offset, limit)


def edit(
    stored: _files.Stored | None,
    path: str,
    old: str,
    new: str,
    replace_all: bool,
) -> tuple[dict[str, Any] | None, EditResult]:
    """Replaces text. Line endings match as they are shown, and a replaced text keeps those of the file."""
    if stored is None:
        return None, EditResult(error=f"Error: File '{path}' not found")
    if _files.is_binary(stored):
        return None, EditResult(error=_text.BINARY_EDIT)
    if not old:
        return None, EditResult(error=_text.EMPTY_OLD_STRING)
    content = _files.text_of(stored)
    try:
        changed, replacements = treehold.edit_text(content, old, new, replace_all)
    except treehold.Error as error:
        if error.code not in ("no_match", "ambiguous"):
            return None, EditResult(error=f"Error editing file '{path}': {error.message}")
        return None, EditResult(error=_text.why_not_replaced(content, old, new, replace_all))
    except UnicodeEncodeError as error:
        return None, EditResult(error=f"Error editing file '{path}': {error}")
    return _files.new_file(changed, stored, str(stored.get("encoding", "utf-8"))), EditResult(path=path, occurrences=replacements)


def download(stored: _files.Stored | None, path: str) -> FileDownloadResponse:
    """Returns the bytes of a file."""
    if stored is None:
        return FileDownloadResponse(path=path, error="file_not_found")
    try:
        return FileDownloadResponse(path=path, content=_files.bytes_of(stored))
    except ValueError:
        return FileDownloadResponse(path=path, error="the stored content is not base64; write the file again")


def beneath(paths: Iterable[str], path: str) -> list[str]:
    """Returns the paths that deleting `path` removes: the file, and everything beneath the directory."""
    base = path.rstrip("/")
    return [each for each in paths if each == base or each.startswith(base + "/")]
