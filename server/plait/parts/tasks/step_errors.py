"""The errors of steps."""

from typing import Final

from plait_schemas.codec import printable

__all__ = ["GiveUp", "StepFailed", "Unknown", "describe"]


# Characters of a stored error.
_LONGEST: Final = 4_000


class GiveUp(Exception):
    """Raise this in the function of a step to fail without further attempts."""


class StepFailed(Exception):
    """The last attempt of a step has raised. Its message begins with the class of its cause, the error of that attempt.

    A replay raises StepFailed again, without the cause.
    """


class Unknown(Exception):
    """A step that is done at most once was cut off: nothing tells whether it has had its effect."""


def describe(error: BaseException) -> str:
    """Return an error as it is stored: its class and the start of its message, in a form that can be stored."""
    try:
        message = str(error)
    except Exception as failure:  # The class of the error has a faulty __str__.
        message = f"its message cannot be read: {type(failure).__name__}"
    return printable(f"{type(error).__name__}: {message}"[:_LONGEST])
