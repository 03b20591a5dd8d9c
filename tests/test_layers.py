"""Imports point down, never up, never in a circle, and none is hidden."""

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

# From the bottom to the top: what is in a row may import itself and the rows below it.
LAYERS = (
    ("plait_schemas",),
    ("plait.errors", "plait.limits", "plait.settings", "plait.spelling"),
    ("plait.instruments",),
    ("plait.store",),
    ("plait.state",),
    ("plait.actor",),
    ("plait.parts",),
    ("plait.agents",),
    ("plait.node",),
    ("plait.session",),
    ("plait.web",),
    ("plait.app",),
    ("plait.cli",),
    ("plait",),
    # Those for other projects' agents use plait as its users do.
    ("plait.adapters",),
)

# Who may import what from outside, beside msgspec and the standard library, which are for all.
OUTSIDE = {
    "ag_ui": ("plait.adapters.ag_ui",),
    "aiosqlite": ("plait.store.sqlite",),
    "cyclopts": ("plait.cli",),
    "httptools": ("plait.web",),
    "langchain_core": ("plait.adapters.langgraph",),
    "langgraph": ("plait.adapters.langgraph",),
    "opentelemetry": ("plait.instruments.otel",),
    "prometheus_client": ("plait.instruments.prometheus",),
    "pydantic": ("plait.adapters.ag_ui",),
    "pydantic_ai": ("plait.adapters.pydantic_ai",),
    "pydantic_core": ("plait.adapters.pydantic_ai",),
    "starlette": ("plait.web", "plait.app", "plait.cli", "plait.adapters.ag_ui"),
    "uvicorn": ("plait.web", "plait.app", "plait.cli"),
    "watchfiles": ("plait.cli",),
    "websockets": ("plait.web",),
}
# Hooks are given Starlette's Request and return its Response, and these hand them on.
STARLETTE_TYPES = (
    "plait.agents",
    "plait.actor",
    "plait.session",
)

# Imports in a function: of what is not always installed.
LAZY = {("plait.instruments.prometheus", "prometheus_client"), ("plait.cli.serving", "watchfiles")}


# What sessions and the web may import of the threads: the facade of an actor, and what goes in and out of it.
OUTER = ("plait.session", "plait.web")
FACADE = (
    "plait.actor.connection",
    "plait.actor.facade",
    "plait.actor.kind",
    "plait.actor.logs",
    "plait.actor.outcome",
    "plait.actor.rpc",
    "plait.actor.transport",
)
# What the facade hides, by the names of classes and attributes.
HIDDEN_CLASSES = {"Actor", "ChangeLog", "History", "Hooks", "Mailbox", "Merger", "Pipeline", "PushLog", "Thread"}
HIDDEN = {"_core", "change_log", "history", "hooks", "mailbox", "pipeline"}
# What may be asked of a value that an actor returned, without a name for the value in between.
VALUES = {"current", "durable", "epoch", "instruments", "key", "kind", "limits"}


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


ALL_IMPORTS = [each for module in MODULES for each in find_imports(module)]


def is_in(module: str, package: str) -> bool:
    """Tell whether a module is `package` or in it; the top of plait is only itself."""
    return module == package or (package != "plait" and module.startswith(f"{package}."))


def find_row(module: str) -> int:
    """Return the row of a module in the table."""
    return next(row for row, packages in enumerate(LAYERS) if any(is_in(module, each) for each in packages))


def is_ours(name: str) -> bool:
    return name.partition(".")[0] in ("plait", "plait_schemas")


def test_every_module_has_a_place_in_the_table() -> None:
    assert [module for module in MODULES if not any(is_in(module, each) for row in LAYERS for each in row)] == []


def test_everything_in_the_table_is_there() -> None:
    missing = [each for row in LAYERS for each in row if not any(is_in(module, each) for module in MODULES)]
    assert missing == []


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    row = find_row(module)
    breaches = [
        f"line {each.line}: {each.imported}"
        for each in find_imports(module)
        if is_ours(each.imported) and find_row(each.imported) > row
    ]
    assert breaches == []


def test_imports_go_round_in_no_circle() -> None:
    graph = {module: {each.imported for each in ALL_IMPORTS if each.importer == module} for module in MODULES}
    TopologicalSorter(graph).prepare()


