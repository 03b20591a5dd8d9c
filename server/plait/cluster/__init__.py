"""The owners of threads: which node owns which threads."""
