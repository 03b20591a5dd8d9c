"""The functions that are called before and after messages are made or changed."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from tests.cases import each_case
from tests.server.fakes import TroubledStore
from tests.server.parts.messages_lab import Viewer, contents

from plait import Context, Message, MessageHooks, Messages, Plait, Reject, StoreError, Thread, ThreadMessages

Work = Callable[[ThreadMessages], Awaitable[object]]


class Hooked:
    """An app whose messages have hooks; `do` does something with those of a thread, in a run or outside of one."""

    def __init__(self, hooks: MessageHooks, *, is_run: bool) -> None:
        class Room(Thread[dict[str, Any]]):
            messages = Messages(live=True, hooks=hooks)

        self._room = Room
        self._is_run = is_run
        self.store: Any = TroubledStore()
        self.app = Plait(Room, store=self.store)

        @self.app.agent("do", thread=Room)
        async def do(ctx: Context[Room], work: Any) -> None:
            await work(ctx.thread.messages)

    async def do(self, work: Work) -> None:
        if self._is_run:
            await self.app.run("do", work, thread="one")
        else:
            await work(await self.messages())

    async def thread(self) -> Any:
        return (await self.app._node.actor(self.app.thread(self._room, "one")._key)).thread

    async def messages(self) -> ThreadMessages:
        messages = (await self.thread()).messages
        assert isinstance(messages, ThreadMessages)
        return messages

    async def all(self) -> list[Message]:
        return (await (await self.messages()).list(include_silent=True)).messages


@asynccontextmanager
async def hooked(*, is_run: bool = False, **hooks: Any) -> AsyncIterator[Hooked]:
    lab = Hooked(MessageHooks(**hooks), is_run=is_run)
    async with lab.app:
        yield lab


def mask(thread: object, message: Message) -> Message | None:
    """Hide what is secret, in all that is written, and mark it."""
    if "secret" not in (message.content or ""):
        return None
    content = (message.content or "").replace("secret", "***")
    return replace(message, content=content, id="mine", position=7, metadata={**message.metadata, "masked": True})


async def write_all(messages: ThreadMessages) -> None:
    await messages.inject("user", "a secret")
    await messages.inject("user", "plain")
    await messages.queue("queued secret", key="k")
    await messages.queue("another secret", key="k")
    async with messages.stream() as m:
        m.append("my sec")
        m.append("ret")


both = pytest.mark.parametrize("is_run", [True, False], ids=["in a run", "at rest"])


@both
async def test_what_is_stored_is_what_before_create_returns(*, is_run: bool) -> None:
    async with hooked(is_run=is_run, before_create_message=mask) as lab:
        viewer = Viewer(await lab.messages())
        await viewer.open()
        await lab.do(write_all)
        found = await lab.all()
        assert sorted(map(str, contents(found))) == ["a ***", "my ***", "plain", "queued ***"]
        assert [each.metadata.get("masked", False) for each in found if each.content != "plain"] == [True] * 3
        assert {each.id for each in found}.isdisjoint({"mine"})
        assert [(each.content, each.metadata) for each in viewer.shown] == [
            (each.content, each.metadata) for each in found
        ]


@both
async def test_what_before_create_raises_refuses_the_message(*, is_run: bool) -> None:
    def refuse(thread: object, message: Message) -> None:
        if "secret" in (message.content or ""):
            raise Reject("no secrets")

    async def stream(messages: ThreadMessages) -> None:
        async with messages.stream() as m:
            m.append("my secret")
            m.finish(metadata={"x": 1})

    async def work(messages: ThreadMessages) -> None:
        with pytest.raises(Reject, match="no secrets"):
            messages.inject("user", "a secret")
        with pytest.raises(Reject, match="no secrets"):
            messages.queue("a secret", key="k")
        await messages.queue("fine", key="k")
        with pytest.raises(Reject, match="no secrets"):
            await stream(messages)

    async with hooked(is_run=is_run, before_create_message=refuse) as lab:
        await lab.do(work)
        found = {(each.content, each.status, bool(each.metadata)) for each in await lab.all()}
        assert found == {("fine", "pending", False), ("my secret", "failed", False)}


@both
async def test_after_create_and_update_get_what_is_stored_and_may_write(*, is_run: bool) -> None:
    told: list[tuple[str, str | None, str]] = []
    is_done = asyncio.Event()

    async def created(thread: Any, message: Message) -> None:
        stored = await thread.messages.get(message.id)
        told.append(("created", stored.content, stored.status))
        if message.content == "last":
            await thread.messages.inject("system", "from a hook")
        if message.content == "from a hook":
            is_done.set()

    def updated(thread: Any, message: Message) -> None:
        told.append(("updated", message.content, message.status))

    async def work(messages: ThreadMessages) -> None:
        first = await messages.inject("user", "one")
        queued = await messages.queue("two")
        async with messages.stream() as m:
            m.append("three")
        await messages.update(first.id, "ONE")
        await messages.update(queued.id, metadata={"x": 1})
        await messages.inject("user", "last")

    async with hooked(is_run=is_run, after_create_message=created, after_update_message=updated) as lab:
        await lab.do(work)
        async with asyncio.timeout(10):
            await is_done.wait()
        assert sorted(each for each in told if each[0] == "updated") == [
            ("updated", "ONE", "completed"),
            ("updated", "two", "pending"),
        ]
        names = [content for what, content, _ in told if what == "created"]
        assert sorted(str(each).lower() for each in names) == ["from a hook", "last", "one", "three", "two"]
        assert {status for what, content, status in told if content == "three"} == {"completed"}


async def test_hooks_are_told_nothing_of_a_write_that_is_lost() -> None:
    told: list[str | None] = []

    def created(thread: Any, message: Message) -> None:
        told.append(message.content)

    async with hooked(after_create_message=created) as lab:
        messages = await lab.messages()
        lab.store.fail_next()
        with pytest.raises(StoreError):
            await messages.inject("user", "lost")
        await messages.inject("user", "kept")
        assert told == ["kept"]


async def test_hooks_are_told_of_a_transaction_as_a_whole_or_not_at_all() -> None:
    told: list[tuple[str | None, int]] = []

    async def created(thread: Any, message: Message) -> None:
        told.append((message.content, (await thread.messages.list()).total))
        if len(told) == 2:
            is_done.set()

    def write(thread: Any, *, fails: bool) -> None:
        with thread.transaction():
            thread.messages.inject("user", f"first, {fails}")
            thread.messages.inject("user", f"second, {fails}")
            if fails:
                raise RuntimeError("stop")

    is_done = asyncio.Event()
    async with hooked(after_create_message=created) as lab:
        thread = await lab.thread()
        with pytest.raises(RuntimeError, match="stop"):
            write(thread, fails=True)
        write(thread, fails=False)
        async with asyncio.timeout(10):
            await is_done.wait()
        assert told == [("first, False", 2), ("second, False", 2)]


async def test_hooks_are_told_nothing_of_a_run_that_raises() -> None:
    told: list[str | None] = []

    def created(thread: Any, message: Message) -> None:
        told.append(message.content)

    async def work(messages: ThreadMessages) -> None:
        messages.inject("user", "lost")
        raise RuntimeError("stop")

    async with hooked(is_run=True, after_create_message=created) as lab:
        with pytest.raises(RuntimeError, match="stop"):
            await lab.do(work)
        await (await lab.messages()).inject("user", "kept")
        assert told == ["kept"]


@both
async def test_before_update_changes_what_is_updated(*, is_run: bool) -> None:
    seen: list[tuple[str, Mapping[str, Any]]] = []

    def change(thread: object, id: str, updates: Mapping[str, Any]) -> Mapping[str, Any] | None:
        seen.append((id, updates))
        return {"content": updates["content"].upper(), "metadata": {"by": "hook"}} if "content" in updates else None

    async def work(messages: ThreadMessages) -> None:
        first = await messages.inject("user", "one", metadata={"x": 1})
        assert (await messages.update(first.id, "two")).content == "TWO"
        await messages.update(first.id, metadata={"y": 2})
        await messages.update(first.id, "")

    async with hooked(is_run=is_run, before_update_message=change) as lab:
        await lab.do(work)
        (found,) = await lab.all()
        assert (found.content, found.metadata) == ("", {"x": 1, "by": "hook", "y": 2})
        assert [each for _, each in seen] == [{"content": "two"}, {"metadata": {"y": 2}}, {"content": ""}]


@pytest.mark.parametrize("returned", [{"content": 5}, {"role": "tool"}, {"words": "x"}, "x", None])
async def test_an_error_of_before_update_is_logged_and_the_update_kept(
    returned: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def change(thread: object, id: str, updates: Mapping[str, Any]) -> Any:
        if returned is None:
            raise RuntimeError("stop")
        return returned

    async with hooked(before_update_message=change) as lab:
        messages = await lab.messages()
        first = await messages.inject("user", "one")
        with caplog.at_level(logging.ERROR, "plait.thread"):
            await messages.update(first.id, "two")
        assert contents(await lab.all()) == ["two"]
        assert [each.getMessage() for each in caplog.records] == [
            "before_update_message has raised; the update stays as it was"
        ]


@pytest.mark.parametrize("name", ["after_create_message", "after_update_message"])
async def test_an_error_of_a_hook_after_is_logged_and_the_message_kept(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    called = asyncio.Event()

    async def fail(thread: object, message: Message) -> None:
        called.set()
        raise RuntimeError("stop")

    hooks: dict[str, Any] = {name: fail}
    async with hooked(**hooks) as lab:
        messages = await lab.messages()
        with caplog.at_level(logging.ERROR):
            first = await messages.inject("user", "one")
            await messages.update(first.id, "two")
            async with asyncio.timeout(10):
                await called.wait()
                while not caplog.records:  # noqa: ASYNC110
                    await asyncio.sleep(0)
        assert [str(each.exc_info[1]) for each in caplog.records if each.exc_info] == ["stop"]
        assert contents(await lab.all()) == ["two"]


async def test_a_result_of_before_create_is_stored_as_a_message_even_if_it_is_of_a_subclass() -> None:
    class Loose(Message, frozen=True, kw_only=True):
        content: Any = None
        mood: str = "good"

    def loosen(thread: object, message: Message) -> Message:
        given = {field: getattr(message, field) for field in message.__struct_fields__}
        return Loose(**{**given, "content": 7 if message.content == "seven" else message.content})

    async with hooked(before_create_message=loosen) as lab:
        messages = await lab.messages()
        with pytest.raises(TypeError, match="content cannot be stored"):
            messages.inject("user", "seven")
        assert type(await messages.inject("user", "one")) is Message
        assert contents(await lab.all()) == ["one"]


async def test_a_result_of_before_create_that_is_no_message_is_refused() -> None:
    async with hooked(before_create_message=lambda thread, message: "text") as lab:
        messages = await lab.messages()
        with pytest.raises(TypeError, match="must return a message or None, not str"):
            messages.inject("user", "one")
        assert await lab.all() == []


@each_case("name", ["before_create_message", "before_update_message"])
def test_hooks_before_cannot_be_async(name: str) -> None:
    async def hook(*_: object) -> None: ...

    hooks: dict[str, Any] = {name: hook}
    with pytest.raises(TypeError, match=f"{name} must be a function without async"):
        Messages(hooks=MessageHooks(**hooks))


def test_hooks_are_functions() -> None:
    with pytest.raises(TypeError, match="after_create_message must be a function, not 'x'"):
        Messages(hooks=MessageHooks(after_create_message="x"))  # type: ignore[arg-type]
