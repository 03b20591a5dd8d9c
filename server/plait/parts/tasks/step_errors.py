"""The errors of steps."""

from typing import Final

from plait_schemas.codec import printable

__all__ = ["GiveUp", "StepFailed", "Unknown", "describe"]


# Characters of a stored error.
_LONGEST: Final = 4_000


class GiveUp(Exception):
    """Raise it in the function of a step to fail without further attempts."""


class StepFailed(Exception):
    """The last attempt of a step has raised. Its message begins with the class of that error, which is its cause.

    A replay raises it again, without the cause.
    """


class Unknown(Exception):
    """A step that is done at most once was cut off: it is not known whether it has had its effect."""


def describe(error: BaseException) -> str:
    """Return an error as it is stored: its class and the beginning of its message, which can be stored in any case."""
    try:
        message = str(error)
    except Exception as failure:  # Its class has a faulty __str__.
        message = f"its message cannot be read: {type(failure).__name__}"
    return printable(f"{type(error).__name__}: {message}"[:_LONGEST])
