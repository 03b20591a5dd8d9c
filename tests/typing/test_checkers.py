"""What type checkers say about handles, parts, agents and clients: they accept good lines and refuse each bad one."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
GOOD, BAD = HERE / "good.py", HERE / "bad.py"
PATHS = [ROOT, ROOT / "server", ROOT / "client" / "python", ROOT / "schemas"]
# It has a cache of its own, as `make check` runs at the same time.
MYPY = (
    "mypy",
    "--config-file",
    os.devnull,
    "--explicit-package-bases",
    "--cache-dir",
    ".mypy_cache/typing",
    "--output",
    "json",
)
Errors = Mapping[tuple[str, int], set[str]]
"""The codes of errors, by the names of files and the numbers of lines."""


class Line(NamedTuple):
    """A line that is wrong: what is wrong, and the error of each checker."""

    what: str
    errors: Mapping[str, str]


def read_bad() -> dict[int, Line]:
    """Return the bad lines by their numbers."""
    lines = BAD.read_text().splitlines()
    found = {}
    for number, line in enumerate(lines, 1):
        if match := re.search(r"  # ([a-z-]+), (report\w+)$", line):
            found[number] = Line(lines[number - 2].strip(" #"), {"mypy": match[1], "pyright": match[2]})
    return found


def run(*command: str, paths: Iterable[Path] = ()) -> str:
    """Run a checker, which finds modules in `paths`, too; return what it prints."""
    environment = {**os.environ, "MYPYPATH": os.pathsep.join(map(str, [*PATHS, *paths]))}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout.strip()


def run_mypy() -> Errors:
    """Return what `mypy --strict` reports."""
    found: dict[tuple[str, int], set[str]] = {}
    for line in run(*MYPY, "--strict", str(GOOD), str(BAD)).splitlines():
        error = json.loads(line)
        found.setdefault((Path(error["file"]).name, error["line"]), set()).add(error["code"])
    return found


def run_pyright() -> Errors:
    """Return what pyright reports in strict mode."""
    pytest.importorskip("pyright", reason="pyright is not installed")
    report = json.loads(run("pyright", "--project", str(HERE), "--pythonpath", sys.executable, "--outputjson"))
    found: dict[tuple[str, int], set[str]] = {}
    for error in report["generalDiagnostics"]:
        place = Path(error["file"]).name, error["range"]["start"]["line"] + 1
        found.setdefault(place, set()).add(error.get("rule", ""))
    return found


CHECKERS = {"mypy": run_mypy, "pyright": run_pyright}


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_checker_accepts_each_good_line_and_refuses_each_bad_one(checker: str) -> None:
    errors, bad = CHECKERS[checker](), read_bad()
    found = {number: errors.get((BAD.name, number), {"accepted"}) for number in bad}
    wrong = [(n, line.what, found[n]) for n, line in bad.items() if line.errors[checker] not in found[n]]
    assert wrong == []
    assert [place for place in errors if place[0] != BAD.name or place[1] not in bad] == []


def test_there_are_many_lines_of_either_kind() -> None:
    bad = read_bad()
    assert len({line.what for line in bad.values()}) == len(bad) >= 40
    assert len(re.findall(r"\n    (?:assert|await|async for)", GOOD.read_text())) >= 40
    # No bad line lacks its error.
    assert BAD.read_text().count("\n    # ") == len(bad)
