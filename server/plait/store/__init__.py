"""Stores, which keep threads durably."""
