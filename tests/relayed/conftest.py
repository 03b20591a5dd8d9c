"""Serves each thread of a suite by a gateway, as if another node owned it."""

from collections.abc import Iterator

import pytest
from tests.fronts import using_fronts


@pytest.fixture(autouse=True)
def relayed() -> Iterator[None]:
    """Put a front before each app that a test serves, and check that the test has used a link."""
    with using_fronts() as fronts:
        yield
    assert fronts, "the test has served no app"
    assert all(front.sent for front in fronts), "nothing was sent over a link"
