"""Compares plait with published peers and with the bare limits of the machine."""
