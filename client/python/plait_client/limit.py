"""How large what a client sends may be."""

from plait_client.errors import TooLarge
from plait_schemas.messages import ClientMessage, encode

__all__ = ["FrameLimit"]


class FrameLimit:
    """How many bytes a frame may have, as the server has told; None where it has not."""

    def __init__(self) -> None:
        self.size: int | None = None

    def allows(self, frame: ClientMessage | bytes) -> bool:
        """Return whether the server takes a frame of this size."""
        return self.size is None or len(frame if isinstance(frame, bytes) else encode(frame)) <= self.size

    def check(self, frame: ClientMessage | bytes) -> None:
        """Raise TooLarge for a frame that the server does not take."""
        if self.size is not None and not self.allows(frame):
            raise TooLarge(self.size)
