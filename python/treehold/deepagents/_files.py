"""Files as LangGraph stores them: a dict with text, or with bytes in base64.

deepagents keeps such dicts in the `files` channel of a graph and as items of a `BaseStore`. Its oldest format has a list of
lines instead of text; it is still read.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, cast

from deepagents.backends.protocol import FileData

Stored = Mapping[str, Any]
"""A file as it is stored."""


def text_of(stored: Stored) -> str:
    """Returns the content as it is stored: the text, or base64.

    Raises `TypeError` for content that deepagents never wrote.
    """
    content = stored["content"]
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        lines = cast("list[object]", content)
        if all(isinstance(line, str) for line in lines):
            return "\n".join(cast("list[str]", lines))
    kind = type(cast("object", content)).__name__
    raise TypeError(f"File content must be a string or a legacy list of strings, got {kind}.")


def is_binary(stored: Stored) -> bool:
    """Tells whether the content is stored in base64."""
    return stored.get("encoding") == "base64"


def bytes_of(stored: Stored) -> bytes:
    """Returns the content of the file. Raises `ValueError` if base64 is malformed."""
    text = text_of(stored)
    return base64.b64decode(text, validate=True) if is_binary(stored) else text.encode("utf-8", "replace")


def size_of(stored: Stored) -> int:
    """Returns the size of the file in bytes."""
    text = text_of(stored)
    if is_binary(stored):
        return len(text) * 3 // 4 - text.count("=", -2)
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def file_data(stored: Stored) -> FileData:
    """Returns a file in the current format."""
    data = FileData(content=text_of(stored), encoding=str(stored.get("encoding", "utf-8")))
    created_at, modified_at = stored.get("created_at"), stored.get("modified_at")
    if isinstance(created_at, str):
        data["created_at"] = created_at
    if isinstance(modified_at, str):
        data["modified_at"] = modified_at
    return data


def new_file(content: str, before: Stored | None, encoding: str = "utf-8") -> dict[str, Any]:
    """Makes a file that replaces `before` and keeps its creation time."""
    now = datetime.now(timezone.utc).isoformat()
    made: dict[str, Any] = {"content": content, "encoding": encoding}
    if before is None:
        made["created_at"] = now
    elif "created_at" in before:
        made["created_at"] = before["created_at"]
    made["modified_at"] = now
    return made


def uploaded(content: bytes, before: Stored | None) -> dict[str, Any]:
    """Makes a file of bytes: text if they are UTF-8, otherwise base64."""
    text, encoding = encoded(content)
    made = new_file(text, before, encoding)
    made.setdefault("created_at", made["modified_at"])
    return made


def encoded(content: bytes) -> tuple[str, str]:
    """Returns bytes as text and its encoding."""
    try:
        return content.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(content).decode("ascii"), "base64"