def test_the_schemas_know_nothing_but_msgspec() -> None:
    allowed = {"msgspec", "plait_schemas", *sys.stdlib_module_names}
    breaches = [
        each
        for each in ALL_IMPORTS
        if is_in(each.importer, "plait_schemas") and each.imported.partition(".")[0] not in allowed
    ]
    assert breaches == []


def test_no_import_is_hidden_in_a_function() -> None:
    breaches = [each for each in ALL_IMPORTS if each.is_lazy and (each.importer, each.imported) not in LAZY]
    assert breaches == []


def test_no_import_is_for_types_only() -> None:
    assert [each for each in ALL_IMPORTS if each.is_for_types] == []


def test_no_import_is_relative() -> None:
    assert [each for each in ALL_IMPORTS if each.imported == "a relative import"] == []


def test_packages_from_outside_are_imported_only_where_they_may_be() -> None:
    breaches = []
    for each in ALL_IMPORTS:
        package = each.imported.partition(".")[0]
        if is_ours(each.imported) or package == "msgspec" or package in sys.stdlib_module_names:
            continue
        may_be = any(is_in(each.importer, allowed) for allowed in OUTSIDE.get(package, ()))
        is_type = each.imported in ("starlette.requests", "starlette.responses") and any(
            is_in(each.importer, package) for package in STARLETTE_TYPES
        )
        if not (may_be or is_type):
            breaches.append(each)
    assert breaches == []


OUTER_MODULES = [module for module in MODULES if any(is_in(module, each) for each in OUTER)]


@pytest.mark.parametrize("module", OUTER_MODULES)
def test_sessions_and_the_web_import_only_the_facade_of_an_actor(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text())
    names = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(("plait.actor", "plait.state"))
        for alias in node.names
    ]
    modules = [each.imported for each in find_imports(module) if is_in(each.imported, "plait.actor")]
    assert HIDDEN_CLASSES.intersection(names) == set()
    assert set(modules) <= set(FACADE)


@pytest.mark.parametrize("module", OUTER_MODULES)
def test_sessions_and_the_web_do_not_reach_through_an_actor(module: str) -> None:
    shown, parts = find_facade()
    found = []
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        match node:
            case ast.Attribute(value=value, attr=attribute) if attribute in HIDDEN and ast.unparse(value) != "self":
                found.append(ast.unparse(node))
            case ast.Attribute(value=ast.Name(id="actor") | ast.Attribute(attr="_actor"), attr=attribute):
                if attribute in parts or attribute not in shown:
                    found.append(ast.unparse(node))
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id="actor") | ast.Attribute(attr="_actor"), attr=between)
            ):
                if between not in VALUES:
                    found.append(ast.unparse(node))
    assert found == []


def find_facade() -> tuple[set[str], set[str]]:
    """Return what a facade shows, and the attributes that are its parts."""
    tree = ast.parse(MODULES["plait.actor.facade"].read_text())
    facade = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Facade")
    methods = {node.name for node in facade.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    attributes = {ast.unparse(node.target) for node in facade.body if isinstance(node, ast.AnnAssign)}
    facts = {"key", "kind", "limits", "instruments", "after"}
    return methods | facts, attributes - facts


def test_every_part_that_is_hidden_is_there() -> None:
    shown, parts = find_facade()
    assert parts >= {"pipeline", "change_log", "hooks", "thread", "turns"}
    assert shown >= VALUES
    classes = {
        node.name
        for path in MODULES.values()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    assert classes >= HIDDEN_CLASSES
    assert {each.imported for each in ALL_IMPORTS if each.importer in OUTER_MODULES} >= set(FACADE)


def test_every_exception_is_needed() -> None:
    made = {(each.importer, each.imported) for each in ALL_IMPORTS}
    assert made >= LAZY
    for module in STARLETTE_TYPES:
        assert any(is_in(importer, module) and name.startswith("starlette.") for importer, name in made), module
    for package, importers in OUTSIDE.items():
        assert any(
            name.partition(".")[0] == package and any(is_in(importer, each) for each in importers)
            for importer, name in made
        ), package
