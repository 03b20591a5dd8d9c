"""Fuzzers of what arrives from outside: `make fuzz`, or `python -m fuzz --seconds 600 frames`."""
