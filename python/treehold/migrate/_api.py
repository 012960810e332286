"""What users call."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeAlias

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store.base import BaseStore

from treehold import InvalidArgument, Unsupported
from treehold.langgraph import TreeholdSaver, TreeholdStore

from ._checkpoints import CheckpointRecord, Checkpoints, MemoryCheckpoints, SqlCheckpoints, TreeholdCheckpoints
from ._engine import Progress, Report, Source, Target, copy, verify_into
from ._items import ForeignItems, ItemRecord, SqlItems, TreeholdItems
from ._sql import Database, PostgresDatabase, SqliteDatabase, foreign_errors, is_postgres, name_of, postgres, reading, sqlite_path

PAGE_RECORDS = 100
"""How many items are moved at once, in one commit for each partition."""

StoreSide: TypeAlias = "BaseStore | Source[ItemRecord]"
SaverSide: TypeAlias = "BaseCheckpointSaver[Any] | Checkpoints"
OnProgress: TypeAlias = Callable[[Progress], None]


@contextmanager
def open_store(place: str, *, writable: bool = False) -> Generator[Source[ItemRecord], None, None]:
    """Opens the store of LangGraph in an SQLite file or a PostgreSQL database.

    Args:
        place: The path of a file, or `postgres://…`.
        writable: Whether to move into it. Then it is created if need be. Otherwise it is read in one transaction, which
            keeps writers of an SQLite file without a write-ahead log waiting.
    """
    if not writable:
        with reading(place) as database:
            yield SqlItems(database)
        return
    with _writing(place) as database:
        with foreign_errors(database.name):
            store = _store_on(database)
        yield ForeignItems(store, database.name, SqlItems(database))


@contextmanager
def open_saver(place: str, *, writable: bool = False, serde: SerializerProtocol | None = None) -> Generator[Checkpoints, None, None]:
    """Opens the saver of LangGraph in an SQLite file or a PostgreSQL database.

    Args:
        place: The path of a file, or `postgres://…`.
        writable: As for `open_store`.
        serde: How values are serialized, if not as by default.
    """
    if writable:
        with _writing(place) as database:
            with foreign_errors(database.name):
                saver = _saver_on(database, serde, sets_up=True)
            yield SqlCheckpoints(saver, database)
        return
    with reading(place) as database:
        yield SqlCheckpoints(_saver_on(database, serde, sets_up=False), database)


def copy_store(
    source: StoreSide,
    target: StoreSide,
    *,
    resume: bool = False,
    dry_run: bool = False,
    verify: bool = True,
    page: int = PAGE_RECORDS,
    progress: OnProgress | None = None,
) -> Report:
    """Copies the items of one store into another, of which one is ours. Items that have expired stay behind.

    Args:
        source: A store, or what `open_store` opened.
        target: A store, or what `open_store` opened. It must be empty.
        resume: Goes on with an interrupted move: the target may hold items, if they are those of the source.
        dry_run: Reads and checks everything, and writes nothing. What cannot be moved is in the report.
        verify: Compares every item of both sides afterwards.
        page: How many items are moved at once, in one commit for each partition.
        progress: Called after every page. What it raises ends the move, which can be resumed.

    Raises:
        Conflict: The target holds items already; or an item there differs from that of the source.
        InvalidArgument: An item cannot be stored in the target, or both or neither of the sides are ours.
    """
    _set_up(target)
    reader, writer = _items(source), _writable_items(target)
    _check_sides(isinstance(reader, TreeholdItems), isinstance(writer, TreeholdItems))
    return copy(
        "items", reader, writer, resume=resume, dry_run=dry_run, verifies=verify, page=page, progress=progress
    )


def verify_store(
    source: StoreSide, target: StoreSide, *, page: int = PAGE_RECORDS, progress: OnProgress | None = None
) -> Report:
    """Compares every item of both sides. What differs is in the report."""
    reader, writer = _items(source), _comparable_items(target)
    _check_sides(isinstance(reader, TreeholdItems), isinstance(writer, TreeholdItems))
    report = Report("items", reader.name, writer.name)
    verify_into(report, reader, writer, page=page, progress=progress)
    return report


def copy_saver(
    source: SaverSide,
    target: SaverSide,
    *,
    resume: bool = False,
    dry_run: bool = False,
    verify: bool = True,
    progress: OnProgress | None = None,
) -> Report:
    """Copies the checkpoints of one saver, with their pending writes, into another, of which one is ours.

    Args:
        source: A saver, or what `open_saver` opened.
        target: A saver, or what `open_saver` opened. It must be empty.
        resume: Goes on with an interrupted move: the target may hold checkpoints, if they are those of the source.
        dry_run: Reads and checks everything, and writes nothing. What cannot be moved is in the report.
        verify: Compares every checkpoint, version, value and write of both sides afterwards.
        progress: Called after every checkpoint. What it raises ends the move, which can be resumed.

    Raises:
        Conflict: The target holds checkpoints already; or one there differs from that of the source.
        InvalidArgument: A checkpoint cannot be stored in the target, or both or neither of the sides are ours.
    """
    _set_up(target)
    reader, writer = _checkpoints(source), _checkpoints(target)
    _check_sides(isinstance(reader, TreeholdCheckpoints), isinstance(writer, TreeholdCheckpoints))
    one: Source[CheckpointRecord] = reader
    return copy(
        "checkpoints", one, writer, resume=resume, dry_run=dry_run, verifies=verify, page=1, progress=progress
    )


def verify_saver(source: SaverSide, target: SaverSide, *, progress: OnProgress | None = None) -> Report:
    """Compares every checkpoint of both sides. What differs is in the report."""
    reader, writer = _checkpoints(source), _checkpoints(target)
    _check_sides(isinstance(reader, TreeholdCheckpoints), isinstance(writer, TreeholdCheckpoints))
    report = Report("checkpoints", reader.name, writer.name)
    one: Source[CheckpointRecord] = reader
    verify_into(report, one, writer, page=1, progress=progress)
    return report


def _check_sides(is_source_ours: bool, is_target_ours: bool) -> None:
    if is_source_ours == is_target_ours:
        raise InvalidArgument("one side of a move must be treehold's and the other LangGraph's; pass one of each")


def _items(side: Any) -> Source[ItemRecord]:
    if isinstance(side, (SqlItems, ForeignItems, TreeholdItems)):
        return side
    if isinstance(side, TreeholdStore):
        return TreeholdItems(side)
    if isinstance(side, BaseStore):
        database = _database_of(side)
        if database is not None:
            return ForeignItems(side, database.name, SqlItems(database))
        if type(side).__name__.startswith("Async"):
            raise InvalidArgument(f"`{type(side).__name__}` is asynchronous only; pass `open_store(…)` of its file or URL")
        return ForeignItems(side, _name_of(side))
    raise InvalidArgument(f"`{type(side).__name__}` is not a store; pass a BaseStore or what `open_store` opened")


def _writable_items(side: Any) -> Target[ItemRecord]:
    items = _items(side)
    if not isinstance(items, Target):
        raise InvalidArgument("the target was opened for reading; pass `writable=True` to `open_store`")
    return items


def _comparable_items(side: Any) -> Target[ItemRecord]:
    items = _items(side)
    if isinstance(items, Target):
        return items
    from langgraph.store.memory import InMemoryStore

    # Only its table is read.
    return ForeignItems(InMemoryStore(), items.name, items)


def _checkpoints(side: Any) -> Checkpoints:
    if isinstance(side, Checkpoints):
        return side
    if isinstance(side, TreeholdSaver):
        return TreeholdCheckpoints(side)
    if isinstance(side, InMemorySaver):
        return MemoryCheckpoints(side)
    if isinstance(side, BaseCheckpointSaver):
        saver: BaseCheckpointSaver[Any] = side  # pyright: ignore[reportUnknownVariableType]
        database = _database_of(saver)
        if database is not None:
            return SqlCheckpoints(saver, database)
        raise InvalidArgument(f"`{type(saver).__name__}` cannot be read whole; pass `open_saver(…)` of its file or URL")
    raise InvalidArgument(f"`{type(side).__name__}` is not a saver; pass one of LangGraph's or what `open_saver` opened")


def _name_of(side: object) -> str:
    return f"a {type(side).__name__}"


def _set_up(target: Any) -> None:
    """Creates the tables of a store or saver of LangGraph that is moved into."""
    sets_up: Any = getattr(target, "setup", None)
    if sets_up is not None and getattr(target, "conn", None) is not None:
        with foreign_errors(_name_of(target)):
            sets_up()


def _database_of(side: Any) -> Database | None:
    """Returns the database of a synchronous store or saver of LangGraph."""
    connection: Any = getattr(side, "conn", None)
    name = _name_of(side)
    if isinstance(connection, sqlite3.Connection):
        return SqliteDatabase(connection, name)
    try:
        from psycopg import Connection
    except ImportError:
        return None
    if isinstance(connection, Connection):
        return PostgresDatabase(connection, name)  # pyright: ignore[reportUnknownArgumentType]
    return None


@contextmanager
def _writing(place: str) -> Generator[Database, None, None]:
    name = name_of(place)
    if is_postgres(place):
        with postgres(place, autocommit=True) as connection:
            yield PostgresDatabase(connection, name)
        return
    with foreign_errors(name):
        database = sqlite3.connect(sqlite_path(place), check_same_thread=False, isolation_level=None)
    try:
        yield SqliteDatabase(database, name)
    finally:
        database.close()


def _store_on(database: Database) -> BaseStore:
    if isinstance(database, PostgresDatabase):
        from langgraph.store.postgres import PostgresStore

        store = PostgresStore(database.connection)
        store.setup()
        return store
    if isinstance(database, SqliteDatabase):
        try:
            from langgraph.store.sqlite import SqliteStore  # pyright: ignore[reportMissingTypeStubs]
        except ImportError as error:
            raise Unsupported("SQLite needs LangGraph's package for it; pip install langgraph-checkpoint-sqlite") from error
        table = SqliteStore(database.connection)
        table.setup()
        return table
    raise AssertionError("there are two databases")


def _saver_on(database: Database, serde: SerializerProtocol | None, *, sets_up: bool) -> BaseCheckpointSaver[Any]:
    if isinstance(database, PostgresDatabase):
        from langgraph.checkpoint.postgres import PostgresSaver

        saver = PostgresSaver(database.connection, serde=serde)
        if sets_up:
            saver.setup()
        return saver
    if isinstance(database, SqliteDatabase):
        try:
            from langgraph.checkpoint.sqlite import SqliteSaver
        except ImportError as error:
            raise Unsupported("SQLite needs LangGraph's package for it; pip install langgraph-checkpoint-sqlite") from error
        table = SqliteSaver(database.connection, serde=serde)
        if sets_up:
            table.setup()
        else:
            # The tables of a source are read as they are, never created or altered.
            table.is_setup = True
            table._has_task_path = "task_path" in database.columns("writes")  # pyright: ignore[reportPrivateUsage]
        return table
    raise AssertionError("there are two databases")
