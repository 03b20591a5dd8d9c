"""Schedules, used from another node."""

from tests.server.parts.conftest import store
from tests.server.parts.test_schedule import (
    test_a_server_handle_schedules_lists_and_cancels,
)

__all__ = ["store", "test_a_server_handle_schedules_lists_and_cancels"]
