"""Values that cross between threads, as JSON, in one process, too."""

from plait_schemas.codec import UNENCODABLE, encode_finite

__all__ = ["encode_crossing"]


def encode_crossing(what: str, value: object) -> bytes:
    """Return a value as JSON. Raises TypeError, or ValueError for a number that is infinite or not a number."""
    try:
        return encode_finite(value)
    except ValueError as error:
        if type(error) is ValueError:
            raise ValueError(f"{what} cannot be sent: {error}") from None
        raise
    except UNENCODABLE as error:
        text = "a function" if callable(value) else str(error)
        raise TypeError(f"{what} cannot be sent, as it is not JSON: {text}") from None
