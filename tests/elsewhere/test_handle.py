"""Handles, used from another node."""

from tests.server.node.test_handle import *
