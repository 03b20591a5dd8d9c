"""The awaitable outcomes of pushes and calls."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, TypeVar

import msgspec

from plait_client.errors import CallError, Disconnected, Refused, Unanswered
from plait_client.events import CallLost, Dropped
from plait_client.fold import Pending
from plait_client.sent_messages import SentMessage
from plait_client.session import Session
from plait_schemas.codec import decode_json
from plait_schemas.messages import Error, Nack, Result

__all__ = ["Calls", "Deliveries", "Outcomes", "refusal"]

T = TypeVar("T")


class _Outcome(Awaitable[T]):
    """The version that a push has made, or the id of a message; awaiting it may raise. It need not be awaited."""

    def __init__(self) -> None:
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        # Read the exception, because asyncio logs one that was never read.
        self.future.add_done_callback(asyncio.Future.exception)

    def __await__(self) -> Generator[Any, None, T]:
        # A cancelled wait must not change the outcome for other waiters.
        return asyncio.shield(self.future).__await__()


class Outcomes:
    """The pushes of one client that have no outcome."""

    def __init__(self) -> None:
        self._waiting: dict[Pending, _Outcome[int]] = {}

    def wait(self, push: Pending | None, version: int) -> Awaitable[int]:
        """Return the awaitable outcome of a push; `version` is for a push that was not needed."""
        outcome = _Outcome[int]()
        if push is None:
            outcome.future.set_result(version)
        else:
            self._waiting[push] = outcome
        return outcome

    def accept(self, push: Pending, version: int) -> None:
        """Record that a push has become durable."""
        self._waiting.pop(push).future.set_result(version)

    def refuse(self, push: Pending, error: BaseException) -> None:
        """Record that a push was refused."""
        self._waiting.pop(push).future.set_exception(error)

    @property
    def waiting(self) -> list[Pending]:
        """The pushes without an outcome, in their order."""
        return list(self._waiting)


class Deliveries:
    """The messages of one client that are not known to be durable."""

    def __init__(self) -> None:
        self._waiting: dict[SentMessage, _Outcome[str]] = {}

    def wait(self, message: SentMessage) -> Awaitable[str]:
        """Return the awaitable outcome of a message: its id."""
        outcome = self._waiting[message] = _Outcome[str]()
        return outcome

    def accept(self, message: SentMessage, id: str) -> None:
        """Record that a message has become durable."""
        self._waiting.pop(message).future.set_result(id)

    def refuse(self, message: SentMessage, error: BaseException) -> None:
        """Record that a message was refused."""
        self._waiting.pop(message).future.set_exception(error)

    @property
    def waiting(self) -> list[SentMessage]:
        """The messages without an outcome, in their order."""
        return list(self._waiting)


def refusal(answer: Nack) -> Refused | Unanswered:
    """Return the error for a nack."""
    kind = Unanswered if answer.code == "unanswerable" else Refused
    return kind(answer.code, answer.message, answer.path)


class Calls:
    """The calls of one client. `wake` is called when there are frames to send; `ending` says why no results come."""

    def __init__(self, session: Session, wake: Callable[[], None], ending: Callable[[], BaseException | None]) -> None:
        self._session = session
        self._wake = wake
        self._ending = ending
        self._answers: dict[int, asyncio.Queue[Result | Error | CallLost | Dropped]] = {}

    def put(self, answer: Result | Error | CallLost | Dropped) -> None:
        """Hand over a result of a call, if its caller still waits."""
        if answer.ref is not None and answer.ref in self._answers:
            self._answers[answer.ref].put_nowait(answer)

    async def run(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncGenerator[tuple[bool, Any]]:
        """Call a method; yield its values, each with whether it is the last. Ending this early cancels the call.

        Raises CallError, Disconnected if the connection is lost before the end, or the error that ended the client.
        """
        ref = self._session.call(method, args, kwargs)
        answers = self._answers[ref] = asyncio.Queue()
        self._wake()
        try:
            while True:
                match await answers.get():
                    case Result(done=done, value=value):
                        if value is not msgspec.UNSET:
                            yield done, decode_json(value)
                        if done:
                            return
                    case Error(code=code, message=message, path=path):
                        raise CallError(code, message, path)
                    case Dropped(error=too_large):
                        raise too_large
                    case CallLost():
                        raise self._ending() or Disconnected(f"the connection was lost before {method} had answered")
        finally:
            del self._answers[ref]
            self._session.cancel(ref)
            self._wake()
