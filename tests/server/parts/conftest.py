"""Open stores of both kinds, and a clock that a test moves."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.server.parts.workshop import Clock, FlakyStore, make_store


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FlakyStore]:
    async with make_store(request.param, tmp_path) as store:
        yield store


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)
