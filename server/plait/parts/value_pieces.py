"""One value as JSON. A list is split into pieces, so that a change writes only the changed pieces."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

__all__ = ["Piece", "Value"]

# The maximum bytes and elements of a piece; a single element may be larger.
_BYTES: Final = 16 * 1024
_ELEMENTS: Final = 512

_decode_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


# A thread may have 50,000 values, which refer to nothing else: the garbage collector would only lose time with them.
class Piece(msgspec.Struct, gc=False, eq=False):
    """Some elements of a list, or a whole value that is not a list."""

    count: int
    size: int
    # The elements with commas between them, or the value; None if it has not been read.
    raw: bytes | None = None


class Value(msgspec.Struct, gc=False, eq=False):
    """An immutable value; a changed value is another object, which may share pieces with it."""

    pieces: Sequence[Piece]
    # The bytes of the value as JSON.
    size: int
    is_list: bool = False
    # The place where it is stored: the position of its key, and the number of its first piece.
    position: int = 0
    number: int = 0
    # The number of removed elements that the first piece still stores. They count until the piece is removed.
    skip: int = 0

    @staticmethod
    def make_list(pieces: Sequence[Piece], *, position: int = 0, number: int = 0, skip: int = 0) -> "Value":
        """Return a list of some pieces."""
        size = sum([piece.size for piece in pieces]) + max(len(pieces) - 1, 0) + 2
        return Value(pieces, size, True, position, number, skip)

    @staticmethod
    def of(raw: bytes, before: "Value | None" = None) -> "Value":
        """Return a value, which shares the pieces of `before` that are equal."""
        is_list = raw.startswith(b"[")
        pieces = _split(raw) if is_list else [Piece(1, len(raw), raw)]
        if before is not None and before.is_list == is_list and not before.skip:
            for index, (old, new) in enumerate(zip(before.pieces, pieces, strict=False)):
                if old.raw == new.raw:
                    pieces[index] = old
        number = 0 if before is None else before.number
        return Value.make_list(pieces, number=number) if is_list else Value(pieces, len(raw), number=number)

    @property
    def is_known(self) -> bool:
        """Whether all pieces have been read or written."""
        return None not in [piece.raw for piece in self.pieces]

    @property
    def has_known_end(self) -> bool:
        """Whether the last piece is known, so that a push can extend it."""
        return not self.pieces or self.pieces[-1].raw is not None or self.pieces[-1].size >= _BYTES

    @property
    def is_fragmented(self) -> bool:
        """Whether it has many pieces that are much smaller than the maximum."""
        return self.is_list and len(self.pieces) > 64 and self.size < len(self.pieces) * _BYTES // 16

    @property
    def raw(self) -> bytes:
        """The value as JSON; it must be known."""
        if not self.is_list:
            return _require(self.pieces[0])
        found = [_require(piece) for piece in self.pieces]
        if self.skip:
            found[0] = _join(_decode_list(b"[%b]" % found[0])[self.skip :])
        return b"[%b]" % b",".join(found)

    def push(self, element: bytes, most: int | None) -> "Value":
        """Return a list with one more element, and at most its last `most` elements."""
        pieces, number, skip = list(self.pieces), self.number, self.skip
        tail = Piece(1, len(element), element)
        while pieces and (last := pieces[-1]).raw is not None and _fits(last.size, last.count, tail.size, tail.count):
            tail = Piece(
                last.count + tail.count, last.size + 1 + tail.size, b"%b,%b" % (_require(last), _require(tail))
            )
            del pieces[-1]
        pieces.append(tail)
        if most is not None:
            skip = max(skip, sum([piece.count for piece in pieces]) - most)
            while pieces[0].count <= skip:
                skip -= pieces.pop(0).count
                number += 1
            if skip and pieces[0] is tail:  # The piece is written in any case.
                raw = _join(_decode_list(b"[%b]" % _require(tail))[skip:])
                pieces[0], skip = Piece(tail.count - skip, len(raw), raw), 0
        return Value.make_list(pieces, number=number, skip=skip)

    def record_keys(self) -> list[str]:
        """Return the keys of the records of its pieces."""
        return [f"value/{self.position}/{self.number + index}" for index in range(len(self.pieces))]

    def changes(self, before: "Value | None") -> Iterator[tuple[str, bytes | None]]:
        """Return the records to write, and to remove as None, when it replaces `before` at the same position."""
        shift = 0 if before is None else self.number - before.number
        old: Sequence[Piece] = () if before is None else before.pieces
        for index, piece in enumerate(self.pieces):
            if not (0 <= index + shift < len(old) and old[index + shift] is piece):
                raw = _require(piece)
                yield f"value/{self.position}/{self.number + index}", b"[%b]" % raw if self.is_list else raw
        for index in range(len(old)):
            if not 0 <= index - shift < len(self.pieces):
                yield f"value/{self.position}/{self.number + index - shift}", None

    def note(self, index: int, record: bytes) -> None:
        """Set one of the pieces from a record that was read."""
        self.pieces[index].raw = record[1:-1] if self.is_list else record


def _require(piece: Piece) -> bytes:
    assert piece.raw is not None
    return piece.raw


def _fits(size: int, count: int, more: int, others: int) -> bool:
    return size + 1 + more <= _BYTES and count + others <= _ELEMENTS


def _join(elements: Sequence[msgspec.Raw]) -> bytes:
    return b",".join([bytes(each) for each in elements])


def _split(raw: bytes) -> list[Piece]:
    elements = _decode_list(raw)
    if len(raw) <= _BYTES and len(elements) <= _ELEMENTS:
        return [Piece(len(elements), len(raw) - 2, raw[1:-1])] if elements else []
    pieces: list[Piece] = []
    group: list[bytes] = []
    size = -1
    for element in map(bytes, elements):
        if group and not _fits(size, len(group), len(element), 1):
            pieces.append(Piece(len(group), size, b",".join(group)))
            group, size = [], -1
        group.append(element)
        size += 1 + len(element)
    pieces.append(Piece(len(group), size, b",".join(group)))
    return pieces
