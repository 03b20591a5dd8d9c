"""When calls and messages that follow pushes may be sent to a server that has asked the client to wait."""

from collections.abc import Callable

__all__ = ["Pace"]


class Pace:
    """Delays frames that would not be sent again if they were refused by what the server has asked for.

    That is the time until it takes one message more: pushes that are sent again use up all that it takes.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # The longest that it has asked for, None while it has not.
        self._patience: float | None = None
        self._free_at: float | None = None

    @property
    def is_slow(self) -> bool:
        """Whether it has asked for patience, and what came too fast is not done with."""
        return self._patience is not None

    @property
    def free_at(self) -> float | None:
        """When something may go out, None for at once; a time that has passed counts until `release`."""
        return self._free_at

    def release(self) -> None:
        """Let something go out, if its time has come."""
        if self._free_at is not None and self._clock() >= self._free_at:
            self._free_at = None

    def slow(self, patience: float) -> None:
        """The server has asked for patience, in seconds."""
        self._patience = max(patience, self._patience or 0.0)

    def spent(self) -> None:
        """The server has taken something by this time, as its answer says, or takes what goes out."""
        if self._patience is not None:
            self._free_at = self._clock() + self._patience

    def end(self) -> None:
        """All that came too fast is done with."""
        self._patience = None

    def reset(self) -> None:
        """The socket is gone, and with it what the server has counted."""
        self._patience = self._free_at = None
