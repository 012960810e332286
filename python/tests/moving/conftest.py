"""Stores for the tests of moves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from treehold import Store

# The helper of these tests, whatever way pytest imports them.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A new store of each engine."""
    with Store.open("memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'rows.db'}") as opened:
        yield opened


@pytest.fixture(params=["before", "after"])
def moment(request: pytest.FixtureRequest) -> str:
    """Whether a commit fails before or after its effect."""
    return str(request.param)
