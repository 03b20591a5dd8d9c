"""Live queries: their runs, results and readers."""
