"""The tests of test_messages once more, from another node."""

from tests.server.parts.conftest import *
from tests.server.parts.test_messages import *
