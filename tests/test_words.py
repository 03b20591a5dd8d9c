"""Words that plain technical English does without: a count for each folder, which may only fall."""

import re
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

# How many marker words the prose of a folder has. A file counts in the longest of these rows that it is in.
# A number may only fall. A file outside all rows may have none.
COUNTS: Final = {
    "CHANGELOG.md": 0,
    "schemas": 1,
    "client/python": 0,
    "client/js": 0,
    "client/js/src": 0,
    "client/js/test": 0,
    "server/plait/actor": 0,
    "server/plait/adapters": 0,
    "server/plait/agents": 0,
    "server/plait/node": 0,
    "server/plait/parts": 0,
    "server/plait/session": 0,
    "server/plait/state": 0,
    "server/plait/web": 0,
    "examples": 0,
    "benchmarks": 0,
    "tests": 0,
}

# A sentence with one of these often lacks a subject that does something, or a noun near its pronoun.
MARKERS: Final = re.compile(
    (
        r"\b(nobody|whoever|whomever|somebody|anew|meanwhile|lets?|those who(se|m)?|of (which|whom)|by then|takes? note"
        r"|(is|are) minded|as it really is|so much behind|becomes? of|became of|ha(s|ve) to tell|any more|all the same"
        r"|(among|beside|by|for|from|of|than|to|with) who)\b"
    ).replace(" ", r"[\s#*]+"),
    re.IGNORECASE,
)
# A docstring that begins with one of these lacks the noun: "The bounds of a log", not "How much of a log is kept".
NOT_NOUNS: Final = re.compile(r'"{3}((Of )?What|Who|Whom|Whose|Where|How (many|much)|Those) ')
ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = ("docs", "schemas", "server", "client", "examples", "benchmarks", "tests")
GENERATED: Final = re.compile(r"/(node_modules|dist|generated|vectors)/|^server/plait/web/(client|messages)\.js$")
PYTHON: Final = re.compile(r"""#[^\n]*(\n *#[^\n]*)*|"{3}.*?"{3}|"(\\.|[^"\\\n])*"|'(\\.|[^'\\\n])*'""", re.DOTALL)
DOCSTRING: Final = re.compile(r' *"{3}')
SCRIPT: Final = re.compile(r"""//[^\n]*|/\*.*?\*/|"(\\.|[^"\\\n])*"|'(\\.|[^'\\\n])*'|`(\\.|[^`\\])*`""", re.DOTALL)


class Prose(NamedTuple):
    """A piece of prose and the line where it begins."""

    line: int
    text: str


def read_markdown(source: str) -> Iterator[Prose]:
    """Yield what a page says beside its code."""
    blank = re.sub(r"^```.*?^```$", lambda block: "\n" * block[0].count("\n"), source, flags=re.M | re.S)
    yield Prose(1, re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", blank))


def read_python(source: str, *, is_test: bool) -> Iterator[Prose]:
    """Yield the comments and strings of a module; of a test, whose strings are data, the comments and docstrings."""
    for found in PYTHON.finditer(source):
        is_data = (
            is_test and found[0][0] != "#" and DOCSTRING.match(source, source.rfind("\n", 0, found.start()) + 1) is None
        )
        if not is_data:
            yield Prose(source.count("\n", 0, found.start()) + 1, found[0])


def read_script(source: str) -> Iterator[Prose]:
    """Yield the comments and literals of a script."""
    for found in SCRIPT.finditer(source):
        yield Prose(source.count("\n", 0, found.start()) + 1, found[0].strip("/*\"'` \n"))


def read_html(source: str) -> Iterator[Prose]:
    """Yield the text of a page, and the comments and literals of its scripts."""
    line = 1
    for part in re.split(r"(<script.*?</script>|<style.*?</style>)", source, flags=re.DOTALL):
        if part.startswith("<script"):
            yield from (Prose(line + prose.line - 1, prose.text) for prose in read_script(part))
        elif not part.startswith("<style"):
            yield Prose(line, re.sub(r"<code.*?</code>|<[^>]*>", "", part))
        line += part.count("\n")


def read_prose(path: Path) -> Iterator[Prose]:
    """Yield the prose of a file, or nothing if even its code is without a marker word."""
    source = path.read_text()
    if MARKERS.search(source) is None:
        return
    match path.suffix:
        case ".md":
            yield from read_markdown(source)
        case ".py":
            yield from read_python(source, is_test=path.is_relative_to(ROOT / "tests"))
        case ".html":
            yield from read_html(source)
        case _:
            yield from read_script(source)


def find_places(path: Path) -> Iterator[str]:
    """Yield the marker words of a file, each after the number of its line."""
    for prose in read_prose(path):
        for marker in MARKERS.finditer(prose.text):
            line = prose.line + prose.text.count("\n", 0, marker.start())
            yield f"{line}: {re.sub(r'[^a-z]+', ' ', marker[0].lower())}"


def find_files() -> Iterator[str]:
    """Yield the files with prose, by their paths from the root."""
    for folder in FOLDERS:
        for suffix in ("md", "py", "ts", "tsx", "js", "mjs", "html"):
            for path in (ROOT / folder).rglob(f"*.{suffix}"):
                if GENERATED.search(name := path.relative_to(ROOT).as_posix()) is None:
                    yield name
    yield from (path.name for path in ROOT.glob("*.md"))


def find_markers() -> dict[str, list[str]]:
    """Return where the marker words are, by the row of the table."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in find_files():
        row = max((row for row in COUNTS if f"{name}/".startswith(f"{row}/")), key=len, default=name)
        found[row] += [f"{name}:{place}" for place in find_places(ROOT / name)]
    return found


def test_no_docstring_begins_with_a_question_in_the_place_of_a_noun() -> None:
    folders = (ROOT / each for each in ("server/plait", "schemas/plait_schemas", "client/python/plait_client"))
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in folders
        for path in folder.rglob("*.py")
        for line in path.read_text().splitlines()
        if NOT_NOUNS.search(line) is not None
    ]
    assert found == []


# Pytest shows the warnings: the numbers that can be lowered.
@pytest.mark.filterwarnings("default:lower")
def test_no_folder_has_more_marker_words_than_before() -> None:
    found = find_markers()
    assert [place for row, places in found.items() if len(places) > COUNTS.get(row, 0) for place in places] == []
    for row, count in COUNTS.items():
        if len(found[row]) < count:
            warnings.warn(f"lower {row!r} to {len(found[row])}", stacklevel=1)


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("a.md", "Whoever\n```js\nlet x = 1;\n```\nlooks at `let`, [lets](let.md) go.", ["1: whoever", "5: lets"]),
        (
            "a.py",
            '"""Whoever."""\n# It is of\n# which\nlet = f"{it} anew"\n',
            ["1: whoever", "2: of which", "4: anew"],
        ),
        (
            "a.ts",
            "let x = 'nobody'; // let it\n/** Lets\n * `it` */ let y = `anew`;",
            ["1: nobody", "1: let", "2: lets", "3: anew"],
        ),
        (
            "a.html",
            "<p class=let>Nobody<code>let</code></p>\n<script>let x; // anew\n</script>\nlet",
            ["1: nobody", "2: anew", "4: let"],
        ),
    ],
)
def test_words_are_found_in_prose_and_not_in_code(name: str, source: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / name).write_text(source)
    assert list(find_places(tmp_path / name)) == expected
