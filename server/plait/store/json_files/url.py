"""The URL of a store in a folder of JSON files."""

from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import unquote, urlsplit

__all__ = ["FileUrl"]


class FileUrl(NamedTuple):
    """The folder in a URL, `file:///absolute/folder`."""

    folder: Path

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises ValueError."""
        parts = urlsplit(url)
        folder = Path(unquote(parts.path))
        if parts.netloc or parts.query or parts.fragment or len(folder.parts) < 2:
            raise ValueError(f"{url!r}: use file:///absolute/folder, without options")
        return cls(folder)

    def __str__(self) -> str:
        return str(self.folder)
