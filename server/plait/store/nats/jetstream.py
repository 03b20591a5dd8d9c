"""A JetStream stream: makes or checks it, publishes with compare-and-set, and reads last messages."""

import asyncio
import base64
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from plait.clock import CLOCK
from plait.errors import StoreError
from plait.store.nats.api import (
    ANSWER_TIMEOUT,
    Answer,
    ApiError,
    Disconnected,
    Lines,
    Lost,
    Publication,
    Requests,
    StoredMessage,
    StreamInfo,
    WrongSequence,
    make_headers,
    read_answer,
)
from plait.store.nats.url import NatsUrl
from plait.store.outcomes import Unreachable

__all__ = ["MOST_MESSAGES", "PATIENCE", "READ_AGAIN", "Deadline", "JetStream"]

MOST_MESSAGES: Final = 1000
"""The most messages that are published as one."""

PATIENCE: Final = 12.0
"""Seconds for which something is repeated while the stream has no leader. An election may take 9."""

READ_AGAIN: Final = 0.01
"""Seconds after which a copy of the stream is read again that may be late."""

# The number of values that are read at once: the server sends them all without waiting.
_AT_ONCE: Final = 64
# Seconds for which a copy of the stream may be late.
_CATCH_UP: Final = 5.0
_ASK_AGAIN: Final = 0.05
# Seconds after which a publication is repeated that the server could not take now.
_PUBLISH_AGAIN: Final = 0.002
_BATCHES: Final = 20
# Seconds after which the server removes a message that changes nothing.
_BARRIER: Final = 60

# Another publication to the subject is under way, whose outcome is not known yet.
_IN_PROCESS: Final = 10164
_NO_STREAM: Final = 10059
_NAME_IN_USE: Final = 10058
_CROWDED: Final = ("too many inflight", "batch is incomplete")


T = TypeVar("T")


