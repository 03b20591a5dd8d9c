"""Tables of a thread: a local SQLite file, whose pages are records."""
