"""The parts of a thread besides its state."""
