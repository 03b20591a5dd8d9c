"""The tests of test_handle_parts once more, from another node."""

from tests.server.node.test_handle_parts import *
