"""Fixtures of the tests of the backends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deepagents.backends.protocol import BackendProtocol

sys.path.insert(0, str(Path(__file__).parent))

from deepagents_support import KINDS, made


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BackendProtocol]:
    """An empty backend of each kind."""
    with made(request.param, tmp_path) as backend:
        yield backend
