"""Instruments, and agents of other projects in threads; each needs an extra of the distribution."""
