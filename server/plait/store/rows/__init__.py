"""The store over any engine that keeps ordered rows."""
