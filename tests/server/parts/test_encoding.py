"""What a caller passes to a part is refused, or can be read when the thread wakes."""

from collections.abc import AsyncIterator, Callable
from inspect import isawaitable
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from tests.schedules import TIMES, in_soak
from tests.server.parts.odd_arguments import make_odd
from tests.server.parts.workshop import make_store

from plait import Context, Messages, Plait, Schedule, Thread, Values, effect
from plait.errors import PlaitError, StoreError

pytestmark = pytest.mark.soak


class Room(Thread[dict[str, Any]]):
    initial_state = {"n": 0}  # noqa: RUF012
    values = Values()
    messages = Messages()
    schedule = Schedule()

    @effect
    def ring(self, what: Any = None) -> None:
        """Do nothing."""


class House:
    """An app whose agent `do` does what a test says."""

    def __init__(self, store: Any) -> None:
        self.app = Plait(Room, store=store, limits=None)

        @self.app.agent("do", thread=Room)
        async def do(ctx: Context[Room], work: Any) -> None:
            await work(ctx.thread)

    async def restart(self) -> None:
        """Put all threads to sleep, so that the next use reads what is stored."""
        await self.app.__aexit__(None, None, None)
        await self.app.__aenter__()

    async def room(self, name: str = "one") -> Room:
        """Return a room, awake."""
        room = (await self.app._node.actor(self.app.thread(Room, name)._key)).thread
        assert isinstance(room, Room)
        return room

    async def read_all(self, name: str = "one") -> None:
        """Read whatever a room, the user and the namespaces have."""
        room, user, kv = await self.room(name), self.app.user("ada"), self.app.kv
        assert room.state == {"n": 0}
        await room.values.items()
        await room.values.metadata()
        await room.messages.list(100_000, include_silent=True, max_depth=1000)
        await room.messages.pending()
        await room.schedule.list()
        await user.items()
        await user.metadata()
        for space in await kv.namespaces():
            await kv.stats(space)
            for key in await kv.keys(space):
                assert (await kv.get(space, key)).exists


# What is refused is the same with each store, and finding the place of what is not JSON takes long.
@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    found = House(make_store(request.param, tmp_path))
    async with found.app:
        await found.app.thread(Room, "one").part(Room.messages).inject("user", "hello")
        await found.app.user("ada").set("n", 1)
        yield found


async def update_message(messages: Any, *args: Any, **options: Any) -> None:
    message = await messages.inject("user", "x")
    await messages.update(message.id, *args, **options)


async def stream(messages: Any, text: Any = "x", **options: Any) -> None:
    async with messages.stream(**options) as message:
        message.append(text)


async def finish(messages: Any, **options: Any) -> None:
    async with messages.stream() as message:
        message.finish(**options)


Write = Callable[[Any, Any], Any]

