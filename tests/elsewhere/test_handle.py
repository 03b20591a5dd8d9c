"""The tests of test_handle once more, from another node."""

from tests.server.node.test_handle import *
