"""Which node owns which threads."""
