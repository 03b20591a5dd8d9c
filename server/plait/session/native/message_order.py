"""Which of the ordinary messages of one socket are taken, so that none that was refused is overtaken. No I/O."""

__all__ = ["MessageOrder"]


class MessageOrder:
    """Takes messages one after the other, where the client counts them; another client loses what is refused."""

    __slots__ = ("_is_counted", "_next", "taken")

    def __init__(self) -> None:
        # How many messages were taken.
        self.taken = 0
        self._next = 1
        self._is_counted = False

    def expect(self, number: int) -> None:
        """Give the message that comes next this number: the client counts them, and sends again what was refused."""
        if not self._is_counted:
            self.taken = number - 1
        self._next = number
        self._is_counted = True

    def take(self) -> bool:
        """Take a message; False for one that was taken before, and for one before which another is missing."""
        is_next = self._next == self.taken + 1
        self._next += 1
        self.taken += is_next
        return is_next

    def refuse(self) -> int | None:
        """Refuse a message; return how many were taken before it, None where the client does not count them."""
        if self._is_counted:
            self._next += 1
            return self.taken
        return None
