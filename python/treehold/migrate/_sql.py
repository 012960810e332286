"""Reads the tables of LangGraph's SQLite and PostgreSQL stores and savers.

A database opened here is read in one read-only transaction, so a move copies one moment, and cannot change the source.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from treehold import Corrupt, Error, InvalidArgument, NotFound, Unavailable, Unsupported

if TYPE_CHECKING:
    from psycopg import Connection

ROWS_AHEAD = 50
"""How many rows PostgreSQL sends at once."""


@contextmanager
def foreign_errors(name: str) -> Generator[None, None, None]:
    """Turns the errors of the databases into ours."""
    try:
        yield
    except Error:
        raise
    except sqlite3.Error as error:
        text = str(error)
        if "not a database" in text or "malformed" in text:
            raise Corrupt(f"{name} is not an intact SQLite database: {text}") from error
        if "no such table" in text or "no such column" in text:
            raise NotFound(f"{name} has no tables of LangGraph ({text}); name the file of the store or saver") from error
        raise Unavailable(f"{name} cannot be used: {text}") from error
    except Exception as error:
        if not type(error).__module__.startswith("psycopg"):
            raise
        if type(error).__name__ in ("UndefinedTable", "UndefinedColumn"):
            message = f"{name} has no tables of LangGraph; name the database and schema of the store or saver"
            raise NotFound(message) from error
        raise Unavailable(f"{name} cannot be used: {error}") from error


class Database(ABC):
    """A connection for reading. Statements mark parameters by `?`."""

    name: str

    @abstractmethod
    def stream(self, statement: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Reads rows one after the other."""

    def select(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Reads all rows."""
        return list(self.stream(statement, parameters))

    @abstractmethod
    def columns(self, table: str) -> list[str]:
        """Returns the names of the columns of a table; none if there is no such table."""


class SqliteDatabase(Database):
    """An SQLite database."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self.connection = connection
        self.name = name

    def stream(self, statement: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        with foreign_errors(self.name):
            cursor = self.connection.cursor()
            cursor.row_factory = None
            try:
                yield from cursor.execute(statement, tuple(parameters))
            finally:
                cursor.close()

    def columns(self, table: str) -> list[str]:
        return [row[0] for row in self.stream("SELECT name FROM pragma_table_info(?)", [table])]


class PostgresDatabase(Database):
    """A PostgreSQL database."""

    def __init__(self, connection: Connection[Any], name: str) -> None:
        self.connection = connection
        self.name = name
        self._cursors = 0

    def stream(self, statement: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        from psycopg.rows import tuple_row

        self._cursors += 1
        name = f"treehold_{self._cursors}"
        with foreign_errors(self.name):
            cursor = self.connection.cursor(name, row_factory=tuple_row, withhold=self.connection.autocommit)
            with cursor:
                cursor.itersize = ROWS_AHEAD
                cursor.execute(cast("Any", statement.replace("?", "%s")), list(parameters))
                yield from cursor

    def select(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        from psycopg.rows import tuple_row

        with foreign_errors(self.name), self.connection.cursor(row_factory=tuple_row) as cursor:
            return cursor.execute(cast("Any", statement.replace("?", "%s")), list(parameters)).fetchall()

    def columns(self, table: str) -> list[str]:
        rows = self.select(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped", [table]
        )
        return [row[0] for row in rows]


def is_postgres(place: str) -> bool:
    """Returns whether a place is the URL of a PostgreSQL database."""
    return place.startswith(("postgres://", "postgresql://"))


def sqlite_path(place: str) -> str:
    """Returns the path of a place that is an SQLite file."""
    path = place.removeprefix("sqlite:")
    if not path or "\x00" in path or path == ":memory:" or "://" in path:
        raise InvalidArgument(f"`{place}` is no place of a LangGraph store; use the path of a file or `postgres://…`")
    return path


def name_of(place: str) -> str:
    """Returns a place without its user and password."""
    if not is_postgres(place):
        return sqlite_path(place)
    try:
        parts = urlsplit(place)
        return f"postgres://{parts.hostname or ''}{parts.path}"
    except ValueError:
        raise InvalidArgument("the URL of the database cannot be read; use `postgres://user@host:port/database`") from None


@contextmanager
def reading(place: str) -> Generator[Database, None, None]:
    """Opens a database in one read-only transaction."""
    name = name_of(place)
    if is_postgres(place):
        with postgres(place) as connection:
            from psycopg import IsolationLevel

            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            yield PostgresDatabase(connection, name)
            with foreign_errors(name):
                connection.rollback()
        return
    path = Path(sqlite_path(place)).absolute()
    if not path.is_file():
        raise NotFound(f"{name} is not a file; name the file of the store or saver")
    with foreign_errors(name):
        file = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)
    try:
        with foreign_errors(name):
            file.execute("BEGIN")
            file.execute("SELECT count(*) FROM sqlite_master").fetchone()
        yield SqliteDatabase(file, name)
    finally:
        file.close()


@contextmanager
def postgres(place: str, *, autocommit: bool = False) -> Generator[Connection[Any], None, None]:
    """Opens a PostgreSQL database."""
    try:
        from psycopg import Connection
        from psycopg.rows import dict_row
    except ImportError as error:
        raise Unsupported("PostgreSQL needs psycopg; pip install langgraph-checkpoint-postgres 'psycopg[binary]'") from error
    with foreign_errors(name_of(place)):
        connection: Connection[Any] = Connection.connect(
            place, autocommit=autocommit, prepare_threshold=0, row_factory=cast("Any", dict_row)
        )
    try:
        yield connection
    finally:
        connection.close()
