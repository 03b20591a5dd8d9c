"""Agents of other projects in threads; each needs an extra of the distribution."""
