"""Those whose code makes and sees changes before they are durable, and what becomes of these if they are lost."""

from typing import Protocol

from plait.errors import PlaitError

__all__ = ["Dependents", "Nobody"]


class Dependents(Protocol):
    """The running turns of a thread. Each change that is not durable yet has a number, in order."""

    def depend(self, number: int) -> None:
        """The calling code has made, or can see, the changes up to this one."""

    def depends_on(self) -> int:
        """Return the number of the last change that the calling code has made or could see; 0 for none."""
        ...

    def lose(self, failure: PlaitError, *, after: int) -> None:
        """The changes after this one were lost; whoever depends on them can no longer be answered."""

    def find_loss(self) -> PlaitError | None:
        """Return why nothing of the calling code may be sent; None if it may."""

    def forgive(self, failure: PlaitError) -> None:
        """The calling code is told of a loss, so that it can answer by itself."""


class Nobody:
    """No dependents: of a pipeline without turns."""

    def depend(self, number: int) -> None:
        """Do nothing."""

    def depends_on(self) -> int:
        """Return 0."""
        return 0

    def lose(self, failure: PlaitError, *, after: int) -> None:
        """Do nothing."""

    def find_loss(self) -> PlaitError | None:
        """Return None."""
        return None

    def forgive(self, failure: PlaitError) -> None:
        """Do nothing."""
