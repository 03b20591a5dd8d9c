"""Tasks: methods that survive kills, restarts and long waits."""
