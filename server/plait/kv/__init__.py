"""Values that belong to the app or to a user instead of a thread."""
