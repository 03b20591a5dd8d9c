"""A PostgreSQL server for the tests of stores."""

from collections.abc import Iterator

import pytest
from tests.postgres import Postgres, private_folder


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server of this session."""
    with private_folder() as folder, Postgres(folder / "data") as server:
        yield server
