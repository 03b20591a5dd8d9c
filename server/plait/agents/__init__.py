"""Behaviours that run in threads."""
