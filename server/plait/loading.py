"""Finding the app that a command names."""

import importlib
import sys
import traceback
from pathlib import Path
from typing import Any

__all__ = ["LoadError", "load"]


class LoadError(Exception):
    """The app cannot be found; the message says why and what to do."""


def load(target: str) -> Any:
    """Return the object that `module:attribute` names; modules are also looked for in the working directory.

    Raises LoadError.
    """
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
    except Exception as error:
        raise LoadError(f"{module_name} does not import:\n{_own_trace(error)}") from None
    found: Any = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise LoadError(f"{module_name} has no {attribute!r}")
        found = getattr(found, name)
    return found


def _own_trace(error: BaseException) -> str:
    """Return the traceback from the app's own first line on."""
    trace = error.__traceback__
    while trace is not None and (
        trace.tb_frame.f_code.co_filename in (__file__, importlib.__file__)
        or "importlib._bootstrap" in trace.tb_frame.f_code.co_filename
    ):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()
