"""The change that turns one text into another."""

import re
from collections.abc import Callable, Iterator
from typing import Final

from plait_schemas.align import increasing
from plait_schemas.text import Region

__all__ = ["diff_texts"]

_LINES: Final = re.compile(r"[^\n]*\n|[^\n]+")
_SENTENCES: Final = re.compile(r"[^.!?\u3002\uff01\uff1f]*[.!?\u3002\uff01\uff1f]+\s*|[^.!?\u3002\uff01\uff1f]+")
_WORDS: Final = re.compile(r"\S+\s*|\s+")

_LEVELS: Final = ((_LINES, 1, 1_000_000), (_SENTENCES, 8, 200_000), (_WORDS, 4, 30_000))
"""By what texts are compared: their parts, how long one is that stays, and how much text is worth the time."""

_MOST_PARTS: Final = 10_000
"""A text of more parts is not compared by them."""

_SMALL: Final = 8
"""Where so little is left on one side, it is replaced whole."""


def diff_texts(old: str, new: str) -> list[Region]:
    """Return the change that turns `old` into `new`.

    What both begin and end with stays. In what is between, so do the lines that either has once, in the gaps that are
    left the sentences, and in the gaps of these, where they are short, the words.
    """
    return list(_diff(old, new, 0, 0))


def _diff(old: str, new: str, at: int, level: int) -> Iterator[Region]:
    start = _count_common(old, new, _start)
    old, new, at = old[start:], new[start:], at + start
    if tail := _count_common(old, new, _end):
        old, new = old[:-tail], new[:-tail]
    if min(len(old), len(new)) <= _SMALL or level == len(_LEVELS):
        if old or new:
            yield at, len(old), new
        return
    end = new_end = 0
    for length, place, new_place in _find_common(old, new, level):
        yield from _diff(old[end:place], new[new_end:new_place], at + end, level + 1)
        end, new_end = place + length, new_place + length
    yield from _diff(old[end:], new[new_end:], at + end, level + 1)


# What is the same


def _count_common(old: str, new: str, cut: Callable[[str, int, int], str]) -> int:
    """Return how many characters both have in common at the end that `cut` counts from."""
    low, high = 0, min(len(old), len(new))
    if cut(old, low, high) == cut(new, low, high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if cut(old, low, middle) == cut(new, low, middle):
            low = middle
        else:
            high = middle
    return low


def _start(text: str, low: int, high: int) -> str:
    return text[low:high]


def _end(text: str, low: int, high: int) -> str:
    return text[len(text) - high : len(text) - low]


def _find_common(old: str, new: str, level: int) -> list[tuple[int, int, int]]:
    """Return the parts that stay, in order: their length, and where they are in the old and in the new text."""
    pattern, least, most = _LEVELS[level]
    if len(old) + len(new) > most:
        return []
    places = _find_once(old, pattern, least)
    new_places = _find_once(new, pattern, least) if places else {}
    common = {place: (len(part), new_places[part]) for part, place in places.items() if part in new_places}
    pairs = increasing([(place, new_place) for place, (_, new_place) in common.items()])
    return [(common[place][0], place, new_place) for place, new_place in pairs]


def _find_once(text: str, pattern: re.Pattern[str], least: int) -> dict[str, int]:
    """Return where those parts of a text are that it has once, in order."""
    parts: list[str] = pattern.findall(text)
    if len(parts) > _MOST_PARTS:
        return {}
    found: dict[str, int] = {}
    repeated: set[str] = set()
    at = 0
    for part in parts:
        if part in found:
            repeated.add(part)
        elif len(part) >= least:
            found[part] = at
        at += len(part)
    for part in repeated:
        del found[part]
    return found
