"""What becomes of pushes, for those who wait for it."""

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any

from plait_client.errors import Refused, Unanswered
from plait_client.fold import Pending
from plait_schemas.messages import Nack

__all__ = ["Outcomes", "refusal"]


class _Outcome(Awaitable[int]):
    """The version that a push has made; awaiting raises why it made none. Nobody needs to await it."""

    def __init__(self) -> None:
        self.future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # Taken note of, so that asyncio does not complain when nobody else does.
        self.future.add_done_callback(asyncio.Future.exception)

    def __await__(self) -> Generator[Any, None, int]:
        # Giving up waiting must not change what others who wait are told.
        return asyncio.shield(self.future).__await__()


class Outcomes:
    """The pushes of one client that have no outcome."""

    def __init__(self) -> None:
        self._waiting: dict[Pending, _Outcome] = {}

    def wait(self, push: Pending | None, version: int) -> Awaitable[int]:
        """Return what is awaited for a push; `version` is for one that was not needed."""
        outcome = _Outcome()
        if push is None:
            outcome.future.set_result(version)
        else:
            self._waiting[push] = outcome
        return outcome

    def accept(self, push: Pending, version: int) -> None:
        """A push has become durable."""
        self._waiting.pop(push).future.set_result(version)

    def refuse(self, push: Pending, error: BaseException) -> None:
        """A push was refused."""
        self._waiting.pop(push).future.set_exception(error)

    @property
    def waiting(self) -> list[Pending]:
        """The pushes without an outcome, in their order."""
        return list(self._waiting)


def refusal(answer: Nack) -> Refused | Unanswered:
    """Return the error that a nack is."""
    kind = Unanswered if answer.code == "unanswerable" else Refused
    return kind(answer.code, answer.message, answer.path)
