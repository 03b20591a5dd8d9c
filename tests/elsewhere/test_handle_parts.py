"""The parts of handles, used from another node."""

from tests.server.node.test_handle_parts import *
