"""agentscope 2 on treehold: its storage, the state of its agents, and the files of its workspaces.

>>> import asyncio
>>> import treehold
>>> from treehold.agentscope import TreeholdBackend
>>> async def main() -> bytes:
...     store = treehold.Store.open("memory:")
...     files = TreeholdBackend(treehold.StoreBackend(store, ("files", "ann")))
...     await files.write_file("/notes.md", b"hello")
...     return await files.read_file("/notes.md")
>>> asyncio.run(main())
b'hello'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treehold.agentscope.backend import TreeholdBackend
from treehold.agentscope.errors import NameTaken, SessionNotFound, SOPRunNotFound

if TYPE_CHECKING:
    from treehold.agentscope.storage import TreeholdStorage
    from treehold.agentscope.workspace import TreeholdWorkspace

__all__ = ["NameTaken", "SOPRunNotFound", "SessionNotFound", "TreeholdBackend", "TreeholdStorage", "TreeholdWorkspace"]


def __getattr__(name: str) -> object:
    """Loads what is asked for, because agentscope's storage needs its `service` extra and its workspaces take time to import."""
    if name == "TreeholdStorage":
        from treehold.agentscope.storage import TreeholdStorage

        return TreeholdStorage
    if name == "TreeholdWorkspace":
        from treehold.agentscope.workspace import TreeholdWorkspace

        return TreeholdWorkspace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
