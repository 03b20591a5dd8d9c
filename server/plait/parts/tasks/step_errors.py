"""The errors of steps."""

__all__ = ["GiveUp", "StepFailed", "Unknown", "describe"]


class GiveUp(Exception):
    """Raise it in the function of a step to fail without further attempts."""


class StepFailed(Exception):
    """The last attempt of a step has raised. Its message begins with the class of that error, which is its cause.

    A replay raises it again, without the cause.
    """


class Unknown(Exception):
    """A step that is done at most once was cut off: it is not known whether it has had its effect."""


def describe(error: BaseException) -> str:
    """Return an error as it is stored."""
    return f"{type(error).__name__}: {error}"
