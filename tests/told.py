"""Checks the errors that clients get for exceptions that are not plait's."""

import re
from typing import Final

import pytest

__all__ = ["INTERNAL", "check_internal"]

INTERNAL: Final = re.compile(r"internal error ([0-9a-f]{12})")


def check_internal(told: str, caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Check that a client was told an id only, by which the log has an exception with this text, once."""
    found = INTERNAL.fullmatch(told)
    assert found is not None, told
    lines = [each for each in caplog.records if each.levelname == "ERROR" and found[1] in each.getMessage()]
    assert len(lines) == 1, lines
    assert lines[0].exc_info is not None
    assert text in str(lines[0].exc_info[1])
