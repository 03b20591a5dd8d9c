"""`__all__` lists exactly the public names."""

import ast
import importlib
import inspect
from functools import cache
from types import ModuleType

from tests.test_layers import MODULES

import plait


@cache
def with_code() -> list[str]:
    """Return the modules that are more than their docstring."""
    return [name for name, path in MODULES.items() if len(ast.parse(path.read_text()).body) > 1]


def load(module: str) -> ModuleType:
    return importlib.import_module(module)


def test_all_names_things_that_exist() -> None:
    missing = [f"{each}.{name}" for each in with_code() for name in load(each).__all__ if not hasattr(load(each), name)]
    assert missing == []


def test_all_names_each_thing_once_and_nothing_private() -> None:
    names = {module: load(module).__all__ for module in with_code()}
    assert [module for module, found in names.items() if len(set(found)) < len(found)] == []
    assert [f"{module}.{name}" for module, found in names.items() for name in found if name.startswith("_")] == []


def test_all_names_what_the_module_has_made_itself() -> None:
    borrowed = [
        f"{module}.{name}"
        for module in with_code()
        if module != "plait"
        for name in load(module).__all__
        if inspect.isclass(thing := getattr(load(module), name)) or inspect.isfunction(thing)
        if thing.__module__ != module
    ]
    assert borrowed == []


def test_a_module_has_one_line_of_docstring_or_more() -> None:
    assert [module for module in MODULES if not (load(module).__doc__ or "").strip()] == []


def test_modules_take_from_each_other_only_what_is_public() -> None:
    hidden = [
        f"{module}: {node.module}.{alias.name}"
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module in MODULES
        for alias in node.names
        if f"{node.module}.{alias.name}" not in MODULES and alias.name not in load(node.module).__all__
    ]
    assert hidden == []


def test_plait_exports_all_that_it_imports_and_nothing_else() -> None:
    tree = ast.parse(MODULES["plait"].read_text())
    imported = [
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assert sorted(imported) == sorted(plait.__all__)


def test_plaits_exports_are_sorted() -> None:
    # What is all capitals comes first, as ruff has it.
    assert plait.__all__ == sorted(plait.__all__, key=lambda name: (not name.isupper(), name))


def test_plaits_init_does_nothing_but_import() -> None:
    kinds = {type(node) for node in ast.parse(MODULES["plait"].read_text()).body}
    assert kinds == {ast.Expr, ast.ImportFrom, ast.Assign}


def test_every_error_is_exported() -> None:
    errors = load("plait.errors")
    public = {name for name in errors.__all__ if inspect.isclass(getattr(errors, name))}
    assert public <= set(plait.__all__)


def test_every_error_has_a_code_of_its_own_and_a_status() -> None:
    errors = load("plait.errors")
    classes = [getattr(errors, name) for name in errors.__all__ if inspect.isclass(getattr(errors, name))]
    assert len({each.code for each in classes}) == len(classes)
    assert all(400 <= each.status < 600 for each in classes)
    for each in classes:
        assert each.__name__ in (errors.__doc__ or "")
