"""Messages as clients of a real server see and send them: in order with states, over reconnects, each once."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.integration.socket_client import TIMEOUT
from tests.running import running

from plait import Connection, Context, Plait, Principal, Thread, rpc
from plait.parts.messages.thread_messages import Messages
from plait_client import Closed, Item, Refused, Room, connect, connect_sync

pytestmark = pytest.mark.relayed(in_soak=True)

MESSAGES = 500
CUTS = 12

# The connections that were closed.
cut_sockets: list[str] = []


class Desk(Thread[dict[str, Any]]):
    """A conversation, and the number of the last message in it."""

    initial_state = {"last": 0}  # noqa: RUF012
    messages = Messages(live=True)

    @rpc
    async def write(self, count: int) -> None:
        """Write numbered messages, each with the state in one transaction or in two writes."""
        for number in range(1, count + 1):
            if number % 2:
                with self.transaction():
                    self.update("/last", number)
                    written = self.messages.inject("assistant", f"{number}")
            else:
                self.update("/last", number)
                written = self.messages.inject("assistant", f"{number}")
            if not number % 5:
                await written

    @rpc(concurrent=True)
    def cut(self) -> None:
        """Close all sockets; clients come back."""
        for connection in self.connections():
            connection.close(1012)
            cut_sockets.append(connection.id)

    @rpc(concurrent=True)
    def answer(self) -> None:
        """Answer; a client whose connection was of use waits no longer than at first when it is lost."""


class Echo(Thread[dict[str, Any]]):
    """A conversation with a bot."""

    initial_state = dict[str, Any]
    messages = Messages(agent="echo", live=True)

    def on_connect(self, connection: Connection, request: Any) -> None:
        connection.readonly = "readonly" in request.url.query


def make_app(folder: Path, **options: Any) -> Plait:
    app = Plait(Desk, Echo, store=f"sqlite:///{folder}/plait.db", secret="test", **options)

    @app.agent("echo", thread=Echo)
    async def echo(ctx: Context[Echo]) -> None:
        for question in ctx.thread.messages.take().value:
            async with ctx.thread.messages.stream() as answer:
                answer.append("You said: ")
                await asyncio.sleep(0)
                answer.append(question.content or "")

    return app


class Watcher:
    """Checks what a room shows whenever that changes: numbers without gaps, none before its state."""

    def __init__(self, room: Room[Any]) -> None:
        self.room = room
        self.wrong: list[Any] = []
        self.count = 0
        self.last = 0
        room.messages.on_change(self._look)

    def _look(self, items: Sequence[Item]) -> None:
        self.count += 1
        numbers = [int(each.content or "") for each in items]
        last = numbers[-1] if numbers else 0
        is_whole = numbers == [*range(last - len(numbers) + 1, last + 1)]
        if not is_whole or last < self.last or self.room.confirmed["last"] < last:
            self.wrong.append((numbers, self.last, self.room.confirmed))
        self.last = last


async def until(room: Room[Any], is_so: Any) -> Sequence[Item]:
    """Wait until the messages of a room are as they must be."""
    async for items in room.messages:
        if is_so(items):
            return items
    raise AssertionError("the room was closed")


@pytest.mark.local
async def test_two_viewers_see_500_messages_and_states_in_order_over_reconnects(tmp_path: Path) -> None:
    async with running(make_app(tmp_path)) as address, asyncio.timeout(TIMEOUT):
        url = f"ws://{address}/threads/desk/one"
        cut_sockets.clear()
        async with connect(url) as ada, connect(url) as bob, connect(url) as writer:
            watchers = [Watcher(ada), Watcher(bob)]
            await cut_often(writer, ada, bob)
            for watcher in watchers:
                items = await until(watcher.room, lambda items: items and items[-1].content == str(MESSAGES))
                while await watcher.room.messages.older(60):
                    pass
                items = watcher.room.messages.items
                assert [each.content for each in items] == [str(number) for number in range(1, MESSAGES + 1)]
                assert watcher.wrong == []
                assert watcher.count > CUTS
                assert watcher.room.confirmed == {"last": MESSAGES}
            assert len(cut_sockets) > 2 * CUTS


async def cut_often(writer: Room[Any], *others: Room[Any]) -> None:
    """Have messages written, and all sockets cut now and then, until all are there."""
    writing = asyncio.create_task(begin(writer))
    for number in range(1, CUTS + 1):
        await writer.wait_for(lambda state, number=number: state["last"] >= number * MESSAGES // (CUTS + 1))
        await begin_cut(writer)
        await asyncio.gather(*(room.call("answer") for room in (writer, *others)))
    await writer.wait_for(lambda state: state["last"] == MESSAGES)
    await writing


async def begin(writer: Room[Any]) -> None:
    try:
        await writer.call("write", MESSAGES)
    except Exception:  # Its socket is cut, too, and the method goes on.
        return


async def begin_cut(writer: Room[Any]) -> None:
    try:
        await writer.call("cut")
    except Exception:  # As it cuts this one.
        return


async def test_what_clients_send_over_outages_is_there_once_and_in_their_order(tmp_path: Path) -> None:
    async with running(make_app(tmp_path)) as address, asyncio.timeout(TIMEOUT):
        url = f"ws://{address}/threads/desk/two"
        async with connect(url) as ada, connect(url) as bob:
            sent = {name: [f"{name} {number}" for number in range(100)] for name in ("ada", "bob")}

            async def send_all(room: Room[Any], contents: list[str]) -> list[str]:
                waiting = []
                for number, content in enumerate(contents):
                    waiting.append(room.messages.send(content))
                    if number % 20 == 10:
                        await begin_cut(room)
                    await asyncio.sleep(0)
                return [await each for each in waiting]

            ids = await asyncio.gather(send_all(ada, sent["ada"]), send_all(bob, sent["bob"]))
            items = await until(ada, lambda items: len([e for e in items if e.status == "pending"]) == 200)
            for name, found in zip(sent, ids, strict=True):
                mine = [each for each in items if (each.content or "").startswith(name)]
                assert [each.content for each in mine] == sent[name]
                assert [each.id for each in mine] == found


async def test_a_question_is_shown_at_once_and_its_answer_while_it_grows(tmp_path: Path) -> None:
    async with (
        running(make_app(tmp_path)) as address,
        asyncio.timeout(TIMEOUT),
        connect(f"ws://{address}/threads/echo/one") as ada,
    ):
        seen: list[list[tuple[Any, Any]]] = []
        await ada.messages.open()
        ada.messages.on_change(lambda items: seen.append([(each.content, each.status) for each in items]))
        sending = ada.messages.send("Hello", attachments=[{"url": "/a"}])
        assert [each.status for each in ada.messages.items] == ["sending"]
        id = await sending
        items = await until(ada, lambda items: [each.status for each in items] == ["completed"] * 2)
        assert [each.content for each in items] == ["Hello", "You said: Hello"]
        assert (items[0].id, items[0].attachments) == (id, [{"url": "/a"}])
        assert [("Hello", "sending")] in seen
        assert all(shown[0][0] == "Hello" for shown in seen)


async def test_rights_are_asked_for_messages_and_for_sending(tmp_path: Path) -> None:
    asked: list[str] = []

    def authenticate(request: Any) -> Principal:
        return Principal(request.headers.get("authorization", "").removeprefix("Bearer "))

    def authorize(principal: Principal | None, thread: Any, action: str) -> bool:
        assert principal is not None
        asked.append(action)
        return action not in principal.id.split("-")

    async with (
        running(make_app(tmp_path, authenticate=authenticate, authorize=authorize)) as address,
        asyncio.timeout(TIMEOUT),
    ):
        url = f"ws://{address}/threads/echo/one"
        async with connect(url, token="messages") as blind, connect(url, token="send") as mute:
            with pytest.raises(Refused, match="forbidden"):
                await blind.messages.open()
            assert await blind.messages.send("hi")
            with pytest.raises(Refused, match="forbidden"):
                await mute.messages.send("hi")
            items = await until(mute, lambda items: items and items[0].status == "completed")
            assert items[0].metadata["user"] == "messages"
            assert items[0].metadata["connection"] == blind.connection
        assert asked.count("messages") == asked.count("send") == 2
        async with connect(f"{url}?readonly", token="ada") as reader:
            assert await reader.messages.open()
            with pytest.raises(Refused, match="readonly"):
                await reader.messages.send("hi")


async def test_the_blocking_client_has_messages_too(tmp_path: Path) -> None:
    async with running(make_app(tmp_path)) as address:

        def talk() -> None:
            with connect_sync(f"ws://{address}/threads/desk/three", timeout=TIMEOUT) as room:
                seen: list[int] = []
                assert room.messages.open() == []
                remove = room.messages.on_change(lambda items: seen.append(len(items)))
                ids = [room.messages.send(f"{number}") for number in range(3)]
                assert [each.id for each in room.messages.items] == ids
                assert seen[-1] == 3
                remove()
                room.messages.close()
                assert len(room.messages.open(limit=2)) == 3
                assert (room.messages.is_ready, room.messages.has_more, room.messages.older()) == (True, False, False)
                with pytest.raises(Refused, match="not_found"):
                    room.messages.of("notes").open()
            with pytest.raises(Closed):
                room.messages.send("late")

        async with asyncio.timeout(TIMEOUT):
            await asyncio.to_thread(talk)
