"""The tests of test_user once more, from another node."""

from tests.server.kv.test_user import *
