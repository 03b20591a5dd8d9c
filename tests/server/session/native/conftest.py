"""Apps with messages, on either store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.schedules import in_soak
from tests.server.fakes import TroubledStore
from tests.server.parts.messages_lab import MessagesLab, open_lab
from tests.server.parts.workshop import make_store

from plait import Limits


@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
async def chats(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MessagesLab]:
    async with open_lab(make_store(request.param, tmp_path), limits=Limits()) as lab:
        yield lab


@pytest.fixture
async def troubled() -> AsyncIterator[MessagesLab]:
    async with open_lab(TroubledStore(), limits=Limits()) as lab:
        yield lab
