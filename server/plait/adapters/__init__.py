"""Instruments for what others have made; each needs an extra of the distribution."""
