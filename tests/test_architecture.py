"""The names on the page about the architecture are those of the code."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text()
SERVER = ROOT / "server/plait"
# Where the files are that the page names, by their paths below one of these.
FOLDERS = (SERVER, ROOT, ROOT / "client/python/plait_client", ROOT / "client/js/src")
FILES = sorted(set(re.findall(r"`([\w/]+\.(?:py|ts))`", PAGE)))
NAMES = sorted(set(re.findall(r"`([A-Z]\w+(?:\.\w+)?)`", PAGE)))


def find_packages() -> list[str]:
    """Return the packages of the server in the order of the page's first drawing, from the top."""
    drawing = PAGE.partition("```text\n")[2].partition("```")[0]
    return re.findall(r"^  (\w+) {2,}\S", drawing, flags=re.MULTILINE)


@cache
def defined_in(path: Path) -> frozenset[str]:
    """Return the classes, functions and methods of a module, methods as `Class.method`."""
    return frozenset(_find_definitions(ast.parse(path.read_text())))


def _find_definitions(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
            functions = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            yield from (f"{node.name}.{each.name}" for each in functions)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def test_the_files_that_the_page_names_are_there() -> None:
    assert FILES
    assert [name for name in FILES if not any((folder / name).is_file() for folder in FOLDERS)] == []


def test_the_classes_and_methods_that_the_page_names_are_there() -> None:
    assert NAMES
    assert sorted(set(NAMES).difference(*(defined_in(path) for path in SERVER.rglob("*.py")))) == []


def test_what_the_page_names_is_in_the_file_that_it_names() -> None:
    named = sorted(set(re.findall(r"`([a-z_/]+\.py)`: `([A-Za-z_.]+)`", PAGE)))
    assert named
    assert [f"{file}: {name}" for file, name in named if name not in defined_in(SERVER / file)] == []


def test_the_page_names_every_package_in_the_order_of_the_layers() -> None:
    layers = re.findall(r'^    \("plait\.(\w+)",\),$', (ROOT / "tests/test_layers.py").read_text(), flags=re.MULTILINE)
    assert [each for each in find_packages() if each != "plait_schemas"] == layers[::-1]
    assert {each.name for each in SERVER.iterdir() if (each / "__init__.py").is_file()} <= set(layers)
