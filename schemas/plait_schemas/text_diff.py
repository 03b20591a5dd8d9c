"""Finds the change that turns one text into another."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Final

from plait_schemas.letters import Letters
from plait_schemas.spans import Same, Span, find_between, join, join_nearest, shift, trim
from plait_schemas.subsequence import find_increasing, longest_common
from plait_schemas.text import Region

__all__ = ["TextComparison"]

_SINGLE: Final = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u2190-\u2bff\u2e80-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef"
    "\U0001f000-\U0003ffff"
)
"""Characters that are words by themselves: those of scripts without spaces, and symbols."""

_BETWEEN: Final = (
    "\\u0000-/:-@\\[-^`{-\u00a9\u00ab-\u00b4\u00b6-\u00b9\u00bb-\u00bf"
    "\u060c\u061b\u061f\u06d4\u0964\u0965\u2000-\u200b\u200e-\u206f\ufeff"
)
"""Characters between words. Neither list depends on the version of Unicode; the TypeScript client has the same ones."""

_WORDS: Final = re.compile(f"([{_SINGLE}]|[^{_SINGLE}{_BETWEEN}]+)")
_ONE_WORD: Final = re.compile(f"[^{_SINGLE}{_BETWEEN}]+")
_WORD_AT_END: Final = re.compile(rf"[^{_SINGLE}{_BETWEEN}]+\Z")

_LONG_WORD: Final = 16
"""Longer words are compared by characters."""

_LONGEST_CUT: Final = 64
"""The most characters of a word that are looked at, if the common beginning or end of two texts cuts it."""

_SHORT: Final = 20_000
_MOST_PAIRS: Final = 30_000_000
"""Texts with more characters together, or more pairs of words, are first split at parts that each has once."""

_SEPARATORS: Final = ("\n", ". ", "\u3002", " ")
"""Texts are split after lines, sentences or words."""

_LEAST_PART: Final = 4
"""Shorter parts are not matched: they are too likely to be equal by chance."""

_MOST_PARTS: Final = 20_000
_MOST_ENDINGS: Final = 200
_LONGEST_ENDING: Final = 48
"""If both texts have more parts together, the separator is extended by some characters that precede it in the text."""

# Work is counted and not timed, so that the result is the same on every machine. A unit is about 0.5 µs.
_MOST_WORK: Final = 50_000
_PER_SPAN: Final = 20
_PER_PART: Final = 2
_PER_LONG_TEXT: Final = 500
_CHARACTERS_PER_UNIT: Final = 250
_PAIRS_PER_UNIT: Final = 1_500

_MOST_COPIED: Final = 400_000_000
"""The most characters that applying the changes may copy: each region copies its whole text."""


class TextComparison:
    """Finds the changes that turn texts into others, with one budget for all texts of two states.

    The common beginning and end stay, and as many words between them as possible; in a script without spaces each
    character is a word. Long texts are first split at the lines, sentences and words that each text has once. Changes
    that are longer than the text between them are joined. When the budget is spent, the rest is replaced as a whole.

    With `by_letters`, the result is the smallest change, which is the most likely one if only its result is known.
    """

    __slots__ = ("_copied", "_left", "_letters")

    def __init__(self, *, by_letters: bool = False) -> None:
        self._left = _MOST_WORK
        self._copied = _MOST_COPIED
        self._letters = Letters() if by_letters else None

    def compare(self, old: str, new: str) -> list[Region]:
        """Return the change that turns `old` into `new`."""
        found: list[Span] = []
        self._compare(old, new, 0, 0, found)
        if self._letters is None:
            length = len(old) + 1
            found = join_nearest(found, max(self._copied // length, 1))
            self._copied -= len(found) * length
        regions = [(at, end - at, new[to:new_end]) for at, end, to, new_end in found]
        if self._letters is None:
            return regions
        return [each for region in regions for each in self._letters.refine(old, region)]

    def _compare(self, old: str, new: str, at: int, to: int, found: list[Span]) -> None:
        """Add the differences between two parts of the texts, which begin at `at` and `to`."""
        start, end, _, new_end = trim(old, new)
        if start == end == new_end:
            return
        self._left -= _PER_SPAN
        is_for_letters = self._letters is not None and self._letters.takes_all(end - start, new_end - start)
        if start in (end, new_end) or self._left <= 0 or is_for_letters:
            found.append((at + start, at + end, to + start, to + new_end))
            return
        # The first and the last word may be cut: include the whole words.
        before = _WORD_AT_END.search(old[max(start - _LONGEST_CUT, 0) : start])
        after = _ONE_WORD.match(old[end : end + _LONGEST_CUT])
        start -= len(before.group()) if before else 0
        tail = len(after.group()) if after else 0
        end, new_end = end + tail, new_end + tail
        old, new, at, to = old[start:end], new[start:new_end], at + start, to + start
        if len(old) + len(new) > _SHORT or not self._compare_words(old, new, at, to, found):
            self._take_apart(old, new, at, to, found)

    # By words

    def _compare_words(self, old: str, new: str, at: int, to: int, found: list[Span]) -> bool:
        """Add the words that differ between two parts of the texts; return False if that would take too long."""
        parts, new_parts = _WORDS.split(old), _WORDS.split(new)
        ends, new_ends = list(accumulate(map(len, parts))), list(accumulate(map(len, new_parts)))
        # `split` returns separators and words in turn.
        pairs = self._find_common(parts[1::2], new_parts[1::2])
        if pairs is None:
            return False
        same = [(ends[2 * word], new_ends[2 * other], len(parts[2 * word + 1])) for word, other in pairs]
        spans = join(find_between(old, new, same))
        self._left -= _PER_SPAN * len(spans)
        for start, end, new_start, new_end in spans:
            gone, come = old[start:end], new[new_start:new_end]
            finer = join(find_between(gone, come, self._find_same_letters(gone, come)))
            found += shift(finer, at + start, to + new_start)
        return True

    def _find_same_letters(self, old: str, new: str) -> list[Same]:
        """Return the characters that stay if both texts are a long word."""
        if min(len(old), len(new)) <= _LONG_WORD or not (_ONE_WORD.fullmatch(old) and _ONE_WORD.fullmatch(new)):
            return []
        return [(place, other, 1) for place, other in self._find_common(old, new) or ()]

    def _find_common(self, old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]] | None:
        """Return the places of a longest common subsequence; None if that would take too long."""
        self._left -= len(old) + len(new)
        pairs = len(old) * len(new)
        if pairs > min(_MOST_PAIRS, self._left * _PAIRS_PER_UNIT):
            return None
        self._left -= pairs // _PAIRS_PER_UNIT
        return longest_common(old, new)

    # Long texts

    def _take_apart(self, old: str, new: str, at: int, to: int, found: list[Span]) -> None:
        self._left -= _PER_LONG_TEXT + (len(old) + len(new)) // _CHARACTERS_PER_UNIT
        same = next(filter(None, (self._find_once(old, new, each) for each in _SEPARATORS)), ())
        end = new_end = 0
        for place, new_place, length in same:
            if self._left <= 0:
                break
            self._compare(old[end:place], new[new_end:new_place], at + end, to + new_end, found)
            end, new_end = place + length, new_place + length
        if end:
            self._compare(old[end:], new[new_end:], at + end, to + new_end, found)
        else:
            found += shift([trim(old, new)], at, to)

    def _find_once(self, old: str, new: str, separator: str) -> list[Same]:
        """Return the parts that each text has once, without those that have moved past others."""
        chosen = _choose_separator(old, new, separator)
        if chosen is None:
            return []
        parts, new_parts = old.split(chosen), new.split(chosen)
        cost = _PER_PART * (len(parts) + len(new_parts))
        if min(len(parts), len(new_parts)) == 1 or cost > self._left:
            return []
        self._left -= cost
        places, new_places = _find_places(parts), _find_places(new_parts)
        pairs = find_increasing([(at, new_places[part]) for part, at in places.items() if part in new_places])
        ends, new_ends = _find_ends(parts, len(chosen)), _find_ends(new_parts, len(chosen))
        found: list[Same] = []
        last = to = -2
        for index, new_index in pairs:
            end, length = ends[index], len(parts[index])
            if index == last + 1 and new_index == to + 1:
                start, new_start, _ = found[-1]
                found[-1] = (start, new_start, end - start)
            else:
                found.append((end - length, new_ends[new_index] - length, length))
            last, to = index, new_index
        return found


def _choose_separator(old: str, new: str, separator: str) -> str | None:
    """Return a separator; if it occurs too often, one with characters before it; None if those do, too."""
    count = old.count(separator) + new.count(separator)
    if count <= _MOST_PARTS:
        return separator
    ends = [place.end() for place in islice(re.finditer(re.escape(separator), old), _MOST_ENDINGS)]
    seen = [old[max(end - len(separator) - _LONGEST_ENDING, 0) : end] for end in ends]
    for length in range(1, _LONGEST_ENDING + 1):
        times = Counter(each[-length - len(separator) :] for each in seen)
        few = [ending for ending in times if times[ending] * count <= _MOST_PARTS * len(seen)]
        if few:
            return max(few, key=times.__getitem__)
    return None


def _find_ends(parts: Sequence[str], distance: int) -> list[int]:
    """Return where the parts end, with `distance` characters between them."""
    ends = accumulate(map(len, parts))
    return [end + index * distance for index, end in enumerate(ends)]


def _find_places(parts: Sequence[str]) -> dict[str, int]:
    """Return the indices of the parts that occur once, in order."""
    found = dict(zip(parts, range(len(parts)), strict=True))
    if len(found) < len(parts):
        repeated = {part for index, part in enumerate(parts) if found[part] != index}
        for part in repeated:
            del found[part]
    return {part: index for part, index in found.items() if len(part) >= _LEAST_PART}
