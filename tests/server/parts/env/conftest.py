"""Stores of both kinds."""

from pathlib import Path

import pytest
from tests.postgres import new_schema
from tests.schedules import in_soak


@pytest.fixture(params=["sqlite", "postgresql", *in_soak(("nats",))])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a new store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'plait.db'}"
    if request.param == "nats":
        store: str = request.getfixturevalue("nats_server").make_store()
        return store
    return new_schema(request.getfixturevalue("postgres").url)
