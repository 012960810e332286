"""Connection strings as LangGraph's users write them."""

from __future__ import annotations


def store_url(conn_string: str) -> str:
    """Returns the URL of a store. A path without a scheme is an SQLite file."""
    if conn_string == ":memory:":
        return "memory:"
    scheme, separator, rest = conn_string.partition(":")
    # A single letter is the drive of a path.
    if not separator or len(scheme) < 2 or not scheme.isascii() or not scheme.replace("+", "").isalnum():
        return "sqlite:" + conn_string
    return f"postgres:{rest}" if scheme == "postgresql" else conn_string
