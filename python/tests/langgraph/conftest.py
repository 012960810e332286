"""Stores for the tests: in memory, SQLite, and PostgreSQL where `TREEHOLD_TEST_POSTGRES_URL` names a server."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from treehold import Store

ENGINES = ("memory", "sqlite", "postgres")


def url_of(engine: str, directory: Path) -> str:
    """Returns the URL of a new store."""
    if engine == "memory":
        return "memory:"
    if engine == "sqlite":
        return f"sqlite:{directory / f'{uuid.uuid4().hex}.db'}"
    server = os.environ.get("TREEHOLD_TEST_POSTGRES_URL")
    if server is None:
        pytest.skip("TREEHOLD_TEST_POSTGRES_URL names no server; see scripts/servers.sh")
    separator = "&" if "?" in server else "?"
    return f"{server}{separator}schema=t_{uuid.uuid4().hex}"


@pytest.fixture(params=ENGINES)
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Returns the URL of another new store with each call, for each engine."""
    engine: str = request.param
    url_of(engine, tmp_path)
    return lambda: url_of(engine, tmp_path)


@pytest.fixture
def url(new_url: Callable[[], str]) -> str:
    """The URL of a new store, for each engine."""
    return new_url()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A new store of each engine."""
    opened = Store.open(url)
    yield opened
    opened.close()


@pytest.fixture
def memory() -> Iterator[Store]:
    """A new store in memory, for what does not depend on the engine."""
    opened = Store.open("memory:")
    yield opened
    opened.close()
