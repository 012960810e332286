"""agentscope's storage on a store of treehold."""

from __future__ import annotations

from typing import Any

from agentscope.app.storage import StorageBase

from treehold import Store
from treehold.agentscope._channels import Channels
from treehold.agentscope._keys import Space
from treehold.agentscope._knowledge import Knowledge
from treehold.agentscope._library import Library
from treehold.agentscope._messages import Messages
from treehold.agentscope._sops import Procedures
from treehold.errors import InvalidArgument

__all__ = ["TreeholdStorage"]


class TreeholdStorage(Library, Procedures, Channels, Messages, Knowledge, StorageBase):
    """Credentials, agents, sessions, messages, teams, knowledge and the rest of agentscope's records as rows of a store.

    Each user has namespaces of their own, and identifiers may contain any text but NUL. Whatever belongs together is written in
    one commit, and each change requires the versions that it read, so processes that share the store lose nothing.

    `store` is a `treehold.Store`, which stays the caller's, or a URL such as `sqlite:agents.db`, which `async with` opens and
    closes. A list of over `list_max` records raises `TooLarge`.
    """

    def __init__(self, store: Store | str, *, namespace: Space = ("agentscope",), list_max: int = 100_000) -> None:
        self._url = store if isinstance(store, str) else None
        self._opened: Store | None = None if isinstance(store, str) else store
        self._options: dict[str, Any] = {"namespace": namespace, "list_max": list_max}
        if isinstance(store, Store):
            super().__init__(store, **self._options)

    @property
    def store(self) -> Store:
        """The store that holds the rows."""
        if self._opened is None:
            raise InvalidArgument("the storage is not open; use `async with storage:`")
        return self._opened

    async def __aenter__(self) -> TreeholdStorage:
        if self._opened is None and self._url is not None:
            self._opened = await Store.aopen(self._url)
            super().__init__(self._opened, **self._options)
        return self

    async def aclose(self) -> None:
        """Closes the store, if the storage opened it."""
        if self._url is not None and self._opened is not None:
            self._opened.close()
            self._opened = None
