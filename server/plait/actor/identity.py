"""The fixed properties of a thread, as handles return them."""

import msgspec

__all__ = ["Identity"]


class Identity(msgspec.Struct, frozen=True):
    """For which user a thread was created, when, and when it was terminated; times are in microseconds."""

    user_id: str | None
    created_at: int | None
    terminated_at: int | None
