"""The tests of test_messages_queue once more, from another node."""

from tests.server.parts.conftest import *
from tests.server.parts.test_messages_queue import *
