"""Namespaces, used from another node."""

from tests.server.kv.test_kv import *
