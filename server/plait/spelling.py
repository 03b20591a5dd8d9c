"""Words for messages: corrections of misspelt names, numbers with their nouns, times and URLs."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches

__all__ = [
    "count",
    "find_misspelt",
    "find_nearest",
    "format_time",
    "hide_password",
    "is_camel_case",
    "read_time",
    "suggest",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Endings that do not change a word: `closed` and `closing` count as `close`.
_ENDINGS = ("ing", "ed", "es", "s", "d", "e")


def find_nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `name`; None if none is similar."""
    matches = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the most similar known one, if there is one."""
    near = find_nearest(name, known)
    return f"; did you mean {near!r}?" if near else ""


def find_misspelt(name: str, known: Iterable[str], *, inflected: bool) -> str | None:
    """Return the known name that `name` misspells; None if there is none.

    Stricter than `find_nearest`: `on_conect` means `on_connect`, but `on_step` does not mean `on_stop`, nor
    `on_start_game` `on_start`. With `inflected`, the last word may have another ending: `on_closed` means `on_close`.
    """
    snake = _snake_case(name) if is_camel_case(name) else name
    return next((each for each in known if each != name and _is_misspelling(snake, each, inflected)), None)


def is_camel_case(name: str) -> bool:
    """Whether a name is in camel case, such as `onConnect`."""
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
    """Whether one word is the other with a typing mistake; in short words, a changed letter makes another word."""
    if word == other:
        return True
    if min(len(word), len(other)) < 4:
        return False
    if _without_doubles(word) == _without_doubles(other) or _is_swapped(word, other):
        return True
    return len(other) >= 7 and (word[0], word[-1]) == (other[0], other[-1]) and _is_one_edit(word, other)


def _is_swapped(word: str, other: str) -> bool:
    """Whether two neighbouring letters are swapped."""
    if len(word) != len(other):
        return False
    at = next(index for index, letter in enumerate(word) if letter != other[index])
    return word[:at] + word[at : at + 2][::-1] + word[at + 2 :] == other


def _is_one_edit(word: str, other: str) -> bool:
    """Whether one letter is missing, added or replaced."""
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


def count(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 thread` or `2 threads`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_time(at: int) -> str:
    """Return a time in microseconds since the epoch as text, in UTC."""
    return read_time(at).strftime("%Y-%m-%d %H:%M:%S")


def read_time(at: int) -> datetime:
    """Return the time of microseconds since the epoch, even of the last one of the year 9999."""
    return _EPOCH + timedelta(microseconds=at)


def hide_password(url: str) -> str:
    """Return a URL without its password."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    rest = re.sub(r"([?&][^=&]*password[^=&]*=)[^&]*", r"\1***", rest, flags=re.IGNORECASE)
    # Up to the last @, as an unquoted password may contain any character.
    user, at, host = rest.rpartition("@")
    name, colon, _ = user.partition(":")
    if not colon and user and scheme.lower() == "nats":  # The user is a token.
        user = "***"
    return f"{scheme}://{f'{name}:***' if colon else user}{at}{host}"
