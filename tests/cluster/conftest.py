"""One PostgreSQL server for the tests of a module."""

from collections.abc import Iterator

import pytest
from tests.postgres import Postgres, private_folder


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A server, which runs when a test begins."""
    with private_folder() as folder, Postgres(folder / "main") as server:
        yield server
