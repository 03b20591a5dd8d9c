"""Loads the app that is named on the command line."""

import importlib
import inspect
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from plait.actor.thread import Thread
from plait.app import Plait, made_plaits
from plait.cli.options import LoadError
from plait.errors import PlaitError
from plait.settings import SettingError
from plait.spelling import find_nearest, suggest
from plait.state.storable import accepts_arguments
from plait.store.memory import MemoryStore

__all__ = ["check_target", "find_plaits", "load", "load_lasting", "load_plait"]

_PLAIT: Final = str(Path(__file__).parents[1])
# Folders of code that is not the app's own.
_LIBRARIES: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def load(target: str) -> Any:
    """Return the app that `module:attribute` names; modules are also searched in the working directory.

    Raises LoadError.
    """
    module, app = _load(target)
    if not callable(app):
        raise LoadError(f"{target} is a {type(app).__name__}, not an app{_suggest_apps(module)}")
    if inspect.isfunction(app) and not accepts_arguments(app, 3):
        raise LoadError(f"{target} is a function, not an app: call it in the module, as in app = {app.__name__}(...)")
    return app


def load_plait(target: str) -> Plait:
    """Return the Plait that `module:attribute` names. Raises LoadError."""
    module, app = _load(target)
    if not isinstance(app, Plait):
        raise LoadError(f"{target} is a {type(app).__name__}, not a Plait{_suggest_apps(module)}")
    return app


def load_lasting(target: str) -> Plait:
    """Return the Plait that `module:attribute` names, if imported data survives in its store. Raises LoadError."""
    app = load_plait(target)
    if isinstance(app._store, MemoryStore):
        raise LoadError(f"{target} keeps its threads in memory, where an import would be lost")
    return app


def find_plaits(target: str, app: object) -> list[Plait]:
    """Return the app if it is a Plait, otherwise the Plaits that are mounted in it or wrapped by it.

    If the app shows none, as a function that calls one does, all Plaits that were made count. Raises LoadError.
    """
    found: dict[int, Plait] = {}
    seen: set[int] = set()
    left = [app]
    while left:
        each: Any = left.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Plait):
            found[id(each)] = each
        elif each is not None:
            routes = getattr(each, "routes", None)
            left += [getattr(each, "app", None), *(routes if isinstance(routes, list) else ())]
    if plaits := list(found.values()) or made_plaits():
        return plaits
    raise LoadError(
        f"{target} has no Plait: it is none, its .app and .routes lead to none, and its modules have made none; "
        "make one when the module is imported, as in app = Plait(...)"
    )


def check_target(target: str) -> tuple[str, str]:
    """Return the module and the attribute of a target. Raises LoadError if it is not module:attribute."""
    module, _, attribute = target.partition(":")
    if module.endswith(".py") or "/" in module:
        path = Path(os.path.relpath(module))
        place = f"{path.stem}:{attribute or 'app'}"
        if ".." in path.parts:
            raise LoadError(f"{target!r} names a file elsewhere: go to {path.resolve().parent} and write {place}")
        folders = "".join(f"{part}." for part in path.parts[:-1])
        raise LoadError(f"{target!r} names a file: write the module, {folders}{place}")
    if not module or not attribute:
        raise LoadError(f"{target!r} does not name an app: write module:attribute, such as {module or 'game'}:app")
    return module, attribute


def _load(target: str) -> tuple[ModuleType, Any]:
    """Return an app and its module."""
    module_name, attribute = check_target(target)
    module = _import(module_name)
    found: Any = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            near = find_nearest(attribute, _find_apps(module)) or find_nearest(attribute, vars(module))
            hint = f"; did you mean {module_name}:{near}?" if near else _suggest_apps(module)
            raise LoadError(f"{module_name} has no {attribute!r}{hint}")
        found = getattr(found, name)
    if isinstance(found, type) and issubclass(found, Thread | Plait):
        what = "a Thread class" if issubclass(found, Thread) else "the class itself"
        made = f"{found.__name__}" if issubclass(found, Thread) else "..."
        instead = _suggest_apps(module) or f": make one, app = Plait({made}), and write {module_name}:app"
        raise LoadError(f"{target} is {what}, not a Plait{instead}")
    return module, found


def _import(name: str) -> ModuleType:
    folder = Path.cwd()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except SettingError as error:
        raise LoadError(str(error)) from None
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{name}.".startswith(f"{missing}."):
            raise _make_error(name, error) from None
        hint = suggest(name, [path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()])
        raise LoadError(f"there is no module {name!r} in {folder}, and none is installed{hint}") from None


def _suggest_apps(module: ModuleType) -> str:
    """Return a hint that names the Plaits of a module, or an empty text."""
    return (
        ": write " + " or ".join(f"{module.__name__}:{name}" for name in apps) if (apps := _find_apps(module)) else ""
    )


def _find_apps(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, Plait)]


def _make_error(name: str, error: Exception) -> LoadError:
    """Return the error for a module that raises; errors raised by plait have no trace."""
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename is not None:
        *shown, _ = traceback.format_exception_only(error)
        what = f"{type(error).__name__}: {error.msg}"
        return LoadError(
            f"{name} does not import: {_describe_place(error.filename, error.lineno)}: {what}", trace="".join(shown)
        )
    frames = traceback.extract_tb(error.__traceback__)
    others = [
        frame for frame in frames if not _is_in(frame.filename, _PLAIT) and not _is_import_machinery(frame.filename)
    ]
    own = [frame for frame in others if not any(_is_in(frame.filename, folder) for folder in _LIBRARIES)] or others
    place = f"{_describe_place(own[-1].filename, own[-1].lineno)}: " if own else ""
    if _is_in(frames[-1].filename, _PLAIT) and isinstance(error, TypeError | ValueError | PlaitError):
        return LoadError(f"{place}{error}")
    return LoadError(f"{name} does not import: {place}{what}", trace="".join(traceback.format_list(own)))


def _describe_place(file: str, line: int | None) -> str:
    path = Path(file)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}, line {line}"


def _is_import_machinery(file: str) -> bool:
    return file == importlib.__file__ or file.startswith("<frozen importlib")


def _is_in(file: str, folder: str) -> bool:
    return Path(file).is_relative_to(folder)
