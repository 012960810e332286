"""What every part of the storage shares."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, TypeVar

from agentscope.app.storage import (
    AgentRecord,
    ChannelRecord,
    CredentialRecord,
    KnowledgeBaseRecord,
    KnowledgeDocumentRecord,
    MCPRecord,
    ScheduleRecord,
    SessionRecord,
    SkillRecord,
    SOPRecord,
    SOPRunRecord,
    TeamRecord,
)
from pydantic import BaseModel

from treehold import Batch, Row, Store
from treehold._io import Steps, arun
from treehold._moving import Fence, Move, is_moved, move
from treehold.agentscope._keys import Layout, Space, checked
from treehold.agentscope._rows import Rows, decoded
from treehold.errors import InvalidArgument

SHARED = ("bots", "channels", "open-documents", "schedules")
"""The kinds of rows that users share."""

M = TypeVar("M", bound=BaseModel)
R = TypeVar(
    "R",
    AgentRecord,
    ChannelRecord,
    CredentialRecord,
    KnowledgeBaseRecord,
    KnowledgeDocumentRecord,
    MCPRecord,
    ScheduleRecord,
    SessionRecord,
    SkillRecord,
    SOPRecord,
    SOPRunRecord,
    TeamRecord,
)


def utc_now() -> datetime:
    """Returns the time in UTC, without a zone, as agentscope's records have it."""
    return datetime.now(timezone.utc).replace(tzinfo=None)


def naive_utc(time: datetime) -> datetime:
    """Returns a time in UTC without a zone. A time without a zone is local time, as `datetime.now()` makes it."""
    return time.astimezone(timezone.utc).replace(tzinfo=None)


def encoded(record: BaseModel, **options: Any) -> bytes:
    """Returns the body of a record's row."""
    try:
        return record.model_dump_json(**options).encode()
    except ValueError as error:
        raise InvalidArgument(f"the {type(record).__name__} cannot be written as JSON: {error}") from error


class Core:
    """A store, the namespaces of a storage in it, and reads and writes of single records."""

    def __init__(self, store: Store, *, namespace: Space, list_max: int) -> None:
        if list_max < 1:
            raise InvalidArgument(f"`list_max` is {list_max}; use at least 1")
        self._store = store
        self._layout = Layout(namespace)
        self._rows = Rows(store, list_max)
        self._has_moved = False

    async def _all(self, kind: str) -> Space:
        """Returns a namespace that users share. Its rows, if an earlier version stored them elsewhere, are moved at the first use."""
        if not self._has_moved:
            await arun(self._move(), self._store)
            self._has_moved = True
        return self._layout.all(kind)

    def _move(self) -> Steps[None]:
        layout, fence = self._layout, Fence(self._layout.all("moving"), "all")
        moves = [Move(layout.former_all(kind), layout.all(kind)) for kind in SHARED]
        if not (yield from is_moved(moves, fence)):
            yield from move(moves, fence)

    async def _row(self, space: Space, key: str) -> Row | None:
        return await self._store.aget(space, checked("id", key))

    async def _get(self, kind: type[M], space: Space, key: str) -> M | None:
        row = await self._row(space, key)
        return None if row is None else decoded(kind, row)

    async def _list(self, kind: type[M], space: Space) -> list[M]:
        return [decoded(kind, row) for row in await self._rows.scan(space)]

    async def _stamp(self, batch: Batch, kind: type[R], space: Space, record: R, created: datetime) -> R | None:
        """Requires the present row of a record, sets the record's times, and returns the present record.

        `created` is the time of creation in UTC if the record is new. A plan that runs again must not convert it again.
        """
        row = await self._row(space, record.id)
        batch.require(space, record.id, None if row is None else row.version)
        present = None if row is None else decoded(kind, row)
        record.created_at = created if present is None else present.created_at
        record.updated_at = utc_now()
        return present

    async def _upsert(self, kind: type[R], space: Space, record: R) -> None:
        created = naive_utc(record.created_at)

        async def plan(batch: Batch) -> None:
            await self._stamp(batch, kind, space, record, created)
            batch.put(space, record.id, encoded(record))

        await self._rows.changed(plan)

    async def _delete(self, space: Space, key: str) -> bool:
        async def plan(batch: Batch) -> bool:
            row = await self._row(space, key)
            if row is None:
                return False
            batch.require(space, key, row.version).delete(space, key)
            return True

        return await self._rows.changed(plan)
