"""WebSocket close codes, and which of them are final."""

from typing import Final

__all__ = [
    "BAD_FRAME",
    "DESTROYED",
    "FORBIDDEN",
    "GOING_AWAY",
    "INTERNAL_ERROR",
    "NOT_FOUND",
    "OUTDATED",
    "REPLACED",
    "TRY_AGAIN_LATER",
    "UNAUTHENTICATED",
    "is_final",
]

GOING_AWAY: Final = 1001
INTERNAL_ERROR: Final = 1011
TRY_AGAIN_LATER: Final = 1013

BAD_FRAME: Final = 4400
UNAUTHENTICATED: Final = 4401
FORBIDDEN: Final = 4403
NOT_FOUND: Final = 4404
REPLACED: Final = 4408
OUTDATED: Final = 4409
DESTROYED: Final = 4410


def is_final(code: int) -> bool:
    """Tell whether a client that was closed with `code` must not reconnect by itself."""
    return code == 1008 or 4400 <= code <= 4499
