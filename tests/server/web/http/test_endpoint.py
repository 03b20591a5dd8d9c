"""The body of a request: in one message or in many, read whole or in parts."""

from collections.abc import Sequence

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message, Scope

from plait import TooLarge
from plait.web.http.endpoint import BodyLimit, LimitedRequest

SCOPE: Scope = {"type": "http", "method": "POST", "headers": []}
BODY = b'{"a":1}'

either_way = pytest.mark.parametrize("parts", [[b'{"a":1}'], [b'{"a"', b"", b":1}"]], ids=["whole", "in parts"])


def make_request(parts: Sequence[bytes], *, limit: int = 100, is_complete: bool = True) -> LimitedRequest:
    messages: list[Message] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages[-1]["more_body"] = not is_complete
    rest = iter([*messages, *[{"type": "http.disconnect"}] * 2])

    async def receive() -> Message:
        return next(rest)

    async def send(message: Message) -> None:
        raise AssertionError(message)

    return LimitedRequest(SCOPE, receive, send, limit=BodyLimit(limit))


@either_way
async def test_a_body_can_be_read_many_times_and_in_every_way(parts: list[bytes]) -> None:
    request = make_request(parts)
    assert await request.body() == await request.body() == BODY
    assert b"".join([chunk async for chunk in request.stream()]) == BODY
    assert await request.json() == {"a": 1}


async def test_an_empty_body_is_read_once() -> None:
    request = make_request([b""])
    assert await request.body() == await request.body() == b""


@either_way
async def test_a_stream_yields_the_parts_and_ends_with_an_empty_one(parts: list[bytes]) -> None:
    chunks = [chunk async for chunk in make_request(parts).stream()]
    assert chunks == [*filter(None, parts), b""]


@either_way
async def test_what_was_streamed_is_not_read_again(parts: list[bytes]) -> None:
    request = make_request(parts)
    async for _ in request.stream():
        pass
    with pytest.raises(RuntimeError):
        await request.body()


@either_way
async def test_a_body_over_the_limit_is_refused_each_time(parts: list[bytes]) -> None:
    assert await make_request(parts, limit=7).body() == BODY
    request = make_request(parts, limit=6)
    with pytest.raises(TooLarge):
        await request.body()
    with pytest.raises(TooLarge):
        await request.body()


async def test_a_client_that_leaves_before_the_end_has_no_body() -> None:
    request = make_request([b"{"], is_complete=False)
    for _ in range(2):
        with pytest.raises(ClientDisconnect):
            await request.body()
