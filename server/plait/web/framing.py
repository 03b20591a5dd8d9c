"""What messages and the reasons of a close are in bytes, on a WebSocket."""

from plait.transport import Frame

__all__ = ["is_utf8", "serialize", "shorten"]


def serialize(frame: Frame) -> bytes:
    """Return a frame as it goes over the wire from server to client: whole and unmasked (RFC 6455, section 5.2)."""
    first = 0x81 if frame.is_text else 0x82
    size = len(frame.data)
    if size < 126:
        return b"%c%c%b" % (first, size, frame.data)
    if size < 65536:
        return b"%c\x7e%b%b" % (first, size.to_bytes(2), frame.data)
    return b"%c\x7f%b%b" % (first, size.to_bytes(8), frame.data)


def is_utf8(data: bytes) -> bool:
    """Tell whether bytes are text."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def shorten(reason: str) -> str:
    """Return a close reason of the 123 bytes that there is room for."""
    return reason.encode(errors="backslashreplace")[:123].decode(errors="ignore")
