"""The paths of files, and the globs that match them. No I/O."""

import fnmatch
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Final

from plait.parts.encoding import check_type

__all__ = ["MOST_PARTS", "MOST_PATH_BYTES", "clean_path", "compile_glob", "find_parents", "is_below"]

MOST_PATH_BYTES: Final = 1024
"""The maximum bytes of a path as UTF-8."""

MOST_PARTS: Final = 32
"""The maximum parts of a path: the names of its directories and its own."""

# Control characters, backslashes, and halves of surrogate pairs.
_ODD: Final = re.compile("[\x00-\x1f\\\\\x7f-\x9f\ud800-\udfff]")


def clean_path(path: str) -> str:
    """Return a path without slashes at its ends and empty parts; "" is the top directory.

    Raises ValueError for a path that has `..`, a control character or a backslash, or is too long or too deep.
    """
    return "/".join(_split("path", path))


def _split(name: str, path: str) -> list[str]:
    """Return the parts of a path, or of a pattern."""
    check_type(f"a {name}", path, str)
    if _ODD.search(path):
        raise ValueError(f"the {name} {path!r} has a control character, a backslash or half of a surrogate pair")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"the {name} {path!r} has the part '..'")
    if len(parts) > MOST_PARTS:
        raise ValueError(f"a {name} may have at most {MOST_PARTS} parts, not {len(parts):,}")
    if (size := len("/".join(parts).encode())) > MOST_PATH_BYTES:
        raise ValueError(f"a {name} may have at most {MOST_PATH_BYTES:,} bytes, not {size:,}")
    return parts


def find_parents(path: str) -> Iterator[str]:
    """Yield the directories above a path, innermost first, without the top one."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def is_below(path: str, directory: str) -> bool:
    """Whether a path is in a directory, at any depth."""
    return not directory or path.startswith(directory + "/")


def compile_glob(pattern: str) -> Callable[[str], bool]:
    """Return whether a path matches: `*`, `?` and `[…]` match inside of a name, and `**` any number of directories.

    Raises ValueError for a pattern that cannot be a path.
    """
    parts = _split("pattern", pattern)
    # Several `**` in a row match as one does.
    parts = [part for before, part in pairwise(("", *parts)) if not before == part == "**"]
    matchers = [None if part == "**" else _compile_part(part) for part in parts]

    def matches(path: str) -> bool:
        # The numbers of the pattern's parts that the names so far can have matched.
        reached = _skip_stars(matchers, {0})
        for name in path.split("/"):
            reached = _skip_stars(matchers, set(_step(matchers, reached, name)))
        return len(matchers) in reached

    return matches


_Matchers = list[Callable[[str], object] | None]


def _step(matchers: _Matchers, reached: set[int], name: str) -> Iterator[int]:
    for at in reached:
        if at < len(matchers):
            matcher = matchers[at]
            if matcher is None:
                yield at
            elif matcher(name):
                yield at + 1


def _skip_stars(matchers: _Matchers, reached: set[int]) -> set[int]:
    """Add the places after each `**`, which may match no directory."""
    for at, matcher in enumerate(matchers):
        if matcher is None and at in reached:
            reached.add(at + 1)
    return reached


@lru_cache(1000)
def _compile_part(part: str) -> Callable[[str], object]:
    return re.compile(fnmatch.translate(part)).match
