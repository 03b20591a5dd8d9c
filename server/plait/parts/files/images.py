"""The sizes of images, and thumbnails, for which Pillow is needed: the extra `plait[files]`."""

import struct
from collections.abc import Iterator
from io import BytesIO
from typing import Final

from plait.errors import TooLarge

__all__ = ["MOST_IMAGE_BYTES", "MOST_PIXELS", "make_thumbnail", "measure_image"]

MOST_PIXELS: Final = 40_000_000
"""The maximum pixels of an image for a thumbnail."""

MOST_IMAGE_BYTES: Final = 40 * 1024 * 1024
"""The maximum bytes of the file of an image for a thumbnail."""

_FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP")
# The markers of JPEG frames, which begin with the size.
_FRAMES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})


def measure_image(head: bytes) -> tuple[int, int] | None:
    """Return the width and height of a PNG, GIF, WebP or JPEG image from its first bytes; None if they do not tell."""
    try:
        found = _find_size(head)
    except struct.error:  # The file ends too early.
        return None
    return found if found is not None and all(found) else None


def _find_size(head: bytes) -> tuple[int, int] | None:
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return struct.unpack_from(">II", head, 16)
    if head.startswith((b"GIF87a", b"GIF89a")):
        return struct.unpack_from("<HH", head, 6)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _measure_webp(head)
    if head.startswith(b"\xff\xd8"):
        return next(_find_jpeg_sizes(head), None)
    return None


def _measure_webp(head: bytes) -> tuple[int, int] | None:
    match head[12:16]:
        case b"VP8X":
            return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", head, 21)
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", head, 26)
            return width & 0x3FFF, height & 0x3FFF
    return None


def _find_jpeg_sizes(head: bytes) -> Iterator[tuple[int, int]]:
    at = 2
    while head[at : at + 1] == b"\xff":
        marker, length = struct.unpack_from(">xBH", head, at)
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", head, at + 5)
            yield width, height
        at += 2 + length


def make_thumbnail(data: bytes, size: int) -> bytes | None:
    """Return an image of at most `size` pixels a side as PNG, or as JPEG if the given one is; None if it is no image.

    Raises TooLarge before it decodes an image of more than 40 megapixels, and ImportError without Pillow.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ImportError("thumbnails need Pillow: pip install 'plait[files]'") from None
    try:
        with Image.open(BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise TooLarge(f"the image has {image.width} by {image.height} pixels; the limit is {MOST_PIXELS:,}")
            kind = "JPEG" if image.format == "JPEG" else "PNG"
            image.draft("RGB", (size, size))
            image.thumbnail((size, size))
            found = ImageOps.exif_transpose(image)
            if found.mode not in ("RGB", "RGBA", "L"):
                found = found.convert("RGB" if kind == "JPEG" else "RGBA")
            made = BytesIO()
            found.save(made, kind)
            return made.getvalue()
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError):
        return None  # The file is damaged, or not an image.
    except Image.DecompressionBombError as error:
        raise TooLarge(str(error)) from None
