"""Agents that call a model and tools, with the extra `plait[execution]`."""
