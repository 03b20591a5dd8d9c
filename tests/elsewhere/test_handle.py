"""Handles, used from another node."""

from tests.server.node.test_handle import *

# A missing argument is InvalidArguments there, as the arguments travel as JSON.
del test_a_call_raises_what_the_rpc_raised
