"""Real databases: SQLite files, and a PostgreSQL server."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

# The helper of these tests, whatever way pytest imports them.
sys.path.insert(0, str(Path(__file__).parent))

USUAL_SERVER = "postgres://postgres@127.0.0.1:5432/postgres"


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The place of a new database of LangGraph."""
    if request.param == "sqlite":
        yield str(tmp_path / "theirs.db")
        return
    psycopg = pytest.importorskip("psycopg")
    server = os.environ.get("TREEHOLD_TEST_POSTGRES_URL", USUAL_SERVER)
    try:
        connection = psycopg.connect(server, autocommit=True, connect_timeout=60)
    except psycopg.OperationalError as error:
        pytest.skip(f"no PostgreSQL server answers ({error}); see scripts/servers.sh")
    name = f"migrate_{uuid.uuid4().hex}"
    with connection:
        connection.execute(f'CREATE SCHEMA "{name}"')
    separator = "&" if "?" in server else "?"
    yield f"{server}{separator}options=-csearch_path%3D{name}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA "{name}" CASCADE')
