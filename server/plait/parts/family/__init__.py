"""`family = Family()`: the parent and the children of a thread."""
