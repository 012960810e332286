"""Errors that are one of treehold's kinds and what agentscope's callers catch."""

from __future__ import annotations

from treehold.errors import AlreadyExists, NotFound

__all__ = ["NameTaken", "SOPRunNotFound", "SessionNotFound"]


class NameTaken(AlreadyExists, ValueError):
    """Another record of the user has the name already, or another channel the bot."""


class SessionNotFound(NotFound, KeyError):
    """There is no session with the id."""


class SOPRunNotFound(NotFound, KeyError):
    """There is no run with the id."""
