"""Numbers: plait beside a published peer and beside the bare limits of the machine."""
