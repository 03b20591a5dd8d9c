"""The sockets of the native protocol, whose threads another node owns."""

from tests.integration.test_native import *
