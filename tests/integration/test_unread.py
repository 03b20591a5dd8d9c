"""The cards and the unread messages of conversations, as their users list them."""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.socket_client import TIMEOUT, http
from tests.integration.test_http import error_of
from tests.integration.test_listings import Stream, authenticate, streaming
from tests.running import running

from plait import Context, Forbidden, MemoryStore, Messages, Plait, Principal, StoreError, Thread, ThreadKey
from plait.parts.attempts import RetryPolicy
from plait.parts.messages.thread_messages import ThreadMessages
from plait.store.protocol import Write
from plait.web import listing, live_listings
from plait_client import connect

ADA = {"authorization": "Bearer ada"}
BOB = {"authorization": "Bearer bob"}


class Desk(Thread[dict[str, Any]]):
    """A conversation with a card."""

    listed = True
    initial_state: Any = {}  # noqa: RUF012
    messages = Messages(agent="bot", live=True)

    def card(self, state: dict[str, Any]) -> object:
        found = self.messages
        return {"status": found.status, "last": found.last, "told": found.told}


class Bare(Thread[None]):
    """A conversation without a state."""

    listed = True
    messages = Messages(live=True)

    def card(self, state: None) -> object:
        last = self.messages.last
        return None if last is None else last["text"]


class FailingStore(MemoryStore):
    """A store that notes its writes, and fails them on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[Write] = []
        self.is_failing = False

    def submit(self, write: Write) -> asyncio.Future[int]:
        self.writes.append(write)
        if self.is_failing:
            failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            failed.set_exception(StoreError("no"))
            return failed
        return super().submit(write)


class Lab:
    """An app whose agent answers each message, held while `gate` is not set, and clients of it."""

    def __init__(self, client: httpx.AsyncClient, address: str, app: Plait) -> None:
        self.client = client
        self.address = address
        self.app = app
        self.gate = asyncio.Event()
        self.gate.set()

    async def row(self, name: str = "one", kind: str = "desk", who: dict[str, str] = ADA) -> dict[str, Any]:
        """Return the row of a thread in the list of a user."""
        answer = await self.client.get(f"/threads/{kind}?mine", headers=who)
        rows = {row["name"]: row for row in answer.json()["threads"]}
        found: dict[str, Any] = rows[name]
        return found

    async def until(self, check: Callable[[dict[str, Any]], object], **options: Any) -> dict[str, Any]:
        """Wait until a row is as it must be, and return it."""
        async with asyncio.timeout(TIMEOUT):
            while not check(row := await self.row(**options)):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            return row

    def open(self, name: str = "one", kind: str = "desk", user: str = "ada") -> Any:
        return connect(f"ws://{self.address}/threads/{kind}/{name}", token=user)

    async def say(self, text: str, **options: Any) -> None:
        """Send a message."""
        async with self.open(**options) as room:
            await room.messages.send(text)

    async def messages(self, name: str = "one") -> ThreadMessages:
        """Return the messages of a thread, awake."""
        thread = (await self.app._node.actor(self.app.thread(Desk, name)._key)).thread
        assert isinstance(thread, Desk)
        return thread.messages


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Lab]:
    options: dict[str, Any] = {"store": MemoryStore(), "secret": "x" * 32} | settings
    app = Plait(Desk, Bare, authenticate=authenticate, **options)

    @app.agent("bot", thread=Desk)
    async def bot(ctx: Context[Desk]) -> None:
        messages = ctx.thread.messages
        for message in await messages.take():
            async with messages.stream() as answer:
                answer.append(f"re {message.content}")
                await lab.gate.wait()
                if message.content == "fail":
                    raise ValueError("no")

    async with running(app) as address, http(address) as client:
        lab = Lab(client, address, app)
        yield lab


def is_idle(row: dict[str, Any]) -> bool:
    return bool(row["card"] and row["card"]["status"] == "idle")


async def test_a_card_follows_the_conversation_and_who_writes_has_read() -> None:
    async with serving() as lab:
        lab.gate.clear()
        await lab.say("hello")
        row = await lab.until(lambda row: row["card"]["status"] == "running")
        assert (row["card"]["last"]["text"], row["card"]["told"], row["unread"]) == ("hello", 1, 0)
        lab.gate.set()
        row = await lab.until(is_idle)
        last = row["card"]["last"]
        assert (last["role"], last["status"], last["text"]) == ("assistant", "completed", "re hello")
        assert (row["card"]["told"], row["unread"]) == (2, 1)


async def test_marking_as_read_changes_the_count_but_not_the_order_and_no_other_user() -> None:
    async with serving() as lab:
        await lab.say("a", name="one")
        await lab.until(is_idle)
        await lab.say("b", name="two")
        await lab.until(is_idle, name="two")
        answer = await lab.client.post("/threads/desk/one/rpc/messages:read", headers=BOB)
        assert answer.status_code == 200
        assert (await lab.row())["unread"] == 1
        async with lab.open() as room:
            await room.messages.mark_read()
        page = (await lab.client.get("/threads/desk?mine", headers=ADA)).json()
        assert [(row["name"], row["unread"]) for row in page["threads"]] == [("two", 1), ("one", 0)]


async def test_only_a_user_can_mark_messages_as_read() -> None:
    async with serving() as lab:
        await lab.say("a")
        await lab.until(is_idle)
        with pytest.raises(Forbidden):
            (await lab.messages()).mark_read()
        await (await lab.messages()).mark_read("ada")
        assert (await lab.row())["unread"] == 0
        answer = await lab.client.post("/threads/desk/one/rpc/messages:read", headers={})
        assert error_of(answer)[0] in (401, 403)


async def test_messages_after_a_mark_are_unread() -> None:
    async with serving() as lab:
        await lab.say("a")
        await lab.until(is_idle)
        await (await lab.messages()).mark_read("ada")
        await lab.say("b")
        await lab.until(lambda row: row["card"]["told"] == 4)
        assert (await lab.row())["unread"] == 1


async def test_deleting_the_last_message_shows_the_one_before() -> None:
    async with serving() as lab:
        await lab.say("a")
        await lab.until(is_idle)
        messages = await lab.messages()
        await messages.inject("assistant", "more")
        await messages.inject("tool", "result", tool_call_id="c")
        await messages.inject("assistant", "thought", silent=True)
        for text in ("more", "re a", "a"):
            row = await lab.row()
            assert (row["card"]["last"]["text"], row["card"]["told"]) == (text, 3)
            await messages.delete(row["card"]["last"]["id"])
        assert (await lab.row())["card"]["last"] is None


async def test_deleting_two_last_messages_at_once_shows_the_one_before_both(tmp_path: Path) -> None:
    async with serving(store=f"sqlite:///{tmp_path}/desk.db") as lab:  # Whose reads take a while.
        await lab.say("a")
        await lab.until(is_idle)
        messages = await lab.messages()
        ids = [(await messages.inject("assistant", text)).id for text in ("b", "c")]
        await asyncio.gather(*(messages.delete(id) for id in ids[::-1]))
        assert (await lab.row())["card"]["last"]["text"] == "re a"


async def test_deleting_in_a_run_shows_the_one_before() -> None:
    async with serving() as lab:

        @lab.app.agent("clean", thread=Desk)
        async def clean(ctx: Context[Desk]) -> None:
            for message in reversed((await ctx.thread.messages.list(2)).messages):
                await ctx.thread.messages.delete(message.id)

        await lab.say("a")
        await lab.until(is_idle)
        await (await lab.messages()).inject("assistant", "b")
        await lab.app.run("clean", thread="one")
        assert (await lab.row())["card"]["last"]["text"] == "a"


async def test_what_a_run_stores_before_a_later_message_is_not_the_last_one() -> None:
    async with serving() as lab:
        await lab.say("a")
        await lab.until(is_idle)
        messages = await lab.messages()

        @lab.app.agent("slow", thread=Desk)
        async def slow(ctx: Context[Desk]) -> None:
            ctx.thread.messages.inject("assistant", "of the run")
            # Another turn, not the run.
            await asyncio.create_task(later(), context=contextvars.Context())

        async def later() -> None:
            await messages.inject("assistant", "later")

        await lab.app.run("slow", thread="one")
        card = (await lab.row())["card"]
        assert (card["last"]["text"], card["told"]) == ("later", 4)


async def test_a_branch_has_its_own_last_message_and_what_was_told_stays_told() -> None:
    async with serving() as lab:
        await lab.say("a")
        await lab.until(is_idle)
        await lab.say("b")
        await lab.until(lambda row: is_idle(row) and row["card"]["told"] == 4)
        messages = await lab.messages()
        first, answer, *_ = (await messages.list()).messages
        await messages.regenerate(first.id)
        row = await lab.until(lambda row: is_idle(row) and row["card"]["told"] == 5)
        assert (row["card"]["last"]["text"], row["unread"]) == ("re a", 2)
        assert row["card"]["last"]["id"] != answer.id
        await messages.switch(answer.id)
        card = (await lab.row())["card"]
        assert (card["last"]["text"], card["told"], card["status"]) == ("re b", 5, "idle")


async def test_an_edit_of_the_last_message_is_shown_and_one_of_another_is_not() -> None:
    async with serving() as lab:
        await lab.say("a")
        last = (await lab.until(is_idle))["card"]["last"]
        messages = await lab.messages()
        first = (await messages.list()).messages[0]
        await messages.update(first.id, "other")
        await messages.update(last["id"], "x" * 300)
        card = (await lab.row())["card"]
        assert (card["last"]["text"], card["told"]) == ("x" * 200, 2)


async def test_a_failed_attempt_is_told_as_failed_and_counts_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("attempt_runner", "messages.caller"):
        monkeypatch.setattr(f"plait.parts.{module}.PAUSES", RetryPolicy(3, 0.001, 0.001, is_random=False))
    async with serving() as lab:
        await lab.say("fail")
        row = await lab.until(lambda row: row["card"]["status"] == "failed")
        assert (row["card"]["told"], row["unread"], row["card"]["last"]["text"]) == (1, 0, "fail")


async def test_a_card_of_a_conversation_without_a_state_follows_its_messages() -> None:
    async with serving() as lab:
        await lab.say("hi", kind="bare")
        row = await lab.row(kind="bare")
        assert (row["card"], row["unread"]) == ("hi", 0)


async def test_a_listing_of_all_threads_has_no_unread_messages() -> None:
    async with serving() as lab:
        await lab.say("a")
        row = (await lab.client.get("/threads/desk", headers=ADA)).json()["threads"][0]
        assert set(row) == {"name", "people", "card"}


async def test_a_readonly_client_may_mark_messages_as_read() -> None:
    refused = set[str]()

    def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        return action not in refused

    async with serving(authorize=authorize) as lab:
        await lab.say("a")
        await lab.until(is_idle)
        refused.add("write")
        async with lab.open() as room:
            await room.messages.mark_read()
        assert (await lab.row())["unread"] == 0


async def test_a_fork_and_an_imported_thread_have_the_marks() -> None:
    async with serving() as lab:
        await lab.say("a")
        await lab.until(is_idle)
        await (await lab.messages()).mark_read("ada")
        await (await lab.messages()).inject("assistant", "more")
        await lab.app.fork_thread(Desk, "one", "fork")
        exported = b"".join([line async for line in lab.app.export_thread(Desk, "one")])
        await lab.app.import_thread(exported, name="copy")
        for name in ("one", "fork", "copy"):
            row = await lab.row(name)
            assert (row["unread"], row["card"]["told"], row["card"]["last"]["text"]) == (1, 3, "more"), name
        await lab.app.destroy(Desk, "one")
        await lab.say("again")
        row = await lab.until(is_idle)
        assert (row["unread"], row["card"]["told"]) == (1, 2)


async def test_many_marks_at_once_are_one_write_and_a_lost_one_is_made_again() -> None:
    store = FailingStore()
    async with serving(store=store) as lab:
        await lab.say("a")
        await lab.until(is_idle)
        messages = await lab.messages()
        store.is_failing = True
        with pytest.raises(StoreError):
            await messages.mark_read("ada")
        store.is_failing = False
        assert (await lab.row())["unread"] == 1
        written = len(store.writes)
        for _ in range(3):
            await (await lab.messages()).mark_read("ada")
        assert (await lab.row())["unread"] == 0
        assert len(store.writes) == written + 1


# Live


@asynccontextmanager
async def live(lab: Lab, who: dict[str, str] = ADA) -> AsyncIterator[Stream]:
    """Open the live list of a user."""
    async with streaming(lab.client, "/threads/desk?mine", **who) as stream:
        yield stream


async def read_until(stream: Stream, check: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return the first row of the first page in which it is as it must be."""
    while (page := await stream.read()) is not None:
        if page["threads"] and check(page["threads"][0]):
            break
    assert page is not None
    found: dict[str, Any] = page["threads"][0]
    return found


