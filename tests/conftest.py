"""Fixtures for all tests, how examples are searched for, and where asserts say what they compared."""

import pytest
from hypothesis import settings

# A slow machine is no failure.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

pytest.register_assert_rewrite(
    "tests.integration.convergence", "tests.server.store.contract", "tests.server.rooms", "tests.server.fakes"
)


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio only."""
    return "asyncio"
