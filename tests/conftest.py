"""Fixtures for all tests, how examples are searched for, and where asserts say what they compared."""

from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings
from tests.postgres import Postgres, private_folder
from tests.schedules import TIMES, schedules

from plait_schemas.codec import printable

# A slow machine is no failure. Tests find the same examples each time, and `make soak` finds others.
settings.register_profile("test", deadline=None, derandomize=True)
settings.register_profile("soak", deadline=None, max_examples=schedules(100), print_blob=True)
settings.load_profile("soak" if TIMES > 1 else "test")

pytest.register_assert_rewrite(
    "tests.integration.convergence",
    "tests.server.store.contract",
    "tests.server.store.contract_records",
    "tests.server.store.contract_view",
    "tests.server.rooms",
    "tests.server.fakes",
)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server of this session."""
    with private_folder() as folder, Postgres(folder / "data") as server:
        yield server


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Run async tests on uvloop, as `plait serve` runs."""
    return "asyncio", {"use_uvloop": True}


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escape halves of surrogate pairs in what a worker reports: it could not be sent, and the worker would end."""
    return _escape((yield))


def _escape(value: Any) -> Any:
    match value:
        case str():
            return printable(value)
        case dict():
            return {_escape(key): _escape(member) for key, member in value.items()}
        case list() | tuple():
            return [_escape(item) for item in value]
        case _:
            return value
