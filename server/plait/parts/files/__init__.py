"""`files = Files()`: the files of a thread."""
