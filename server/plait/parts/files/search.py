"""Finds files and lines in an OS thread. Patterns with a time limit need the extra `plait[files]`."""

import asyncio
import codecs
from collections.abc import AsyncIterator, Callable, Iterable
from operator import attrgetter
from time import perf_counter, thread_time
from typing import Any, Final

from plait.parts.files.file import File, FileMatch
from plait.parts.files.paths import compile_glob

__all__ = ["MOST_TEXT", "Searcher", "find_matches", "make_matcher"]

MOST_TEXT: Final = 1_000
"""The characters of a line that `grep` returns."""

# The maximum characters of a pattern.
_MOST_PATTERN: Final = 1_000

# A line of more characters is searched in parts of this length.
_LONGEST: Final = 64 * 1024

Matcher = Callable[[str], bool]


def find_matches(files: Iterable[File], pattern: str, *, timeout: float) -> list[File]:
    """Return the files whose paths match a glob, by path. Raises ValueError."""
    end, found = thread_time() + timeout, list[File]()
    matches = compile_glob(pattern)
    for file in files:
        if thread_time() > end:
            raise ValueError(f"the pattern {pattern!r} takes more than {timeout:g} s: it is stopped")
        if not file.is_directory and matches(file.path):
            found.append(file)
    return sorted(found, key=attrgetter("path"))


def make_matcher(pattern: str, *, is_regex: bool, timeout: float) -> Matcher:
    """Return a function that tells whether a line contains a pattern, or a match of a regular expression.

    Raises ValueError for an invalid pattern and one of more than 1,000 characters, and ImportError without the package
    regex.
    """
    if len(pattern) > _MOST_PATTERN:
        raise ValueError(f"a pattern may have at most {_MOST_PATTERN:,} characters, not {len(pattern):,}")
    if not is_regex:
        return lambda line: pattern in line
    try:
        import regex  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ImportError("regular expressions need the package regex: pip install 'plait[files]'") from None
    try:
        compiled: Any = regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"the pattern {pattern!r} is invalid: {error}") from None
    except (RecursionError, MemoryError):
        raise ValueError(f"the pattern {pattern!r} is invalid: it is too large") from None

    left = timeout

    def matches(line: str) -> bool:
        nonlocal left
        began = perf_counter()
        try:
            found = compiled.search(line, timeout=left, concurrent=True) if left > 0 else None
        except TimeoutError:
            found = None
        left -= perf_counter() - began
        if left <= 0:
            raise ValueError(f"the pattern {pattern!r} takes more than {timeout:g} s: it is stopped")
        return found is not None

    return matches


class Searcher:
    """Finds the lines of one file, up to `limit`; a file that is not UTF-8, or has a NUL, has none.

    A long line is searched in parts, each with the last `overlap` characters of the part before.
    """

    def __init__(self, path: str, matches: Matcher, limit: int, *, overlap: int) -> None:
        self._path = path
        self._matches = matches
        self._limit = limit
        self._overlap = overlap
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._rest = ""
        self._line = 1
        self._found: list[FileMatch] = []

    async def search(self, content: AsyncIterator[bytes]) -> list[FileMatch]:
        """Return the lines of a content. Raises ValueError if the pattern takes too long."""
        async for data in content:
            if not await asyncio.to_thread(self._search_some, data, is_last=False):
                return []
            if len(self._found) >= self._limit:
                return self._found[: self._limit]
        is_text = await asyncio.to_thread(self._search_some, b"", is_last=True)
        return self._found[: self._limit] if is_text else []

    def _search_some(self, data: bytes, *, is_last: bool) -> bool:
        """Search the lines that end in a piece of the content; return whether it is text."""
        try:
            text = self._rest + self._decode(data, is_last)
        except UnicodeDecodeError:
            return False
        if "\0" in text:
            return False
        lines = text.split("\n")
        self._rest = "" if is_last else lines.pop()
        for line in lines:
            self._search_line(line.removesuffix("\r"))
            self._line += 1
        if len(self._rest) > _LONGEST:
            self._search_line(self._rest)
            self._rest = self._rest[len(self._rest) - self._overlap :]
        return True

    def _search_line(self, line: str) -> None:
        if len(self._found) < self._limit and self._matches(line):
            self._found.append(FileMatch(self._path, self._line, line[:MOST_TEXT]))