VALUES: dict[str, Write] = {
    "values.set(key)": lambda values, odd: values.set(odd, 1),
    "values.set(value)": lambda values, odd: values.set("set", odd),
    "values.set([value])": lambda values, odd: values.set("set list", [odd, None]),
    "values.delete(key)": lambda values, odd: values.delete(odd),
    "values.push(key)": lambda values, odd: values.push(odd, 1),
    "values.push(value)": lambda values, odd: values.push("list", odd),
    "values.push(max_records)": lambda values, odd: values.push("short list", 1, odd),
    "values.update(key)": lambda values, odd: values.update(odd, lambda _: 1),
    "values.update(result)": lambda values, odd: values.update("result", lambda _: odd),
    "values.update(default)": lambda values, odd: values.update("default", lambda value: value, odd),
    "values.update(change)": lambda values, odd: values.update("change", odd),
    "values.set_metadata": lambda values, odd: values.set_metadata(odd),
    "values.set_metadata(a)": lambda values, odd: values.set_metadata({"a": odd}),
}
MESSAGES: dict[str, Write] = {
    **{
        f"messages.inject({name})": lambda messages, odd, name=name: messages.inject(**{"role": "user", name: odd})
        for name in (
            "role",
            "content",
            "name",
            "tool_calls",
            "tool_call_id",
            "subagent_id",
            "parent_id",
            "depth",
            "silent",
            "metadata",
            "attachments",
        )
    },
    **{
        f"messages.queue({name})": lambda messages, odd, name=name: messages.queue(**{"content": "x", name: odd})
        for name in ("content", "role", "key", "name", "subagent_id", "silent", "metadata", "attachments")
    },
    **{
        f"messages.stream({name})": lambda messages, odd, name=name: stream(messages, **{name: odd})
        for name in ("text", "role", "name", "parent_id", "depth", "silent", "metadata")
    },
    "messages.stream.finish(tool_calls)": lambda messages, odd: finish(messages, tool_calls=odd),
    "messages.stream.finish(metadata)": lambda messages, odd: finish(messages, metadata=odd),
    "messages.inject(tool_calls[])": lambda messages, odd: messages.inject("assistant", tool_calls=[odd]),
    "messages.inject(tool_calls[a])": lambda messages, odd: messages.inject("assistant", tool_calls=[{"a": odd}]),
    "messages.inject(metadata[a])": lambda messages, odd: messages.inject("user", metadata={"a": odd}),
    "messages.queue(attachments[])": lambda messages, odd: messages.queue("x", attachments=[odd]),
    "messages.queue(attachments[a])": lambda messages, odd: messages.queue("x", attachments=[{"a": odd}]),
    "messages.queue(sender)": lambda messages, odd: messages.queue("x", key="k", sender=odd),
    "messages.update(content)": update_message,
    "messages.update(metadata)": lambda messages, odd: update_message(messages, metadata=odd),
    "messages.update(metadata[a])": lambda messages, odd: update_message(messages, metadata={"a": odd}),
    "messages.update(id)": lambda messages, odd: messages.update(odd, "x"),
    "messages.delete(id)": lambda messages, odd: messages.delete(odd),
}
SCHEDULE: dict[str, Write] = {
    "schedule.after(seconds)": lambda schedule, odd: schedule.after(odd, "ring"),
    "schedule.after(name)": lambda schedule, odd: schedule.after(3600, odd),
    "schedule.after(args)": lambda schedule, odd: schedule.after(3600, "ring", odd),
    "schedule.after(args[])": lambda schedule, odd: schedule.after(3600, "ring", [odd]),
    "schedule.after(key)": lambda schedule, odd: schedule.after(3600, "ring", key=odd),
    "schedule.at(when)": lambda schedule, odd: schedule.at(odd, "ring"),
    "schedule.every(seconds)": lambda schedule, odd: schedule.every(odd, "ring"),
    "schedule.every(args)": lambda schedule, odd: schedule.every(3600, "ring", odd),
    "schedule.cron(rule)": lambda schedule, odd: schedule.cron(odd, "ring"),
    "schedule.cron(tz)": lambda schedule, odd: schedule.cron("0 0 * * *", "ring", tz=odd),
    "schedule.queue(name)": lambda schedule, odd: schedule.queue(odd),
    "schedule.queue(args)": lambda schedule, odd: schedule.queue("ring", odd),
    "schedule.cancel(id)": lambda schedule, odd: schedule.cancel(odd),
}
KV: dict[str, Write] = {
    "kv.set(namespace)": lambda kv, odd: kv.set(odd, "k", 1),
    "kv.set(key)": lambda kv, odd: kv.set("keys", odd, 1),
    "kv.set(value)": lambda kv, odd: kv.set("values", f"{id(odd)}", odd),
    "kv.set(ttl)": lambda kv, odd: kv.set("ttl", "k", 1, ttl=odd),
    "kv.set(content_type)": lambda kv, odd: kv.set("types", "k", 1, content_type=odd),
    "kv.delete(namespace)": lambda kv, odd: kv.delete(odd, "k"),
    "kv.delete(key)": lambda kv, odd: kv.delete("keys", odd),
    "kv.create_namespace(name)": lambda kv, odd: kv.create_namespace(odd),
    "kv.create_namespace(ttl)": lambda kv, odd: kv.create_namespace("ttls", ttl=odd),
    "kv.delete_namespace(name)": lambda kv, odd: kv.delete_namespace(odd),
}
PARTS = {"values": VALUES, "messages": MESSAGES, "schedule": SCHEDULE}


# The writers whose arguments may be nested as deep as can be, which takes long: all refuse them alike.
WITH_DEEPEST = {name for writers in (*PARTS.values(), KV) for name in list(writers)[: None if TIMES > 1 else 1]}


async def refuse_or_store(name: str, write: Write, target: Any) -> int:
    """Write with each odd argument; return how many were accepted."""
    accepted = 0
    for odd in make_odd(with_deepest=name in WITH_DEEPEST):
        try:
            result = write(target, odd)
            if isawaitable(result):
                await result
        except StoreError:
            raise
        except (TypeError, ValueError, PlaitError):
            continue
        accepted += 1
    return accepted


@pytest.mark.parametrize("part", PARTS)
async def test_odd_arguments_of_a_part_are_refused_or_can_be_read_after_a_wake(house: House, part: str) -> None:
    @each_case(("name", "write"), PARTS[part].items())
    async def play(name: str, write: Write) -> None:
        await house.app.thread(Room, name).part(Room.messages).inject("user", "hello")
        await refuse_or_store(name, write, getattr(await house.room(name), part))
        await house.restart()
        await house.read_all(name)

    await play()


@pytest.mark.parametrize("part", ["values", "schedule", *in_soak(["messages"])])
async def test_odd_arguments_in_a_run_are_refused_or_can_be_read_after_a_wake(house: House, part: str) -> None:
    @each_case(("name", "write"), PARTS[part].items())
    async def play(name: str, write: Write) -> None:
        async def work(room: Room) -> None:
            await refuse_or_store(name, write, getattr(room, part))

        await house.app.thread(Room, name).part(Room.messages).inject("user", "hello")
        await house.app.run("do", work, thread=name)
        await house.restart()
        await house.read_all(name)

    await play()


@each_case("name", KV)
async def test_odd_arguments_of_kv_are_refused_or_can_be_read_after_a_wake(house: House, name: str) -> None:
    await refuse_or_store(name, KV[name], house.app.kv)
    await house.restart()
    await house.read_all()


@each_case("name", VALUES)
async def test_odd_arguments_of_a_users_values_are_refused_or_can_be_read_after_a_wake(house: House, name: str) -> None:
    await refuse_or_store(name, VALUES[name], house.app.user("ada"))
    await house.restart()
    await house.read_all()
