"""The outcome of a program."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

__all__ = ["CodeLog", "CodeResult", "CodeStatus"]

CodeStatus = Literal["success", "error", "link_error", "memory", "terminated"]
"""How a program has ended: `link_error` if it did not begin, and `terminated` by a time limit or from outside."""


class CodeLog(msgspec.Struct, frozen=True):
    """A line that a program has logged, at the level of the method of `console`."""

    level: str
    text: str


class CodeResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a program: its value, or the text of its error, and what it has logged."""

    status: CodeStatus
    value: Any = None
    error: str | None = None
    logs: Sequence[CodeLog] = ()
