"""What the files of plait import, read from their source, and the longest chains of imports."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["MODULES", "ROOT", "Import", "find_imports", "is_in", "longest_chain", "longest_chain_in"]

ROOT = Path(__file__).parent.parent


class Import(NamedTuple):
    """One import statement's module, or one of the names after `from … import`."""

    importer: str
    imported: str
    line: int
    is_lazy: bool
    is_for_types: bool


def find_modules() -> dict[str, Path]:
    """Return the files of both packages by the names of their modules."""
    found = {}
    for root in ("schemas", "server"):
        for path in sorted((ROOT / root).rglob("*.py")):
            parts = path.relative_to(ROOT / root).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = find_modules()


def find_imports(module: str) -> list[Import]:
    """Return everything that a module imports."""
    return list(_imports(module, ast.parse(MODULES[module].read_text()), is_lazy=False, is_for_types=False))


def _imports(module: str, node: ast.AST, *, is_lazy: bool, is_for_types: bool) -> Iterator[Import]:
    names: list[str] = []
    match node:
        case ast.Import(names=aliases):
            names = [alias.name for alias in aliases]
        case ast.ImportFrom(module=str(source), level=0, names=aliases):
            inner = [f"{source}.{alias.name}" for alias in aliases]
            names = [each if each in MODULES else source for each in inner]
        case ast.ImportFrom():
            names = ["a relative import"]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            is_lazy = True
        case ast.If(test=test):
            is_for_types = is_for_types or "TYPE_CHECKING" in ast.unparse(test)
    for name in names:
        yield Import(module, name, getattr(node, "lineno", 0), is_lazy, is_for_types)
    for child in ast.iter_child_nodes(node):
        yield from _imports(module, child, is_lazy=is_lazy, is_for_types=is_for_types)


def is_in(module: str, package: str) -> bool:
    """Tell whether a module is `package` or in it; the top of plait is only itself."""
    return module == package or (package != "plait" and module.startswith(f"{package}."))


@cache
def _read_graph() -> Mapping[str, frozenset[str]]:
    """Return the modules that each module of plait imports."""
    return {
        module: frozenset(
            each.imported for each in find_imports(module) if each.imported in MODULES and not each.is_lazy
        )
        for module in MODULES
    }


def longest_chain_in(package: str) -> tuple[str, ...]:
    """Return the longest chain of imports inside a package, from the top to the bottom."""
    return _find_longest({module for module in MODULES if is_in(module, package)})


def longest_chain() -> tuple[str, ...]:
    """Return the longest chain of imports in the server."""
    return _find_longest({module for module in MODULES if not is_in(module, "plait_schemas")})


def _find_longest(modules: set[str]) -> tuple[str, ...]:
    graph = _read_graph()

    @cache
    def find(module: str) -> tuple[str, ...]:
        below = [find(each) for each in sorted(graph[module] & modules)]
        return (module, *max(below, key=len, default=()))

    return max((find(module) for module in sorted(modules)), key=len)
