"""The messages of a session, newest first."""

from __future__ import annotations

import warnings
from typing import Any

from agentscope.message import Msg

from treehold import Batch
from treehold.agentscope._core import Core, encoded
from treehold.agentscope._keys import Space, checked
from treehold.agentscope._rows import PAGE_ROWS, decoded
from treehold.errors import InvalidArgument

_LAST = 10**16 - 1
"""The position before the first message. Positions count down, so that a scan meets the newest message first."""


class Messages(Core):
    """The part of the storage for messages."""

    def _message_spaces(self, user_id: str, session_id: str) -> tuple[Space, Space]:
        session = checked("session id", session_id)
        return self._layout.user(user_id, "messages", session), self._layout.user(user_id, "message-positions", session)

    async def upsert_message(self, user_id: str, session_id: str, msg: Msg) -> None:
        """Replaces the message with the same id where it is, or appends it."""
        space, positions = self._message_spaces(user_id, session_id)
        identity, body = checked("message id", msg.id), encoded(msg)

        async def plan(batch: Batch) -> None:
            position = await self._store.aget(positions, identity)
            if position is not None:
                batch.require(positions, identity, position.version).put(space, position.body.decode(), body)
                return
            newest = await self._store.ascan(space, limit=1, with_values=False)
            key = f"{(int(newest.rows[0].key) if newest.rows else _LAST) - 1:016d}"
            batch.require(positions, identity, None).require(space, key, None)
            batch.put(space, key, body).put(positions, identity, key.encode())

        await self._rows.changed(plan)

    async def delete_message(self, user_id: str, session_id: str, message_id: str) -> bool:
        """Deletes a message and returns whether it existed."""
        space, positions = self._message_spaces(user_id, session_id)

        async def plan(batch: Batch) -> bool:
            position = await self._row(positions, message_id)
            if position is None:
                return False
            batch.require(positions, message_id, position.version)
            batch.delete(positions, message_id).delete(space, position.body.decode())
            return True

        return await self._rows.changed(plan)

    async def get_message(self, user_id: str, session_id: str, message_id: str) -> Msg | None:
        """Returns a message, if it exists."""
        space, positions = self._message_spaces(user_id, session_id)
        position = await self._row(positions, message_id)
        return None if position is None else await self._get(Msg, space, position.body.decode())

    async def list_messages(
        self,
        user_id: str,
        session_id: str,
        limit: int = 50,
        before: str | None = None,
        **kwargs: Any,
    ) -> tuple[list[Msg], bool]:
        """Returns the newest messages, or those before a message, oldest first, and whether there are older ones."""
        if "offset" in kwargs:
            warnings.warn("`offset` is ignored; pass the id of a message as `before`", DeprecationWarning, stacklevel=2)
        if limit < 0:
            raise InvalidArgument(f"`limit` is {limit}; use 0 or more")
        if limit > self._rows.list_max:
            raise InvalidArgument(f"`limit` is {limit}; use at most {self._rows.list_max} and page with `before`")
        space, positions = self._message_spaces(user_id, session_id)
        after: str | None = None
        if before is not None:
            position = await self._row(positions, before)
            if position is None:
                return [], False
            after = position.body.decode()
        found: list[Msg] = []
        while True:
            page = await self._store.ascan(space, after=after, limit=min(limit + 1 - len(found), PAGE_ROWS))
            found.extend(decoded(Msg, row) for row in page.rows)
            if len(found) > limit or page.next is None:
                break
            after = page.next
        return found[:limit][::-1], len(found) > limit
