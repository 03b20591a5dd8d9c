"""Messages of threads that sleep, end, expire, are terminated, or may not be written."""

import asyncio
from typing import Any

import pytest
from tests.cases import each_case
from tests.server.fakes import FakeTransport
from tests.server.parts.messages_lab import Chat, MessagesLab, answer, contents
from tests.server.parts.test_messages_queue import Gate, statuses
from tests.server.parts.workshop import FlakyStore, open_workshop, until

from plait import Context, CorruptThread, Messages, Readonly, Terminated, Thread
from plait.actor.connection import Rights
from plait.actor.turn import Turn
from plait.parts.messages.state import load_state
from plait.store.thread_rows import Record, RecordRange, ThreadKey

KEY = ThreadKey("chat", "one")


async def until_calls(lab: MessagesLab, calls: int) -> None:
    async with asyncio.timeout(10):
        while lab.calls < calls:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_what_is_queued_is_found_after_a_restart_without_any_use_of_the_thread(chats: MessagesLab) -> None:
    gate = Gate()

    async def wait(ctx: Context[Chat]) -> None:
        gate.is_reached.set()
        await asyncio.Event().wait()

    chats.work = wait
    await chats.handle.queue("a")
    await gate.reached()
    chats.work = answer
    await chats.restart()
    await until_calls(chats, 2)
    await chats.until(lambda found: contents(found) == ["a", "re a"])


async def test_a_thread_is_due_while_anything_is_queued_and_not_after(chats: MessagesLab) -> None:
    gate = Gate()

    async def work(ctx: Context[Chat]) -> None:
        taken = await ctx.thread.messages.take()
        await ctx.flush()
        await gate.wait()
        assert taken

    async def due() -> list[Any]:
        found: list[Any] = await chats.store.due_threads(until=1 << 62)
        return found

    chats.work = work
    await chats.handle.inject("user", "a")
    assert await due() == []
    await chats.handle.queue("b")
    await gate.reached()
    # Its message is history, but the run has not ended.
    assert statuses(await chats.all()) == ["completed", "completed"]
    assert [each.key for each in await due()] == [KEY]
    gate.open()
    async with asyncio.timeout(10):
        while await due():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_terminated_thread_takes_no_message_and_keeps_what_it_has(chats: MessagesLab) -> None:
    gate = Gate()

    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        await messages.take()
        async with messages.stream() as m:
            m.append("half")
            gate.is_reached.set()
            while True:
                await asyncio.sleep(0.001)
                await ctx.checkpoint()

    chats.work = work
    messages = await chats.messages()
    history = await messages.inject("user", "history")
    await messages.queue("asked")
    await gate.reached()
    await (await chats.thread()).terminate()
    with pytest.raises(Terminated) as raised:
        messages.inject("user", "late")
    assert raised.value.code == "terminated"
    with pytest.raises(Terminated):
        messages.queue("late")
    with pytest.raises(Terminated):
        messages.stream()
    found = await chats.until(lambda found: "streaming" not in statuses(found))
    assert [(each.content, each.status) for each in found] == [
        ("history", "completed"),
        ("half", "failed"),
        ("asked", "pending"),
    ]
    assert await chats.store.due_threads(until=1 << 62) == []
    await chats.restart()
    assert contents(await chats.handle.pending()) == ["asked"]
    assert (await chats.handle.update(history.id, "changed")).content == "changed"
    assert await chats.handle.delete((await chats.handle.pending())[0].id) is True
    assert contents(await chats.all()) == ["changed", "half"]
    assert chats.calls == 1


async def test_a_message_that_never_moved_is_one_record_beside_the_head(chats: MessagesLab) -> None:
    kept = await chats.handle.inject("user", "a")
    assert await stored_prefixes(chats) == ["head", "m"]
    assert await chats.handle.get(kept.id) == kept
    assert await chats.handle.delete(kept.id) is True
    assert await stored_prefixes(chats) == ["head", "u"]


@pytest.mark.parametrize("key", [None, "sent"])
async def test_a_message_that_moved_is_found_by_its_id_at_its_new_position(chats: MessagesLab, key: str | None) -> None:
    async def wait(_: Context[Chat]) -> None:
        raise ValueError("not now")

    chats.work = wait
    queued = await chats.handle.queue("a", key=key)
    await chats.handle.inject("user", "between")
    [taken] = await chats.handle.take()
    assert taken.position > queued.position
    await chats.restart()
    assert await chats.handle.get(queued.id) == taken
    assert (await chats.handle.update(queued.id, "b")).content == "b"
    assert await chats.handle.delete(queued.id) is True
    assert await chats.handle.get(queued.id) is None
    assert not [each for each in await stored_prefixes(chats) if each == "i"]


async def test_an_id_that_no_message_has_is_not_found(chats: MessagesLab) -> None:
    kept = await chats.handle.inject("user", "a")
    assert kept.position == 1

    @each_case("id", ["", "-", "x-y", "-1-a", "1-", "1-00", "0x1-a", "f" * 300 + "-a"])
    async def play(id: str) -> None:
        assert await chats.handle.get(id) is None
        assert await chats.handle.delete(id) is False
        assert contents(await chats.all()) == ["a"]

    await play()


async def stored_prefixes(chats: MessagesLab) -> list[str]:
    return sorted(record.key.partition("/")[0] for record in await chats.store.records(KEY, RecordRange("messages")))


class Guest(Thread[dict[str, Any]]):
    """A thread that soon expires, and whose agent the app does not have."""

    idle_timeout = 0.01
    expires_after = 0.05
    messages = Messages(agent="absent")


async def test_a_thread_does_not_expire_while_a_message_is_queued(store: FlakyStore) -> None:
    async with open_workshop(store, Guest, timer_interval=0.01) as workshop:
        messages = (await workshop.thread(Guest, "asking")).messages
        await messages.queue("a")
        await (await workshop.thread(Guest, "silent")).messages.inject("user", "b")

        async def is_gone(name: str) -> bool:
            return await store.find(ThreadKey("guest", name)) is None

        await until(lambda: is_gone("silent"))
        assert not await is_gone("asking")
        await workshop.handle(Guest, "asking").messages.take()
        await until(lambda: is_gone("asking"))


async def test_a_readonly_client_writes_no_messages(chats: MessagesLab) -> None:
    thread, actor = await chats.thread(), await chats.actor()
    transport = FakeTransport()
    connection = actor.sockets.make_connection("c", transport, rights=Rights(may_write=False))
    turn = Turn(
        "message", lambda: thread.messages.inject("user", "a"), actor=actor, connection=connection, by_client=True
    )
    ended = asyncio.get_running_loop().create_future()
    actor.turns.begin(turn, lambda _, error: ended.set_result(error))
    assert isinstance(await ended, Readonly)
    assert await chats.all() == []


@each_case("data", [b"[", b"{}", b'{"id":"\xff"}'])
def test_a_message_that_cannot_be_read_is_of_a_corrupt_thread(data: bytes) -> None:
    with pytest.raises(CorruptThread, match="messages/q/1 of room/one cannot be read"):
        load_state(ThreadKey("room", "one"), [], [Record("messages", "q/1", data)], [])
