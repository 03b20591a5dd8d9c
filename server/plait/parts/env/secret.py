"""The values of variables, and variables as they are stored."""

import re
from typing import Final, Literal, NoReturn

import msgspec

__all__ = ["Secret", "Variable", "VariableType", "check_variable", "make_secret"]

VariableType = Literal["text", "secret"]
"""Whether a value may be shown (`text`) or not (`secret`)."""

_TYPES: Final = ("text", "secret")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_HALVES: Final = re.compile("[\ud800-\udfff]")


class Secret:
    """A text that is not shown: only `reveal()` returns it.

    It cannot be formatted, joined, encoded as JSON, pickled or copied, so it gets into no log, error or answer by
    mistake. Two secrets are equal if their texts are. Raises TypeError if the text is not a str.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"the text of a Secret must be a str, not {type(text).__name__}")
        if _HALVES.search(text):
            raise ValueError("the text of a Secret has half of a surrogate pair")
        self._text = text

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret cannot be pickled or copied: call reveal()")

    def __getstate__(self) -> NoReturn:
        self.__reduce__()


class Variable(msgspec.Struct, frozen=True):
    """A variable of a thread or a user: its type, and its encrypted value."""

    type: VariableType
    data: bytes


def check_variable(name: str, type: object = None) -> None:
    """Raise TypeError and ValueError for an invalid name or type.

    The message does not quote the name, which may be a value that was passed in its place.
    """
    if not isinstance(name, str):
        raise TypeError("the name of a variable must be a str")
    if not _NAME.fullmatch(name):
        raise ValueError(
            "the name of a variable must have 1 to 128 letters, digits and underscores, and not begin with a digit"
        )
    if type is not None and type not in _TYPES:
        raise ValueError("the type of a variable must be 'text' or 'secret'")


def make_secret(value: "str | Secret") -> Secret:
    """Return the value of a variable as a Secret. Raises TypeError and ValueError."""
    return value if isinstance(value, Secret) else Secret(value)
