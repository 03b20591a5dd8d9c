"""How many bytes of the JavaScript client a page loads, minified and gzipped, by what it imports."""

import subprocess
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.table import layout

__all__ = ["Size", "client_sizes", "size_table"]

SCRIPT: Final = Path(__file__).parents[1] / "client/js/scripts/sizes.js"
# In bytes. React's hooks may have this many more than what they are imported with.
AIMS: Final = {"ThreadClient alone": 16_000, "with text and undo": 22_000}
REACT: Final = {"React hooks": "ThreadClient alone"}
REACT_AIM: Final = 2_000


class Size(msgspec.Struct):
    """What one kind of page loads, in bytes."""

    page: str
    size: int
    aim: int | None = None


def client_sizes() -> list[Size]:
    """Bundle the client for each kind of page and measure it."""
    printed = subprocess.run(["node", SCRIPT], check=True, capture_output=True)
    sizes = msgspec.json.decode(printed.stdout, type=dict[str, int])
    aims = AIMS | {page: sizes[base] + REACT_AIM for page, base in REACT.items()}
    return [Size(page, size, aims.get(page)) for page, size in sizes.items()]


def size_table(sizes: list[Size]) -> str:
    """Lay the sizes out."""
    lines = [("a page that loads", "kB", "aim", "")]
    for each in sizes:
        aim = "" if each.aim is None else f"≤ {each.aim / 1000:.1f}"
        verdict = "" if each.aim is None else "met" if each.size <= each.aim else "MISSED"
        lines.append((each.page, f"{each.size / 1000:.1f}", aim, verdict))
    return layout(lines, right={1})
