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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the long runs be longer."""
    parser.addoption(
        "--schedules", type=int, default=500, help="how many schedules of edits beside a rebuilding server"
    )
