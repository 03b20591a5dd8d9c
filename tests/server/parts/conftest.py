"""Open stores of both kinds, apps with messages on them, and a clock that a test moves."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.server.fakes import TroubledStore
from tests.server.parts.messages_lab import MessagesLab, open_lab
from tests.server.parts.workshop import Clock, make_store

from plait.limits import Limits
from plait.store.protocol import Store


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with make_store(request.param, tmp_path) as store:
        yield store


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture(params=["memory", "sqlite"])
async def chats(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MessagesLab]:
    async with open_lab(make_store(request.param, tmp_path), limits=Limits()) as lab:
        yield lab


@pytest.fixture
async def troubled() -> AsyncIterator[MessagesLab]:
    async with open_lab(TroubledStore(), limits=Limits()) as lab:
        yield lab
