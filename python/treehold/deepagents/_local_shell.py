"""A directory of this machine, and its shell."""

from __future__ import annotations

from deepagents.backends import LocalShellBackend as TheirLocalShellBackend

from treehold.deepagents._filesystem import FilesystemBackend


class LocalShellBackend(FilesystemBackend, TheirLocalShellBackend):
    """Reads and writes files as `FilesystemBackend` does, and executes commands as deepagents' class of this name does."""
