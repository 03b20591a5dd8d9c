"""Edits of a text, the same for each server: text streamed to its end, and letters typed in it."""

import random
import subprocess
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from benchmarks.documents import WORDS
from benchmarks.peer import YJS

__all__ = ["Edit", "appends", "encode_updates", "letters", "passage", "split_updates", "typing"]

Edit = tuple[int, int, str]
"""Where, how many characters are removed, and what is inserted."""

CHUNK = 20
BURST = 12
MAKE_TIMEOUT = 60


def passage(length: int) -> str:
    """A text of `length` characters, all of them ASCII."""
    pick = random.Random(length)
    words = " ".join(pick.choices(WORDS, k=length // 4 + 1))
    return words.ljust(length, ".")[:length]


def appends(length: int, count: int) -> list[Edit]:
    """Edits that append twenty characters each to a text of `length` characters."""
    chunks = passage(CHUNK * count)
    return [(length + at, 0, chunks[at : at + CHUNK]) for at in range(0, CHUNK * count, CHUNK)]


def typing(length: int, count: int, seed: int = 0) -> list[Edit]:
    """Edits of one writer: a dozen letters in a row, then at another place; each tenth edit deletes a letter."""
    return list(islice(_typed(length, random.Random(seed)), count))


def _typed(length: int, pick: random.Random) -> Iterator[Edit]:
    while True:
        at = pick.randrange(length)
        for number in range(BURST):
            if number and pick.random() < 0.1:
                at -= 1
                length -= 1
                yield at, 1, ""
            else:
                yield at, 0, pick.choice("etaoin shrdlu")
                at += 1
                length += 1


def letters(edits: Sequence[Edit]) -> int:
    """How much longer edits make a text."""
    return sum(len(insert) - remove for _, remove, insert in edits)


def encode_updates(text: str, writers: Sequence[Sequence[Edit]]) -> list[bytes]:
    """The updates of Yjs for a text, then for the edits of each writer, which has seen the text and its own edits."""
    told = msgspec.json.encode({"text": text, "writers": writers})
    command = ["node", str(YJS / "updates.mjs")]
    done = subprocess.run(command, input=told, capture_output=True, timeout=MAKE_TIMEOUT, check=True)
    return split_updates(done.stdout)


def split_updates(data: bytes) -> list[bytes]:
    """Split data into parts; the length of each precedes it, in four bytes."""
    found: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4])
        found.append(data[at + 4 : end])
        at = end
    return found
