"""Keeps the messages of one socket in order when some are refused and sent again. No I/O."""

__all__ = ["MessageOrder"]


class MessageOrder:
    """Accepts messages in order if the client counts them; other clients lose refused messages."""

    __slots__ = ("_is_counted", "_next", "taken")

    def __init__(self) -> None:
        # How many messages were accepted.
        self.taken = 0
        self._next = 1
        self._is_counted = False

    def expect(self, number: int) -> None:
        """Set the number of the next message, for a client that counts and resends its messages."""
        if not self._is_counted:
            self.taken = number - 1
        self._next = number
        self._is_counted = True

    def take(self) -> bool:
        """Accept a message; return False if it was accepted before or an earlier one is missing."""
        is_next = self._next == self.taken + 1
        self._next += 1
        self.taken += is_next
        return is_next

    def refuse(self) -> int | None:
        """Refuse a message; return how many were accepted before it, or None if the client does not count."""
        if self._is_counted:
            self._next += 1
            return self.taken
        return None
