"""Names that are nearly another, for messages that say which one was meant."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["find_misspelt", "find_nearest", "is_camel_case"]

# What a word may end with and still be the same one: `closed` and `closing` are `close`.
_ENDINGS = ("ing", "ed", "es", "s", "d", "e")


def find_nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that looks most like `name`, None when none is near."""
    matches = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def find_misspelt(name: str, known: Iterable[str], *, inflected: bool) -> str | None:
    """Return the known name that is written as `name` by mistake, None when `name` is a name of its own.

    It is stricter than `find_nearest`: `on_conect` is `on_connect`, but `on_step` is not `on_stop`, and `on_start_game`
    is not `on_start`. With `inflected`, the last word may also have another ending: `on_closed` is `on_close`.
    """
    snake = _snake_case(name) if is_camel_case(name) else name
    return next((each for each in known if each != name and _is_misspelling(snake, each, inflected)), None)


def is_camel_case(name: str) -> bool:
    """Whether a name is written as JavaScript does it, as `onConnect` is."""
    return name[:1].islower() and "_" not in name and name != name.lower()


def _snake_case(name: str) -> str:
    return re.sub("[A-Z]+", lambda match: f"_{match[0].lower()}", name)


def _is_misspelling(name: str, known: str, inflected: bool) -> bool:
    if name.replace("_", "") == known.replace("_", ""):
        return True
    words, others = name.split("_"), known.split("_")
    if len(words) != len(others) or not all(map(_is_same_word, words[:-1], others[:-1])):
        return False
    last, other = words[-1], others[-1]
    return _is_same_word(last, other) or (inflected and _stem(last) == _stem(other))


def _is_same_word(word: str, other: str) -> bool:
    """Whether one word is the other with a typing mistake. In short words a changed letter makes another word."""
    if word == other:
        return True
    if min(len(word), len(other)) < 4:
        return False
    if _without_doubles(word) == _without_doubles(other) or _is_swapped(word, other):
        return True
    return len(other) >= 7 and (word[0], word[-1]) == (other[0], other[-1]) and _is_one_edit(word, other)


def _is_swapped(word: str, other: str) -> bool:
    """Whether two letters beside each other have changed places."""
    if len(word) != len(other):
        return False
    at = next(index for index, letter in enumerate(word) if letter != other[index])
    return word[:at] + word[at : at + 2][::-1] + word[at + 2 :] == other


def _is_one_edit(word: str, other: str) -> bool:
    """Whether one letter is missing, too many or another."""
    short, long = sorted((word, other), key=len)
    if len(long) - len(short) > 1:
        return False
    at = next((index for index, letter in enumerate(short) if letter != long[index]), len(short))
    return short[at + (len(short) == len(long)) :] == long[at + 1 :]


def _stem(word: str) -> str:
    ending = next((each for each in _ENDINGS if word.endswith(each) and len(word) - len(each) >= 3), "")
    return _without_doubles(word.removesuffix(ending))


def _without_doubles(word: str) -> str:
    return re.sub(r"(.)\1+", r"\1", word)
