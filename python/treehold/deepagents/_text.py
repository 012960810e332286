"""Windows of lines, and the texts that deepagents shows a model.

A line ends at `\\n`; a `\\r` before it belongs to the end. What follows the last `\\n` is a line too unless it is empty. Reads,
searches and edits count lines this way. Text is shown with `\\n` alone.

The texts come from the installed deepagents where it has functions for them, because they change between versions and its
middleware and prompts rely on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from deepagents.backends import utils
from deepagents.backends.protocol import FileData, ReadResult

EMPTY_OLD_STRING: Final = str(
    getattr(utils, "EMPTY_OLD_STRING_ERROR", "Error: old_string cannot be empty. Provide the exact text to replace.")
)

BINARY_EDIT: Final = "Error: Cannot edit binary files with text replacements."

_file_type = cast("Callable[[str], str]", getattr(utils, "_get_backend_read_file_type", None) or getattr(utils, "_get_file_type"))


_types: dict[str, str] = {}
"""The kinds of files by the end of their names, as far as they were asked for."""


def _type_of(path: str) -> str:
    """Returns the kind of a file. Only the end of its name matters, so deepagents is asked once for each."""
    dot = path.rfind(".")
    if dot <= 0 or path[dot - 1] in "/." or len(path) - dot > 16:
        return _file_type(path)
    end = path[dot:]
    known = _types.get(end)
    if known is None:
        if len(_types) >= 1000:
            _types.clear()
        known = _types[end] = _file_type(path)
    return known


def is_media(path: str) -> bool:
    """Tells whether deepagents reads a file of this name as a whole, in base64, and shows it as an image or document."""
    return _type_of(path) != "text"


def is_video(path: str) -> bool:
    """Tells whether a file of this name is a video, whose size is limited."""
    return _type_of(path) == "video"


def shown(content: str) -> str:
    """Returns text as a model sees it."""
    return content.replace("\r\n", "\n") if "\r" in content else content


def count_lines(content: str) -> int:
    """Counts the lines of some content."""
    return content.count("\n") + (0 if not content or content.endswith("\n") else 1)


def bounds(offset: int, limit: int) -> tuple[int, int]:
    """Clamps a window that a model asked for to one that starts in the file and has no negative length."""
    return max(int(offset), 0), max(int(limit), 0)


def window(file_data: FileData, offset: int, limit: int) -> ReadResult:
    """Returns a window of lines of a whole text.

    A blank text is returned as it is, whatever the window, so that the caller can tell the model that it is blank.
    """
    content = file_data["content"]
    offset, limit = bounds(offset, limit)
    if not content or content.isspace():
        return ReadResult(file_data=with_content(file_data, content))
    if limit == 0:
        return ReadResult(file_data=with_content(file_data, ""), no_lines_requested=True)
    total = count_lines(content)
    if offset >= total:
        return past_the_end(offset, total)
    if offset == 0 and limit >= total:
        cut = content
    else:
        parts = content.split("\n", offset + limit)
        cut = "\n".join(parts[offset : offset + limit]) + ("\n" if len(parts) > offset + limit else "")
    return lines(with_content(file_data, shown(cut)), offset, min(limit, total - offset), total)


def lines(file_data: FileData, offset: int, count: int, total: int) -> ReadResult:
    """Makes the result of reading `count` lines after the first `offset`."""
    end = offset + count
    return ReadResult(
        file_data=file_data,
        total_lines=total,
        start_line=offset + 1,
        end_line=end,
        next_offset=end if end < total else None,
    )


def past_the_end(offset: int, total: int) -> ReadResult:
    """Makes the result of reading after the last line."""
    return ReadResult(error=f"Line offset {offset} exceeds file length ({total} lines)")


def with_content(file_data: FileData, content: str) -> FileData:
    """Copies a file with other content and the same times."""
    copy = FileData(content=content, encoding=file_data.get("encoding", "utf-8"))
    if "created_at" in file_data:
        copy["created_at"] = file_data["created_at"]
    if "modified_at" in file_data:
        copy["modified_at"] = file_data["modified_at"]
    return copy


def why_not_replaced(content: str, old: str, new: str, replace_all: bool) -> str:
    """Explains to a model why an edit was refused: nothing, or more than one place, matches."""
    refused = cast("Any", utils.perform_string_replacement(shown(content), shown(old), shown(new), replace_all))
    return refused if isinstance(refused, str) else f"Error: String not found in file: '{old}'"
