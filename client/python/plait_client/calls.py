"""Calls of rpcs that are under way, for those who wait for their results."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from plait_client.errors import CallError, Disconnected
from plait_client.happenings import CallLost, Dropped
from plait_client.session import Session
from plait_schemas.codec import decode_json
from plait_schemas.messages import Error, Result

__all__ = ["Calls"]


class Calls:
    """The calls of one client. `wake` is called when there are frames to send; `ending` says why there is no more."""

    def __init__(self, session: Session, wake: Callable[[], None], ending: Callable[[], BaseException | None]) -> None:
        self._session = session
        self._wake = wake
        self._ending = ending
        self._answers: dict[int, asyncio.Queue[Result | Error | CallLost | Dropped]] = {}

    def put(self, answer: Result | Error | CallLost | Dropped) -> None:
        """Hand over what came for a call, if anybody still waits for it."""
        if answer.ref is not None and answer.ref in self._answers:
            self._answers[answer.ref].put_nowait(answer)

    async def run(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncGenerator[tuple[bool, Any]]:
        """Call a method; yield whether each value is the last, and the value. Ending this early cancels the call.

        Raises CallError, and when the connection is lost before the end Disconnected, or what ended the client.
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
