"""Messages, used from another node."""

from tests.server.parts.conftest import chats, troubled
from tests.server.parts.test_messages import *

__all__ = ["chats", "troubled"]
