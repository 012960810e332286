"""Records as rows: bounded scans, and changes that are repeated when another process was faster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from pydantic import BaseModel

from treehold import Batch, Row, Store
from treehold.agentscope._keys import Space
from treehold.errors import Conflict, Corrupt, TooLarge

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

ATTEMPTS_MAX = 64
"""How often a change is tried before its conflict is raised. Each failure means that another writer got through."""

PAGE_ROWS = 1000
"""How many rows one read of the store fetches."""


def decoded(kind: type[M], row: Row) -> M:
    """Returns the record of a row."""
    try:
        return kind.model_validate_json(row.body)
    except ValueError as error:
        raise Corrupt(f"the row of {kind.__name__} `{row.key}` is damaged; restore or delete it") from error


class Rows:
    """Reads and changes the rows of a store."""

    def __init__(self, store: Store, list_max: int) -> None:
        self.store = store
        self.list_max = list_max

    async def changed(self, plan: Callable[[Batch], Awaitable[T]]) -> T:
        """Commits what `plan` puts into a batch, and plans anew if a row that it required has changed since."""
        result, _ = await self.committed(plan)
        return result

    async def committed(self, plan: Callable[[Batch], Awaitable[T]]) -> tuple[T, list[int]]:
        """Does what `changed` does, and returns the versions of the batch's puts too."""
        attempt = 1
        while True:
            batch = Batch()
            result = await plan(batch)
            if len(batch) == 0:
                return result, []
            try:
                return result, await self.store.acommit(batch)
            except Conflict:
                if attempt == ATTEMPTS_MAX:
                    raise
            attempt += 1

    async def keys(self, space: Space, *, prefix: str = "") -> list[str]:
        """Returns every key of a namespace, or raises `TooLarge`."""
        return [row.key for row in await self._all(space, prefix, with_values=False)]

    async def scan(self, space: Space, *, prefix: str = "") -> list[Row]:
        """Returns every row of a namespace, or raises `TooLarge`."""
        return await self._all(space, prefix, with_values=True)

    async def get_many(self, space: Space, keys: list[str]) -> list[Row]:
        """Returns the rows of the keys that exist, in the order of the keys."""
        found: list[Row] = []
        for start in range(0, len(keys), PAGE_ROWS):
            rows = await self.store.aget_many(space, keys[start : start + PAGE_ROWS])
            found.extend(row for row in rows if row is not None)
        return found

    async def _all(self, space: Space, prefix: str, *, with_values: bool) -> list[Row]:
        found: list[Row] = []
        after: str | None = None
        while True:
            page = await self.store.ascan(space, prefix=prefix, after=after, limit=PAGE_ROWS, with_values=with_values)
            found.extend(page.rows)
            if len(found) > self.list_max:
                raise TooLarge(f"a list has over {self.list_max} records; delete old ones, or open the storage with a higher `list_max`")
            if page.next is None:
                return found
            after = page.next
