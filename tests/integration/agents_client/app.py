"""The threads that the scenarios talk to."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request

from plait import Connection, Plait, Reject, Source, Stream, Thread, current, rpc

__all__ = [
    "ABC",
    "KINDS",
    "TAG_AGENT",
    "Anything",
    "Calls",
    "Chat_Room",
    "Guarded",
    "MyAIAgent",
    "Room",
    "Scores",
    "app",
]


class Room(Thread[Any]):
    """Refuses states with `forbidden`, and follows the query of a connection."""

    initial_state = {"n": 0}  # noqa: RUF012

    def validate_state_change(self, next_state: Any, source: Source) -> None:
        if isinstance(next_state, dict) and next_state.get("forbidden"):
            raise Reject("the reason stays in the log")

    def should_be_readonly(self, connection: Connection, request: Request) -> bool:
        return request.query_params.get("readonly") == "yes"

    def should_send_protocol_messages(self, connection: Connection, request: Request) -> bool:
        return request.query_params.get("protocol") != "no"

    @rpc
    def sync(self) -> int:
        return self.version

    @rpc
    def add(self, n: int) -> int:
        self.set_state(lambda state: {**state, "n": state["n"] + n})
        n_after: int = self.state["n"]
        return n_after

    @rpc
    def set(self, state: Any) -> None:
        self.set_state(state)

    @rpc
    def count(self, upto: int) -> None:
        for n in range(1, upto + 1):
            self.set_state({"n": n})

    @rpc
    def whoami(self) -> str:
        connection = current().connection
        assert connection is not None
        return connection.id

    @rpc
    def everybody(self) -> list[str]:
        return [connection.id for connection in self.connections()]

    @rpc
    def set_readonly(self, id: str, readonly: bool) -> None:
        for connection in self.connections():
            if connection.id == id:
                connection.readonly = readonly

    @rpc
    def drop(self) -> None:
        connection = current().connection
        assert connection is not None
        connection.close(1012, "come again")

    @rpc
    def shout(self, text: str) -> None:
        self.broadcast({"type": "shout", "text": text})
        self.broadcast(text)
        self.broadcast(text.encode())


class Anything(Thread[Any]):
    """Has no state until one is set."""

    @rpc
    def sync(self) -> int:
        return self.version

    @rpc
    def set(self, state: Any) -> None:
        self.set_state(state)


class Score(msgspec.Struct, frozen=True):
    """A state that is not stored as it was sent when it has other fields than these."""

    points: int = 0


class Scores(Thread[Score]):
    """Has a typed state."""

    initial_state = Score()

    @rpc
    def sync(self) -> int:
        return self.version


class Calls(Thread[dict[str, int]]):
    """Has an rpc of each sort."""

    initial_state = {"n": 0}  # noqa: RUF012

    def __init__(self) -> None:
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def hidden(self) -> str:
        """Is not an rpc."""
        return "hidden"

    @rpc
    def echo(self, value: Any) -> Any:
        return value

    @rpc
    def nothing(self) -> None:
        pass

    @rpc
    def null(self) -> int | None:
        return None

    @rpc
    async def fail(self, message: str) -> None:
        raise Reject(message)

    @rpc
    def double(self, number: int) -> int:
        return number * 2

    @rpc(name="addPlayer")
    def add_player(self, name: str, level: int = 1) -> list[str | int]:
        return [name, level]

    @rpc
    def no_json(self) -> Any:
        return object()

    @rpc(concurrent=True)
    async def wait(self, gate: str) -> str:
        await self._gates[gate].wait()
        return gate

    @rpc
    def release(self, gate: str) -> None:
        self._gates[gate].set()

    @rpc
    async def count(self, upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number

    @rpc
    async def count_and_fail(self, upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number
        raise Reject("no further")

    @rpc
    async def count_by_hand(self, upto: int, stream: Stream) -> None:
        for number in range(upto):
            stream.send(number)
            await asyncio.sleep(0)
        stream.end("all")

    @rpc
    async def count_by_hand_first(self, stream: Stream, upto: int) -> None:
        await self.count_by_hand(upto, stream)

    @rpc
    def leave_open(self, stream: Stream) -> None:
        stream.send("only")

    @rpc
    def give_up(self, stream: Stream) -> None:
        stream.send("one")
        stream.error("given up")

    @rpc
    async def send_and_fail(self, stream: Stream) -> None:
        stream.send("one")
        raise Reject("fell over")

    @rpc
    async def fail_after_end(self, stream: Stream) -> None:
        stream.end("all")
        raise ValueError("too late to tell")

    @rpc
    async def fail_after_error(self, stream: Stream) -> None:
        stream.error("told already")
        raise ValueError("too late to tell")

    @rpc
    async def add_in_stream(self, upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            self.set_state({"n": number})
            yield number


class Guarded(Thread[Any]):
    """Records its hooks, and accepts, delays or refuses connections as the query says."""

    def __init__(self) -> None:
        self._log: list[list[str]] = []
        self._open = asyncio.Event()

    async def on_connect(self, connection: Connection, request: Request) -> None:
        match request.query_params.get("door"):
            case "broken":
                raise RuntimeError("a secret of the server")
            case "slow":
                await self._open.wait()
        self._log.append(["connect", connection.id])
        connection.send({"type": "welcome"})

    def on_message(self, connection: Connection, data: str | bytes) -> None:
        self._log.append(["text", data] if isinstance(data, str) else ["bytes", data.hex()])

    def on_error(self, error: BaseException, connection: Connection | None) -> None:
        self._log.append(["error", str(error)])

    @rpc(concurrent=True)
    async def open(self) -> None:
        self._open.set()

    @rpc
    def log(self) -> list[list[str]]:
        return self._log


class MyAIAgent(Room):
    """Has a name with several capitals in a row."""


class TAG_AGENT(Room):
    """Has a name in capitals."""


class ABC(Room):
    """Has a name in capitals, in one word."""


class Chat_Room(Room):
    """Has a name with capitals and an underscore."""


KINDS: tuple[type[Thread[Any]], ...] = (
    ABC,
    Anything,
    Calls,
    Chat_Room,
    Guarded,
    MyAIAgent,
    Room,
    Scores,
    TAG_AGENT,
)

app = Plait(*KINDS)
