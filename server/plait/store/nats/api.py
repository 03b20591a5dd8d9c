"""The requests to JetStream, and its answers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from plait.errors import StoreError
from plait.store.outcomes import Unreachable

__all__ = [
    "ANSWER_TIMEOUT",
    "Answer",
    "ApiError",
    "Disconnected",
    "Lines",
    "Lost",
    "NotPermitted",
    "Publication",
    "Requests",
    "Sender",
    "StoredMessage",
    "StreamInfo",
    "WrongSequence",
    "make_headers",
    "read_answer",
]

ANSWER_TIMEOUT: Final = 5.0
"""Seconds after which a request without an answer is lost."""

_WRONG_SEQUENCE: Final = 10071
_WITHOUT_JETSTREAM: Final = (10039, 10076)


class Disconnected(Unreachable):
    """There has been no connection for some time."""


class Lost(StoreError):
    """A request has had no answer: whether it has had an effect is not known."""


class NotPermitted(StoreError):
    """The server has refused a message, because the user has no permission for its subject. It has had no effect."""


class Answer(NamedTuple):
    """A message that answers a request."""

    headers: Mapping[str, str]
    data: bytes


class ApiError(StoreError):
    """JetStream has refused a request, which has had no effect."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        # JetStream's `err_code`.
        self.number = number


class WrongSequence(ApiError):
    """The last message of the subject is not the expected one: the publication has had no effect."""


class Requests(Protocol):
    """Sends requests: a `Line` or a `ServerConnection`."""

    async def request(
        self, subject: str, data: bytes = b"", headers: dict[str, str] | None = None, *, timeout: float = ANSWER_TIMEOUT
    ) -> Answer: ...


class Sender(Requests, Protocol):
    """A `Line`, which also sends messages that have no answer."""

    async def send(self, subject: str, data: bytes, headers: dict[str, str]) -> None: ...


class Lines(Requests, Protocol):
    """A `ServerConnection`."""

    async def line(self) -> Sender: ...

    async def collect(
        self, subject: str, data: bytes, is_last: Callable[[Answer], bool], *, timeout: float = ANSWER_TIMEOUT
    ) -> list[Answer]: ...


class Publication(NamedTuple):
    """A message to publish. `expected` is the sequence of the last message of its subject, 0 if there is none."""

    subject: str
    data: bytes
    expected: int | None = None
    # Seconds after which the server removes it.
    ttl: int | None = None


class StoredMessage(NamedTuple):
    """A stored message."""

    subject: str
    sequence: int
    data: bytes


class StreamInfo(NamedTuple):
    """The description of a stream by its leader."""

    config: Mapping[str, Any]
    # When it was made, and what identifies its leader's term; empty if there is only one server.
    created: str
    leader: str
    last_sequence: int
    # The subjects that match a filter, if one was given.
    subjects: Sequence[str]


def make_headers(message: Publication) -> dict[str, str]:
    headers: dict[str, str] = {}
    if message.expected is not None:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(message.expected)
    if message.ttl is not None:
        headers["Nats-TTL"] = f"{message.ttl}s"
    return headers


def read_answer(answer: Answer) -> dict[str, Any]:
    """Return an answer of JetStream. Raises ApiError."""
    found: dict[str, Any] = msgspec.json.decode(answer.data)
    if (error := found.get("error")) is None:
        return found
    number, message = error.get("err_code", 0), str(error.get("description", "refused"))
    if number == _WRONG_SEQUENCE:
        raise WrongSequence(message, number)
    if number in _WITHOUT_JETSTREAM:
        message = f"JetStream is not enabled: {message}"
    raise ApiError(message, number)
