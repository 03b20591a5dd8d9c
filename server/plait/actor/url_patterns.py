"""Paths with parameters, such as `/report/{year:int}`, as Starlette writes them. No I/O."""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import unquote
from uuid import UUID

from plait.errors import NotFound

__all__ = ["UrlPattern", "decode_segments"]


class _Converter(NamedTuple):
    """The regular expression of a parameter, the function that makes its value, and its generality."""

    pattern: str
    make: Callable[[str], Any]
    rank: int


_CONVERTERS: Final = {
    "uuid": _Converter("[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}", UUID, 1),
    "int": _Converter("[0-9]+", int, 2),
    "float": _Converter(r"[0-9]+(?:\.[0-9]+)?", float, 3),
    "str": _Converter("[^/]+", str, 4),
    "path": _Converter(".*", str, 5),
}
_ANY_SEGMENT: Final = _CONVERTERS["str"].pattern
_PATH: Final = _CONVERTERS["path"].rank
_PARAMETER: Final = re.compile(r"\{([a-zA-Z_][a-zA-Z0-9_]*)(?::([a-z]+))?\}")
# Stands for a slash inside of a segment while paths are matched; `decode_segments` refuses real null characters.
_INNER_SLASH: Final = "\0"
# Maximum digits of a number: by default, `int` refuses longer ones, as they would take long.
_MOST_DIGITS: Final = 4_000


class _Segment(NamedTuple):
    """One segment of a pattern: its regular expression without names, and its generality.

    `kind` is 0 for plain text, or the rank of its converter; `text` is the number of characters besides the parameter.
    """

    shape: str
    kind: int
    text: int

    @property
    def rank(self) -> tuple[int, int]:
        """The order in which segments are tried: with the same converter, the segment with more text comes first."""
        return self.kind, -self.text

    def covers(self, other: "_Segment") -> bool:
        """Whether this segment matches everything that the other one matches."""
        return self.shape == other.shape or (self.shape == _ANY_SEGMENT and other.kind < _PATH)


class UrlPattern:
    """A path with parameters. Raises ValueError for an invalid pattern.

    The converters are `str` (the default, one segment), `int`, `float`, `uuid`, and `path` for the rest of the path,
    which may be empty.
    """

    def __init__(self, text: str) -> None:
        if not text.startswith("/"):
            raise ValueError(f"the path {text!r} must begin with a slash")
        self.parameters: dict[str, str] = {}
        parts = [part for part in text.split("/") if part]
        self.text = "/" + "/".join(parts)
        last = len(parts) - 1
        self._segments = tuple(self._read(part, is_last=at == last, text=text) for at, part in enumerate(parts))
        expressions = [_write_regex(part, lambda name, pattern: f"(?P<{name}>{pattern})") for part in parts]
        # The rest of a path may be empty, without a slash before it.
        is_open = bool(parts) and self._segments[-1].kind == _PATH
        rest = f"(?:/{expressions.pop()})?" if is_open else ""
        self._regex = re.compile("".join(f"/{each}" for each in expressions) + rest or "/", re.DOTALL)

    @property
    def rank(self) -> tuple[tuple[tuple[int, int], ...], str]:
        """The order in which patterns are tried: plain text before parameters, and the rest of a path last."""
        return tuple(segment.rank for segment in self._segments), self.text

    @property
    def without_types(self) -> str:
        """The path with the names of its parameters only, as OpenAPI writes it."""
        return _PARAMETER.sub(r"{\1}", self.text)

    def covers(self, other: "UrlPattern") -> bool:
        """Whether this pattern matches everything that the other one matches, which is never reached after it."""
        mine, theirs = self._segments, other._segments
        if mine and mine[-1].kind == _PATH:
            mine, theirs = mine[:-1], theirs[: len(mine) - 1]
        return len(mine) == len(theirs) and all(a.covers(b) for a, b in zip(mine, theirs, strict=True))

    def match(self, path: str) -> dict[str, Any] | None:
        """Return the values of the parameters in a path of `decode_segments`; None if it does not match."""
        found = self._regex.fullmatch(path)
        if found is None:
            return None
        texts = {name: (text or "").replace(_INNER_SLASH, "/") for name, text in found.groupdict().items()}
        if any(len(texts[name]) > _MOST_DIGITS for name, type_ in self.parameters.items() if type_ in ("int", "float")):
            return None
        return {name: _CONVERTERS[self.parameters[name]].make(text) for name, text in texts.items()}

    # Inside

    def _read(self, part: str, *, is_last: bool, text: str) -> _Segment:
        found = _PARAMETER.findall(part)
        if "{" in (plain := _PARAMETER.sub("", part)) or "}" in plain:
            raise ValueError(f"the path {text!r}: write parameters as {{name}} or {{name:int}}")
        # With two parameters, the time to match a long segment would grow with its square.
        if len(found) > 1:
            raise ValueError(f"the path {text!r}: {part!r} has more than one parameter; a segment may have one")
        converter = 0
        for name, type_ in found:
            kind = type_ or "str"
            if kind not in _CONVERTERS:
                raise ValueError(f"the path {text!r}: {kind!r} is none of {', '.join(_CONVERTERS)}")
            if name in self.parameters:
                raise ValueError(f"the path {text!r} has two parameters {name!r}")
            if kind == "path" and not (is_last and _PARAMETER.fullmatch(part)):
                raise ValueError(f"the path {text!r}: {{{name}:path}} must be its last segment")
            self.parameters[name] = kind
            converter = _CONVERTERS[kind].rank
        return _Segment(_write_regex(part, lambda name, pattern: pattern), converter, len(plain))


def _write_regex(part: str, write: Callable[[str, str], str]) -> str:
    pieces, at = [], 0
    for found in _PARAMETER.finditer(part):
        pattern = _CONVERTERS[found[2] or "str"].pattern
        pieces += [re.escape(part[at : found.start()]), write(found[1], pattern)]
        at = found.end()
    return "".join([*pieces, re.escape(part[at:])])


def decode_segments(rest: str) -> str:
    """Return the part of a path after the thread, decoded, for `UrlPattern.match`. Raises NotFound."""
    try:
        parts = [unquote(part, errors="strict") for part in rest.split("/") if part]
    except UnicodeDecodeError:
        raise NotFound("the URL is not UTF-8") from None
    if any(_INNER_SLASH in part for part in parts):
        raise NotFound("the URL has a null character")
    return "/" + "/".join(part.replace("/", _INNER_SLASH) for part in parts)
