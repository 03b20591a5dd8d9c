"""Open stores of all engines, which refuse writes when a test says so, and a folder for the local files."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.postgres import new_schema
from tests.schedules import in_soak
from tests.server.parts.workshop import Flaky, make_store

from plait.store.postgres.store import PostgresStore
from plait.store.postgres.url import PostgresUrl


class FlakyPostgres(Flaky, PostgresStore):
    """A PostgresStore that refuses writes when a test says so."""


@pytest.fixture(params=["sqlite", *in_soak(["memory"], ["postgresql"])])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    if request.param == "postgresql":
        made: Any = FlakyPostgres(PostgresUrl.parse(new_schema(request.getfixturevalue("postgres").url)))
    else:
        made = make_store(request.param, tmp_path)
    async with made as store:
        yield store


@pytest.fixture(autouse=True)
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the folders of local files are."""
    if "postgresql" in request.node.name:
        request.getfixturevalue("postgres")  # Its folder is another one.
    found = tmp_path / "local"
    found.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(found))
    return found
