"""Moves sockets and requests between the node that has them and the node that owns their thread."""
