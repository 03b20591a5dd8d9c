"""Type checkers accept good lines, the examples and the programs of the docs, and refuse each bad line."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.test_docs import PAGES, programs

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
GOOD, BAD = HERE / "good.py", HERE / "bad.py"
# As in pyproject.toml: mypy has the types of plait in its cache, where `make check` has just put them.
PATHS = ["server", "client/python", "schemas", "."]
MYPY = ("mypy", "--config-file", os.devnull, "--strict", "--explicit-package-bases", "--output", "json")
# The programs are for readers: they may leave out annotations, and what is None in other apps only, and import what is
# not installed here.
LOOSE = (
    "# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators",
    "# mypy: allow-any-generics, allow-subclassing-any, implicit-reexport, no-strict-optional, no-strict-equality",
    "# mypy: no-warn-return-any, no-warn-unused-ignores, no-extra-checks",
    '# mypy: disable-error-code="func-returns-value,import-not-found,import-untyped"',
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


def write_programs(folder: Path) -> list[Path]:
    """Write the programs of all pages to a folder, and return their files."""
    files = []
    for page in PAGES:
        own = {Path(block.title).stem: block.code for block in programs(page)}
        # Several pages have a program of the same name.
        prefix = page.replace("-", "_")
        imports = re.compile(rf"^(\s*from )({'|'.join(own)})( import)", re.MULTILINE)
        for name, code in own.items():
            files.append(folder / f"{prefix}_{name}.py")
            files[-1].write_text("\n".join((*LOOSE, imports.sub(rf"\g<1>{prefix}_\2\3", code))))
    assert len(files) > 40
    return files


def run(folder: Path, *command: str) -> str:
    """Run a checker, which finds modules in a folder, too; return what it prints."""
    environment = {**os.environ, "MYPYPATH": os.pathsep.join([*PATHS, str(folder)])}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout.strip()


def run_mypy(folder: Path) -> Errors:
    """Return what `mypy --strict` reports, of the programs and the examples, too: it reads plait only once."""
    found: dict[tuple[str, int], set[str]] = {}
    files = (GOOD, BAD, *sorted((ROOT / "examples").glob("*.py")), *write_programs(folder))
    for line in run(folder, *MYPY, *map(str, files)).splitlines():
        error = json.loads(line)
        found.setdefault((Path(error["file"]).name, error["line"]), set()).add(error["code"])
    return found


def run_pyright(folder: Path) -> Errors:
    """Return what pyright reports in strict mode."""
    pytest.importorskip("pyright", reason="pyright is not installed")
    report = json.loads(run(folder, "pyright", "--project", str(HERE), "--pythonpath", sys.executable, "--outputjson"))
    found: dict[tuple[str, int], set[str]] = {}
    for error in report["generalDiagnostics"]:
        place = Path(error["file"]).name, error["range"]["start"]["line"] + 1
        found.setdefault(place, set()).add(error.get("rule", ""))
    return found


@pytest.mark.parametrize("check", [run_mypy, run_pyright], ids=["mypy", "pyright"])
def test_a_checker_accepts_each_good_line_and_program_and_refuses_each_bad_line(
    check: Callable[[Path], Errors], tmp_path: Path
) -> None:
    errors, bad = check(tmp_path), read_bad()
    checker = check.__name__.removeprefix("run_")
    found = {number: errors.get((BAD.name, number), {"accepted"}) for number in bad}
    wrong = [(n, line.what, found[n]) for n, line in bad.items() if line.errors[checker] not in found[n]]
    assert wrong == []
    assert {place: of for place, of in errors.items() if place[0] != BAD.name or place[1] not in bad} == {}


def test_there_are_many_lines_of_either_kind() -> None:
    bad = read_bad()
    assert len({line.what for line in bad.values()}) == len(bad) >= 40
    assert len(re.findall(r"\n    (?:assert|await|async for)", GOOD.read_text())) >= 40
    # No bad line lacks its error.
    assert BAD.read_text().count("\n    # ") == len(bad)
