"""What both sides of a socket must agree on."""
