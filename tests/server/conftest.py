"""How examples are searched for, and where asserts say what they compared."""

import pytest
from hypothesis import settings

# A slow machine is no failure.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

pytest.register_assert_rewrite("tests.server.store.contract", "tests.server.rooms", "tests.server.fakes")
