"""What is public is what `__all__` lists."""

import ast
import importlib
import inspect
from types import ModuleType

import pytest
from tests.test_layers import MODULES

import plait

WITH_CODE = [name for name, path in MODULES.items() if len(ast.parse(path.read_text()).body) > 1]


def load(module: str) -> ModuleType:
    return importlib.import_module(module)


@pytest.mark.parametrize("module", WITH_CODE)
def test_all_names_things_that_exist(module: str) -> None:
    loaded = load(module)
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []


@pytest.mark.parametrize("module", WITH_CODE)
def test_all_names_each_thing_once_and_nothing_private(module: str) -> None:
    names = load(module).__all__
    assert len(set(names)) == len(names)
    assert [name for name in names if name.startswith("_")] == []


@pytest.mark.parametrize("module", [each for each in WITH_CODE if each != "plait"])
def test_all_names_what_the_module_has_made_itself(module: str) -> None:
    loaded = load(module)
    borrowed = [
        name
        for name in loaded.__all__
        if inspect.isclass(thing := getattr(loaded, name)) or inspect.isfunction(thing)
        if thing.__module__ != module
    ]
    assert borrowed == []


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_one_line_of_docstring_or_more(module: str) -> None:
    assert (load(module).__doc__ or "").strip()


@pytest.mark.parametrize("module", MODULES)
def test_modules_take_from_each_other_only_what_is_public(module: str) -> None:
    taken = [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(MODULES[module].read_text()))
        if isinstance(node, ast.ImportFrom) and node.module in MODULES
        for alias in node.names
        if f"{node.module}.{alias.name}" not in MODULES
    ]
    assert [f"{source}.{name}" for source, name in taken if name not in load(source).__all__] == []


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
