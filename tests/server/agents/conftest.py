"""Labs on both stores."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.schedules import in_soak
from tests.server.agents.lab import Lab, make_store, open_lab

from plait import Limits


@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Lab]:
    async with open_lab(make_store(request.param, tmp_path), limits=Limits()) as lab:
        yield lab
