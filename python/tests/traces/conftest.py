"""Traces in memory, SQLite, and PostgreSQL where `TREEHOLD_TEST_POSTGRES_URL` names a server."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from treehold import Store
from treehold.traces import DatabaseTraceStore


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A new store of each engine."""
    url = {"memory": "memory:", "sqlite": f"sqlite:{tmp_path / 'traces.db'}"}.get(request.param)
    if url is None:
        server = os.environ.get("TREEHOLD_TEST_POSTGRES_URL")
        if server is None:
            pytest.skip("TREEHOLD_TEST_POSTGRES_URL names no server; see scripts/servers.sh")
        url = f"{server}{'&' if '?' in server else '?'}schema=t_{uuid.uuid4().hex}"
    opened = Store.open(url)
    yield opened
    opened.close()


@pytest.fixture
def traces(store: Store) -> DatabaseTraceStore:
    """The traces of a user in a new store of each engine."""
    return DatabaseTraceStore(store, tenant="acme", user="ada")
