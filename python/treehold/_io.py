"""Runs the steps of adapters on a store, synchronously or on an event loop.

Whatever has to be done both ways is written once, as a generator that yields requests and receives their results. `run` answers
a request by a blocking call, `arun` by awaiting its twin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from treehold import Batch, Checkpoint, JsonFilter, JsonRows, Page, Row, Session, Store

T = TypeVar("T")

Namespace: TypeAlias = tuple[str, ...]


class Request(Protocol):
    """Something to ask of a store."""

    def answer(self, store: Store) -> Any:
        """Answers by a blocking call."""
        ...

    async def aanswer(self, store: Store) -> Any:
        """Answers without blocking the event loop."""
        ...


Steps: TypeAlias = Generator[Request, Any, T]


@dataclass(frozen=True, slots=True)
class GetMany:
    """Reads rows of one namespace as of one moment, in the order of their keys; `None` for each that is absent."""

    namespace: Namespace
    keys: Sequence[str]
    with_values: bool = True

    def answer(self, store: Store) -> Sequence[Row | None]:
        return store.get_many(self.namespace, list(self.keys), with_values=self.with_values)

    async def aanswer(self, store: Store) -> Sequence[Row | None]:
        return await store.aget_many(self.namespace, list(self.keys), with_values=self.with_values)


@dataclass(frozen=True, slots=True)
class Scan:
    """Reads a page of the rows of a namespace, in key order."""

    namespace: Namespace
    prefix: str = ""
    after: str | None = None
    limit: int = 500
    with_values: bool = True

    def answer(self, store: Store) -> Page:
        return store.scan(
            self.namespace, prefix=self.prefix, after=self.after, limit=self.limit, with_values=self.with_values
        )

    async def aanswer(self, store: Store) -> Page:
        return await store.ascan(
            self.namespace, prefix=self.prefix, after=self.after, limit=self.limit, with_values=self.with_values
        )


class FoundRows(NamedTuple):
    """A page of rows of one namespace."""

    rows: list[Row]
    next: str | None


@dataclass(frozen=True, slots=True)
class Search:
    """Reads a page of the rows of a namespace that may match a filter, in key order."""

    namespace: Namespace
    filter: JsonFilter
    after: str | None
    limit: int

    def answer(self, store: Store) -> FoundRows:
        return _found(store.json().search_rows(self.namespace, filter=self.filter, after=self._after(), limit=self.limit))

    async def aanswer(self, store: Store) -> FoundRows:
        found = store.json().asearch_rows(self.namespace, filter=self.filter, after=self._after(), limit=self.limit)
        return _found(await found)

    def _after(self) -> tuple[Namespace, str] | None:
        return None if self.after is None else (self.namespace, self.after)


def _found(found: JsonRows) -> FoundRows:
    return FoundRows([row for _, row in found.rows], None if found.next is None else found.next[1])


class NamespacePage(NamedTuple):
    """A page of namespaces."""

    namespaces: list[Namespace]
    next: Namespace | None


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Lists a page of the namespaces beneath a prefix, or of all namespaces."""

    prefix: Namespace | None
    after: Namespace | None = None
    limit: int = 1000

    def answer(self, store: Store) -> NamespacePage:
        return _page(*store.namespaces(prefix=self.prefix, after=self.after, limit=self.limit))

    async def aanswer(self, store: Store) -> NamespacePage:
        return _page(*await store.anamespaces(prefix=self.prefix, after=self.after, limit=self.limit))


def _page(namespaces: list[Namespace], has_more: bool) -> NamespacePage:
    return NamespacePage(namespaces, namespaces[-1] if has_more else None)


@dataclass(frozen=True, slots=True)
class Commit:
    """Commits a batch, all or nothing, and returns the versions of its puts."""

    batch: Batch

    def answer(self, store: Store) -> list[int]:
        return store.commit(self.batch)

    async def aanswer(self, store: Store) -> list[int]:
        return await store.acommit(self.batch)


@dataclass(frozen=True, slots=True)
class CommitWithFiles:
    """Commits a batch together with the files of a session, as a checkpoint of its thread."""

    session: Session
    label: str
    metadata: dict[str, str]
    batch: Batch

    def answer(self, store: Store) -> Checkpoint:
        return self.session.checkpoint(self.label, metadata=self.metadata, batch=self.batch)

    async def aanswer(self, store: Store) -> Checkpoint:
        return await self.session.acheckpoint(self.label, metadata=self.metadata, batch=self.batch)


@dataclass(frozen=True, slots=True)
class CurrentVersion:
    """Asks for the version of the newest commit in the partition of a namespace."""

    namespace: Namespace

    def answer(self, store: Store) -> int:
        return store.current_version(self.namespace)

    async def aanswer(self, store: Store) -> int:
        return await store.acurrent_version(self.namespace)


@dataclass(frozen=True, slots=True)
class Work:
    """Computes something. What takes long runs in a thread beside the event loop."""

    function: Callable[[], Any]
    is_long: bool

    def answer(self, store: Store) -> Any:
        return self.function()

    async def aanswer(self, store: Store) -> Any:
        return await asyncio.to_thread(self.function) if self.is_long else self.function()


def run(steps: Steps[T], store: Store) -> T:
    """Runs steps to their end with blocking calls."""
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            request = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as end:
            result: T = end.value
            return result
        answer, failure = None, None
        try:
            answer = request.answer(store)
        except Exception as error:
            failure = error


async def arun(steps: Steps[T], store: Store) -> T:
    """Runs steps to their end on the running event loop."""
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            request = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as end:
            result: T = end.value
            return result
        answer, failure = None, None
        try:
            answer = await request.aanswer(store)
        except Exception as error:
            failure = error