async def test_two_devices_see_messages_and_marks_without_looking_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_listings, "_PAUSE", 1000)
    async with serving() as lab, live(lab) as phone, live(lab) as laptop, live(lab, BOB) as other:
        for device in (phone, laptop, other):
            assert (await device.read())["threads"] == []
        await lab.say("hello")
        for device in (phone, laptop):
            await read_until(device, lambda row: is_idle(row) and row["unread"] == 1)
        async with lab.open() as room:
            await room.messages.mark_read()
        for device in (phone, laptop):
            await read_until(device, lambda row: row["unread"] == 0)
        await lab.app.destroy(Desk, "one")
        for device in (phone, laptop):
            assert (await device.read())["threads"] == []


async def test_a_live_list_sees_sleeping_threads_that_are_forked_and_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as lab:
        await lab.say("hello")
        await lab.until(is_idle)
        await lab.app._node._lifecycle.stop_all(1.0)
        monkeypatch.setattr(live_listings, "_PAUSE", 1000)
        async with live(lab) as stream:
            assert (await read_until(stream, is_idle))["name"] == "one"
            await lab.app.fork_thread(Desk, "one", "fork")
            assert (await read_until(stream, is_idle))["name"] == "fork"
            for name in ("fork", "one"):
                await lab.app.destroy(Desk, name)
            while (await stream.read())["threads"]:
                pass


async def test_a_live_list_sees_who_comes_to_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_listings, "_PAUSE", 0.02)
    monkeypatch.setattr(live_listings, "_RARELY", 1000)
    monkeypatch.setattr(listing, "_FRESH", 0.01)
    async with serving() as lab:
        await lab.say("hello")
        await lab.until(is_idle)
        async with live(lab) as stream:
            await read_until(stream, lambda row: row["people"] == 0)
            async with lab.open(user="bob"):
                await read_until(stream, lambda row: row["people"] == 1)
            await read_until(stream, lambda row: row["people"] == 0)
