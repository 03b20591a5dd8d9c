"""Frames, patches and rebasing: the code that both sides of a socket share."""
