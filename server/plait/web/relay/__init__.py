"""Moves sockets, requests and calls between the node that has them and the node that owns their thread."""
