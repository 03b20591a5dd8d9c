"""The pauses between attempts."""

import msgspec

__all__ = ["Backoff"]


class Backoff(msgspec.Struct, frozen=True):
    """The seconds between attempts: `first` after one failure, doubled after each further failure, up to `longest`."""

    first: float
    longest: float

    def delay(self, failures: int) -> float:
        """Return the seconds before the next attempt, after at least one failure."""
        return min(self.longest, self.first * 2.0 ** min(failures - 1, 64))
