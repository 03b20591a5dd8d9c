"""Leaves out the tests of packages that have an environment of their own, which `make adapters` runs there."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("agents") and find_spec("agentscope") else ["apart"]
