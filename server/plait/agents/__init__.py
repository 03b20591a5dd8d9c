"""Agents, which run in threads."""
