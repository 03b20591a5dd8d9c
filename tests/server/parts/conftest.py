"""Labs on both stores, apps with messages, and open stores of both kinds."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.schedules import in_soak
from tests.server.agents import lab as labs
from tests.server.fakes import TroubledStore
from tests.server.parts.messages_lab import MessagesLab, open_lab
from tests.server.parts.workshop import FlakyStore, make_store

from plait import Limits


@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[labs.Lab]:
    async with labs.open_lab(labs.make_store(request.param, tmp_path), limits=Limits()) as lab:
        yield lab


@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FlakyStore]:
    async with make_store(request.param, tmp_path) as store:
        yield store


@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
async def chats(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MessagesLab]:
    async with open_lab(make_store(request.param, tmp_path), limits=Limits()) as lab:
        yield lab


@pytest.fixture
async def troubled() -> AsyncIterator[MessagesLab]:
    async with open_lab(TroubledStore(), limits=Limits()) as lab:
        yield lab
