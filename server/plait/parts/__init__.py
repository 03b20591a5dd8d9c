"""What a thread owns beside its state."""
