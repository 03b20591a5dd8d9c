"""Links between nodes, the calls on them, and where the threads of an app are."""
