"""Stores of both kinds."""

from pathlib import Path

import pytest
from tests.postgres import new_schema


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a new store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'plait.db'}"
    return new_schema(request.getfixturevalue("postgres").url)
