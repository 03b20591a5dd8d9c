"""Finding the app that a command names."""

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from plait.app import Plait
from plait.settings import SettingError
from plait.thread import Thread

__all__ = ["LoadError", "load", "load_plait"]


class LoadError(Exception):
    """The app cannot be found; the message says why and what to do."""


def load(target: str) -> Any:
    """Return the app that `module:attribute` names; modules are also looked for in the working directory.

    Raises LoadError.
    """
    return _load(target)[1]


def load_plait(target: str) -> Plait:
    """Return the Plait that `module:attribute` names. Raises LoadError."""
    module, app = _load(target)
    if not isinstance(app, Plait):
        raise LoadError(f"{target} is a {type(app).__name__}, not a Plait{_named_instead(module)}")
    return app


def _load(target: str) -> tuple[ModuleType, Any]:
    """Return an app, and the module that it was found in."""
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise LoadError(f"{target!r} does not say what to serve: write module:attribute, such as game:app")
    if (directory := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, directory)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise LoadError(f"there is no module {module_name!r} here or among the installed ones") from None
        raise LoadError(f"{module_name} does not import:\n{_own_trace(error)}") from None
    except SettingError as error:
        raise LoadError(str(error)) from None
    except Exception as error:
        raise LoadError(f"{module_name} does not import:\n{_own_trace(error)}") from None
    found: Any = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise LoadError(f"{module_name} has no {attribute!r}")
        found = getattr(found, name)
    if isinstance(found, type) and issubclass(found, Thread):
        instead = _named_instead(module) or f": make one of it, app = Plait({found.__name__})"
        raise LoadError(f"{target} is a Thread class, not a Plait{instead}")
    return module, found


def _named_instead(module: ModuleType) -> str:
    """Return what tells of the Plait that a module has, nothing when it has none."""
    names = [name for name, value in vars(module).items() if isinstance(value, Plait)]
    return f": write {module.__name__}:{names[0]}" if names else ""


def _own_trace(error: BaseException) -> str:
    """Return the traceback from the app's own first line on."""
    trace = error.__traceback__
    while trace is not None and (
        trace.tb_frame.f_code.co_filename in (__file__, importlib.__file__)
        or "importlib._bootstrap" in trace.tb_frame.f_code.co_filename
    ):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()
