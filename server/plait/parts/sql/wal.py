"""Reads from SQLite's write-ahead log which pages each commit has changed: https://sqlite.org/fileformat2.html."""

from io import RawIOBase
from struct import Struct
from typing import Final, NamedTuple

__all__ = ["PAGE_SIZE", "Changed", "WalReader"]

PAGE_SIZE: Final = 4096

_HEADER_SIZE: Final = 32
# Fields of a frame: the number of its page, and the number of pages of the database if it ends a commit, else 0.
_FRAME: Final = Struct(">II8s8x")
_FRAME_SIZE: Final = _FRAME.size + PAGE_SIZE
# The frames that are read at first, and the frames that are read at once after that.
_FEW: Final = 4
_MANY: Final = 64


class Changed(NamedTuple):
    """The pages that commits have changed, by their numbers, which begin at 1, and how many pages the database has."""

    pages: dict[int, bytes]
    size: int


class WalReader:
    """Reads the log of a file that only one connection writes, with `synchronous=OFF`."""

    def __init__(self, path: str) -> None:
        self._path = f"{path}-wal"
        # Where the next commit begins, and the salt of all frames since the log began.
        self.position = _HEADER_SIZE
        self._salt = b""

    def read(self) -> Changed | None:
        """Return the changes of the commits since the last call; None if there are none. Raises OSError.

        Frames after the last commit may be left from a transaction that was rolled back after it had spilled. They
        have the same salt, but do not end a commit.
        """
        with open(self._path, "rb", buffering=0) as log:
            salt = log.read(_HEADER_SIZE)[16:24]
            if salt != self._salt:
                self._salt, self.position = salt, _HEADER_SIZE
            log.seek(self.position)
            return self._read_frames(log)

    # Inside

    def _read_frames(self, log: RawIOBase) -> Changed | None:
        pages, begun, last = dict[int, bytes](), dict[int, bytes](), 0
        position, count, salt = self.position, _FEW, self._salt
        while salt == self._salt and len(data := log.read(count * _FRAME_SIZE) or b"") >= _FRAME_SIZE:
            for at in range(0, len(data) - _FRAME_SIZE + 1, _FRAME_SIZE):
                number, size, salt = _FRAME.unpack_from(data, at)
                if salt != self._salt:
                    break
                begun[number] = data[at + _FRAME.size : at + _FRAME_SIZE]
                position += _FRAME_SIZE
                if size:
                    pages |= begun
                    begun, last, self.position = {}, size, position
            count = _MANY
        return Changed({number: page for number, page in pages.items() if number <= last}, last) if last else None
