"""A desk that has done nothing."""

import pytest
from tests.server.parts.tasks.desk import Desk


@pytest.fixture(autouse=True)
def fresh() -> None:
    Desk.clear()
