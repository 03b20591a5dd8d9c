"""A store in one SQLite file, or in several."""
