"""The keys of sent messages, so that a message that is sent again is added only once. No I/O."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from plait.store.protocol import Record
from plait_schemas.codec import encode_json

__all__ = ["REMEMBERED", "SENT", "SentKeys", "make_sent_id"]

REMEMBERED: Final = 10_000
"""The minimum number of last keys that are remembered."""

SENT: Final = "k/"
"""The prefix of the keys of their records."""

# The number of ids in a record, and of characters in an id.
_ON_PAGE: Final = 128
_LENGTH: Final = 24
_PAGES: Final = REMEMBERED // _ON_PAGE + 2


def make_sent_id(sender: str, key: str) -> str:
    """Return the id of the message that a sender has sent with a key."""
    return blake2b(encode_json((sender, key)), digest_size=12).hexdigest()


class SentKeys:
    """The ids of the messages that were sent with a key, in records of 128. Immutable."""

    __slots__ = ("_first", "_pages")

    def __init__(self, first: int = 0, pages: Sequence[str] = ()) -> None:
        # The number of the first record, and the concatenated ids of each record.
        self._first = first
        self._pages = pages

    @classmethod
    def load(cls, records: Sequence[Record]) -> "SentKeys":
        """Return the keys from stored records, in order."""
        pages = [record.value[1:-1].decode() for record in records if record.value is not None]
        return cls(int(records[0].key[len(SENT) :], 16), pages) if records else cls()

    def has(self, id: str) -> bool:
        """Whether a message was sent with this id."""
        return any(_find(page, id) >= 0 for page in self._pages)

    def add(self, id: str) -> tuple["SentKeys", dict[str, bytes | None]]:
        """Return the keys with another id, and the records that change."""
        first, pages = self._first, [*self._pages]
        records: dict[str, bytes | None] = {}
        if not pages or len(pages[-1]) >= _ON_PAGE * _LENGTH:
            pages.append("")
        if len(pages) > _PAGES - 1:
            records[_key(first)] = None
            first, pages = first + 1, pages[1:]
        pages[-1] += id
        records[_key(first + len(pages) - 1)] = _encode(pages[-1])
        return SentKeys(first, pages), records

    def remove(self, id: str) -> tuple["SentKeys", dict[str, bytes | None]]:
        """Return the keys without an id, and the record that changes, if there is one."""
        for number, page in enumerate(self._pages):
            if (at := _find(page, id)) >= 0:
                pages = [*self._pages]
                pages[number] = page[:at] + page[at + _LENGTH :]
                return SentKeys(self._first, pages), {_key(self._first + number): _encode(pages[number])}
        return self, {}


def _key(number: int) -> str:
    return f"{SENT}{number:08x}"


def _encode(page: str) -> bytes:
    return b'"%b"' % page.encode()


def _find(page: str, id: str) -> int:
    """Return where an id is in a record; -1 if it is not."""
    at = page.find(id)
    while at % _LENGTH and at >= 0:  # The match spans two ids.
        at = page.find(id, at + 1)
    return at
