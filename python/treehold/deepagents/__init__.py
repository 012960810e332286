"""deepagents' backends on trees of treehold.

Each class replaces the class of the same name in `deepagents.backends`: it has the same constructor, is a subclass of it, and
answers with the same results and texts. Replacing the import is the whole change:

    from treehold.deepagents import CompositeBackend, FilesystemBackend, StateBackend, StoreBackend

`docs/coming-from-deepagents.md` lists what differs.
"""

from treehold.deepagents._composite import CompositeBackend
from treehold.deepagents._filesystem import FilesystemBackend
from treehold.deepagents._local_shell import LocalShellBackend
from treehold.deepagents._state import StateBackend
from treehold.deepagents._store import StoreBackend

__all__ = ["CompositeBackend", "FilesystemBackend", "LocalShellBackend", "StateBackend", "StoreBackend"]