class JetStream:
    """The stream of a URL, or another one beside it.

    `on_suspicion` is called when the stream may be another one, or has lost something.
    """

    def __init__(
        self,
        url: NatsUrl,
        connection: Lines,
        name: str | None = None,
        *,
        on_suspicion: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name or url.stream
        self._url = url
        self._connection = connection
        self._api = url.api
        self._batches = asyncio.Semaphore(_BATCHES)
        # The subject of a message that the stream always has, and its last value: it changes if something was lost.
        self._anchor = f"{self.name}.anchor"
        self._anchored = b""
        self._on_suspicion = on_suspicion
        # The settings that the stream must have.
        self._wanted: Mapping[str, Any] = {}
        # The most bytes of a message, when there has been a connection.
        self.max_payload = 0
        # The subject of a message that changes nothing.
        self.barrier = f"{self.name}.barrier"
        # The last sequence that this process has seen: what it reads must not be older.
        self.seen = 0

    # The stream itself

    async def prepare(self, config: Mapping[str, Any], *, requests: Requests | None = None) -> StreamInfo:
        """Make the stream if it is missing, and check that it has these settings. Raises StoreError.

        Its messages have subjects that begin with its name.
        """
        line = requests or self._connection
        self._wanted = wanted = {
            "name": self.name,
            "subjects": [f"{self.name}.>"],
            "num_replicas": self._url.replicas,
            "storage": "file",
            "retention": "limits",
            "allow_direct": True,
            **config,
        }
        try:
            info = await self.info(requests=line)
        except ApiError as error:
            if error.number != _NO_STREAM:
                raise
            try:
                given = {name: value for name, value in wanted.items() if value is not None}
                await self.api(f"STREAM.CREATE.{self.name}", given, requests=line, timeout=10)
            except ApiError as error:
                if error.number != _NAME_IN_USE:
                    hint = "" if self._url.replicas == 1 else ", or say ?replicas=1 in the URL if one copy is enough"
                    raise StoreError(f"the stream {self.name} cannot be made: {error}{hint}") from error
            info = await self.info(requests=line)
        self._check(info)
        with suppress(WrongSequence):
            await self.publish(Publication(self._anchor, secrets.token_hex(8).encode(), 0), requests=line)
        return info

    async def confirm(self, requests: Requests | None = None) -> None:
        """Check the settings of the stream again. Raises StoreError."""
        self._check(await self.info(requests=requests))

    def _check(self, info: StreamInfo) -> None:
        for name, value in self._wanted.items():
            found = info.config.get(name)
            is_right = found == value or (value is None and not found)
            if name == "num_replicas":
                is_right = found is not None and found >= value
            elif name == "metadata":
                is_right = set(value or ()) <= set(found or ())  # The store compares the formats.
            if not is_right:
                hint = f", or say ?replicas={found} in the URL" if name == "num_replicas" else ""
                raise StoreError(
                    f"the stream {self.name} has {name}={msgspec.json.encode(found).decode()}, and plait needs "
                    f"{msgspec.json.encode(value).decode()}: choose another stream in the URL, change this one{hint}"
                )

    async def read_format(self, requests: Requests) -> int:
        """Return the format that the stream's metadata tell; 0 if they tell none. Raises StoreError."""
        metadata = (await self.info(requests=requests)).config.get("metadata") or {}
        return int(metadata.get("plait", 0))

    async def read_anchor(self, requests: Requests) -> StoredMessage:
        """Return the message that tells which stream it is, from its leader. Raises StoreError."""
        found = await self.api(f"STREAM.MSG.GET.{self.name}", {"last_by_subj": self._anchor}, requests=requests)
        message = found["message"]
        self._anchored = base64.b64decode(message.get("data", ""))
        return StoredMessage(self._anchor, message["seq"], self._anchored)

    def make_barrier(self) -> Publication:
        """Return a message that changes nothing."""
        return Publication(self.barrier, b"", ttl=_BARRIER)

    async def info(self, subjects: str | None = None, *, requests: Requests | None = None) -> StreamInfo:
        """Return what the leader tells, with the subjects that match a filter. Raises StoreError."""
        found: list[str] = []
        while True:
            asked = {"subjects_filter": subjects, "offset": len(found)} if subjects is not None else {}
            begun = CLOCK.read_steady()
            answer = await self.api(f"STREAM.INFO.{self.name}", asked, requests=requests)
            CLOCK.follow(int(datetime.fromisoformat(answer["ts"]).timestamp() * 1e6), begun)
            found += answer["state"].get("subjects") or ()
            if subjects is None or len(found) >= answer.get("total", 0):
                break
        cluster = answer.get("cluster") or {}
        return StreamInfo(
            answer["config"],
            answer["created"],
            f"{cluster.get('leader')} {cluster['leader_since']}" if "leader_since" in cluster else "",
            answer["state"]["last_seq"],
            found,
        )

    async def names(self, subjects: str) -> StreamInfo:
        """Return what the leader tells, with the subjects that match a filter, not older than what was seen."""
        deadline = Deadline(_CATCH_UP)
        while (info := await _repeat(partial(self.info, subjects))).last_sequence < self.seen:
            await deadline.rest(Unreachable("the stream's leader is too far behind"), READ_AGAIN)
        return info

    async def purge(self, subjects: str, *, before: int | None = None) -> None:
        """Remove the messages of subjects, or those before a sequence. Raises StoreError."""
        asked: dict[str, Any] = {"filter": subjects}
        if before is not None:
            asked["seq"] = before
        await self.api(f"STREAM.PURGE.{self.name}", asked)

    async def api(
        self, what: str, body: Mapping[str, Any], *, requests: Requests | None = None, timeout: float = ANSWER_TIMEOUT
    ) -> dict[str, Any]:
        """Call JetStream's API. Raises Unreachable, Lost and ApiError."""
        data = msgspec.json.encode(body) if body else b""
        answer = await (requests or self._connection).request(f"{self._api}.{what}", data, timeout=timeout)
        return read_answer(answer)

    # Messages

    async def publish(self, message: Publication, *, requests: Requests | None = None) -> int:
        """Publish a message and return its sequence, when it is durable. Raises Unreachable, Lost and ApiError."""
        line = requests or self._connection
        headers, seen = make_headers(message), self.seen
        deadline = Deadline(PATIENCE)
        while True:
            try:
                answer = read_answer(await line.request(message.subject, message.data, headers))
            except ApiError as error:
                if error.number != _IN_PROCESS:
                    raise
                await deadline.rest(Unreachable(str(error)), _PUBLISH_AGAIN)
            else:
                return self._see(answer["seq"], seen)

    async def publish_all(self, messages: Sequence[Publication]) -> int:
        """Publish up to `MOST_MESSAGES` messages, all or none, and return the sequence of the last one.

        Raises Unreachable, Lost and ApiError.
        """
        if len(messages) == 1:
            return await self.publish(messages[0])
        deadline = Deadline(PATIENCE)
        async with self._batches:
            while True:
                # All of them over one connection: on another one, the server would get only a part.
                line, seen = await self._connection.line(), self.seen
                batch = secrets.token_hex(12)
                try:
                    for number, message in enumerate(messages[:-1], 1):
                        headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number), **make_headers(message)}
                        await line.send(message.subject, message.data, headers)
                    last = messages[-1]
                    headers = {
                        "Nats-Batch-Id": batch,
                        "Nats-Batch-Sequence": str(len(messages)),
                        "Nats-Batch-Commit": "1",
                        **make_headers(last),
                    }
                    answer = read_answer(await line.request(last.subject, last.data, headers))
                except ApiError as error:
                    if error.number != _IN_PROCESS and not any(each in str(error) for each in _CROWDED):
                        raise
                    await deadline.rest(Unreachable(str(error)), _PUBLISH_AGAIN)
                else:
                    return self._see(answer["seq"], seen)

    async def last(self, subjects: Sequence[str], *, since: int | None = None, after: int = 0) -> list[StoredMessage]:
        """Return the last message of each subject that has one, in the order of the stream.

        The stream is not older than the message `since`; by default, than what this process has published. Messages
        up to the sequence `after` are left out. Raises StoreError.
        """
        found: list[StoredMessage] = []
        for start in range(0, len(subjects), _AT_ONCE):
            found += await self._last(subjects[start : start + _AT_ONCE], since, after)
        return found

    async def after(self, sequence: int, subjects: str, limit: int) -> list[StoredMessage]:
        """Return messages that match a filter, after a sequence, up to a count. Raises StoreError."""
        asked = {"seq": sequence + 1, "next_by_subj": subjects, "batch": limit}
        return (await _repeat(partial(self._get, asked)))[0]

    # Inside

    def _see(self, sequence: int, before: int) -> int:
        """Record the sequence of a publication; `before` is what was seen before it was sent."""
        if sequence <= before:
            self._on_suspicion()
        self.seen = max(self.seen, sequence)
        return sequence

    async def _last(self, subjects: Sequence[str], since: int | None, after: int) -> list[StoredMessage]:
        deadline = Deadline(_CATCH_UP)
        while True:
            # The anchor is always there, and only an answer with messages says how old it is.
            asked = {"multi_last": [self._anchor, *subjects], "seq": after + 1}
            found, up_to = await _repeat(partial(self._get, asked))
            if up_to is None:
                raise StoreError(f"the stream {self.name} was emptied")
            if any(each.subject == self._anchor and each.data != self._anchored for each in found):
                self._on_suspicion()
            if up_to >= (self.seen if since is None else since):
                # Whatever copy is read next must not be older.
                self.seen = max([self.seen, *(each.sequence for each in found)])
                return [each for each in found if each.subject != self._anchor]
            await deadline.rest(Unreachable("a copy of the stream is too far behind"), READ_AGAIN)

    async def _get(self, asked: Mapping[str, Any]) -> tuple[list[StoredMessage], int | None]:
        """Return messages, and the last sequence of the copy that was read, None if nothing was found."""
        answers = await self._connection.collect(
            f"{self._api}.DIRECT.GET.{self.name}", msgspec.json.encode(asked), _is_last
        )
        last = answers.pop()
        status = last.headers.get("Status")
        if status not in ("204", "404"):
            raise StoreError(f"the stream cannot be read: {last.headers.get('Description', status)}")
        up_to = last.headers.get("Nats-UpTo-Sequence")
        found = [
            StoredMessage(each.headers["Nats-Subject"], int(each.headers["Nats-Sequence"]), each.data)
            for each in answers
        ]
        return found, None if up_to is None else int(up_to)


class Deadline:
    """Ends the repetition of something after some seconds."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + seconds

    @property
    def is_over(self) -> bool:
        """Whether it is too late."""
        return self._loop.time() > self._at

    async def rest(self, trouble: StoreError, pause: float) -> None:
        """Pause. Raises the error if it is too late, or if there has been no connection for some time."""
        if self.is_over or isinstance(trouble, Disconnected):
            raise trouble
        await asyncio.sleep(pause)


async def _repeat(read: Callable[[], Awaitable[T]]) -> T:
    """Read something, and read it again while the stream has no leader, or if the answer is lost."""
    deadline = Deadline(PATIENCE)
    while True:
        try:
            return await read()
        except (Lost, Unreachable) as error:
            await deadline.rest(error, _ASK_AGAIN)


def _is_last(answer: Answer) -> bool:
    return "Nats-Sequence" not in answer.headers
