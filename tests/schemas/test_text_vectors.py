"""The differences of texts that schemas/vectors says, which the TypeScript client finds, too."""

import json
from pathlib import Path
from typing import Any

import pytest

from plait_schemas.text import spliced
from plait_schemas.text_diff import TextComparison

VECTORS = Path(__file__).parents[2] / "schemas" / "vectors" / "texts" / "differences.json"


def expand(pieces: Any) -> str:
    """Return a text that is told in pieces."""
    return pieces if isinstance(pieces, str) else "".join(map(expand_piece, pieces))


def expand_piece(piece: Any) -> str:
    if isinstance(piece, str):
        return piece
    if "$repeat" in piece:
        text, times = piece["$repeat"]
        return str(text * times)
    template, start, end = piece["$count"]
    return "".join(template.replace("{}", str(at)) for at in range(start, end, 1 if start < end else -1))


@pytest.mark.parametrize("name", ["words", "letters"])
def test_the_differences_are_those_that_the_typescript_client_finds(name: str) -> None:
    for case in json.loads(VECTORS.read_text()):
        old, new = expand(case["old"]), expand(case["new"])
        found = TextComparison(by_letters=name == "letters").compare(old, new)
        assert spliced(old, found) == new
        expected = [(at, remove, insert if isinstance(insert, str) else None) for at, remove, insert in case[name]]
        known = [insert is not None for _, _, insert in expected]
        assert [
            (at, remove, insert if is_known else None)
            for (at, remove, insert), is_known in zip(found, known, strict=True)
        ] == expected
