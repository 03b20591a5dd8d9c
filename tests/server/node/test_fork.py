"""A thread that is made of another one."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.schedules import in_soak

from plait import (
    Conflict,
    Context,
    InvalidState,
    MemoryStore,
    Message,
    Messages,
    NotFound,
    Plait,
    Schedule,
    SqliteStore,
    Store,
    StoreError,
    Thread,
    ThreadKey,
    Unavailable,
    Values,
    effect,
    migrate,
    rpc,
)
from plait.clock import read_wall_clock
from plait.store.protocol import ThreadView, Write
from plait.store.thread_rows import Record

PATIENCE = 10.0
FOREVER = 2**62


class Desk(Thread[Any]):
    """Has everything that a thread can have."""

    initial_state: ClassVar = {"rung": 0}
    starts: ClassVar[list[str]] = []
    values = Values()
    messages = Messages(agent="answer", live=True)
    schedule = Schedule()

    def on_start(self) -> None:
        self.starts.append(self.name)

    @effect()
    def ring(self) -> None:
        self.set_state(lambda state: {"rung": state["rung"] + 1})

    @rpc
    async def copy(self, app_fork: str) -> None:
        self.set_state({"rung": 99})
        await _apps[0].fork_thread(Desk, self.name, app_fork)


class Short(Thread[Any]):
    """A thread that has only a state, of its first type."""

    kind = "short"
    initial_state = 0


class ShortLater(Thread[Any]):
    """The same kind, with a state of another type."""

    kind = "short"
    state_version = 2

    @staticmethod
    @migrate(from_=1)
    def as_text(state: Any) -> Any:
        return f"was {state}"


class Bare(Thread[Any]):
    values = Values()


_apps: list[Plait] = []


@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "one.db")


class Bot:
    """The agent of the desks, which waits until it may take what is queued."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.may_go = asyncio.Event()

    async def __call__(self, ctx: Context[Desk]) -> None:
        self.calls.append(ctx.thread.name)
        await self.may_go.wait()
        for message in await ctx.thread.messages.take():
            ctx.thread.messages.inject("assistant", f"re {message.content}")


@asynccontextmanager
async def open_app(store: Store, bot: Bot | None = None, short: type[Thread[Any]] = Short) -> AsyncIterator[Plait]:
    bot = bot or Bot()
    app = Plait(Desk, Bare, short, store=store)

    @app.agent("answer", thread=Desk)
    async def answer(ctx: Context[Desk]) -> None:
        await bot(ctx)

    _apps[:] = [app]
    Desk.starts.clear()
    async with app:
        yield app


def texts(messages: Sequence[Message]) -> list[tuple[str | None, str]]:
    return [(each.content, each.status) for each in messages]


async def shown(app: Plait, name: str) -> tuple[Any, ...]:
    """Return what code sees of a desk, but its schedule."""
    desk = app.thread(Desk, name)
    page = await desk.part(Desk.messages).list(include_silent=True)
    return (
        await desk.state(),
        await desk.part(Desk.values).items(),
        await desk.part(Desk.values).metadata(),
        page.messages,
        page.total,
    )


async def fill(app: Plait, name: str = "one") -> None:
    desk = app.thread(Desk, name)
    await desk.set_state({"rung": 5})
    await desk.part(Desk.values).set("deep", {"a": [1, None, {"b": "é\n"}]})
    await desk.part(Desk.values).push("log", "x")
    await desk.part(Desk.values).set_metadata({"plan": "pro"})
    for number in range(3):
        await desk.part(Desk.messages).inject("user", f"message {number}", silent=number == 1)


async def test_a_fork_has_what_its_original_has_and_neither_sees_later_changes_of_the_other(store: Store) -> None:
    async with open_app(store) as app:
        await fill(app)
        before = await shown(app, "one")
        copy = await app.fork_thread(Desk, "one", "copy")
        assert copy.name == "copy"
        assert await shown(app, "copy") == before
        await copy.set_state({"rung": 6})
        await copy.part(Desk.values).push("log", "y")
        await copy.part(Desk.messages).inject("user", "only here")
        await copy.part(Desk.messages).delete(before[3][0].id)
        assert await shown(app, "one") == before
        after = await shown(app, "copy")
        one = app.thread(Desk, "one")
        await one.set_state({"rung": 7})
        await one.part(Desk.values).delete("deep")
        await one.part(Desk.messages).update(before[3][1].id, "changed")
        assert await shown(app, "copy") == after
        changed = await shown(app, "one")
    async with open_app(store) as app:
        assert await shown(app, "copy") == after
        assert await shown(app, "one") == changed
        await app.destroy(Desk, "one")
        assert await shown(app, "copy") == after


async def test_waiting_work_stays_with_the_original_and_is_done_once(store: Store) -> None:
    bot = Bot()
    async with open_app(store, bot) as app:
        one = app.thread(Desk, "one")
        await one.part(Desk.messages).inject("user", "history")
        await one.part(Desk.messages).queue("asked", key="k")
        await one.part(Desk.messages).queue("asked more")
        await one.part(Desk.schedule).every(60, "ring")
        await one.part(Desk.schedule).after(0.3, "ring")
        copy = await app.fork_thread(Desk, "one", "copy")
        assert await copy.part(Desk.schedule).list() == []
        assert await copy.part(Desk.messages).pending() == []
        assert texts((page := await copy.part(Desk.messages).list()).messages) == [("history", "completed")]
        assert (page.total, page.has_more) == (1, False)
        assert {each.key.name for each in await store.due_threads(until=FOREVER)} == {"one"}
        bot.may_go.set()
        async with asyncio.timeout(PATIENCE):
            while (await one.state())["rung"] == 0 or await one.part(Desk.messages).pending():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await copy.state() == {"rung": 0}
        assert bot.calls
        assert set(bot.calls) == {"one"}
        # The fork takes work of its own, also what it left.
        await copy.part(Desk.messages).queue("asked", key="k")
        async with asyncio.timeout(PATIENCE):
            while len(found := (await copy.part(Desk.messages).list()).messages) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert [each.content for each in found] == ["history", "asked", "re asked"]


async def test_what_was_sent_with_a_key_and_is_history_is_not_added_to_the_fork_again(store: Store) -> None:
    bot = Bot()
    bot.may_go.set()
    async with open_app(store, bot) as app:
        one = app.thread(Desk, "one")
        await one.part(Desk.messages).queue("a", key="k")
        async with asyncio.timeout(PATIENCE):
            while await one.part(Desk.messages).pending():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        copy = await app.fork_thread(Desk, "one", "copy")
        await copy.part(Desk.messages).queue("a", key="k")
        assert texts((await copy.part(Desk.messages).list()).messages) == [("a", "completed"), ("re a", "completed")]


async def test_a_message_that_is_being_written_is_failed_in_the_fork(store: Store) -> None:
    async with open_app(store) as app:
        thread = (await app._node.actor(ThreadKey("desk", "one"))).thread
        assert isinstance(thread, Desk)
        async with thread.messages.stream() as m:
            m.append("half")
            async with asyncio.timeout(PATIENCE):
                while texts((await thread.messages.list()).messages) != [("half", "streaming")]:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            copy = await app.fork_thread(Desk, "one", "copy")
            m.append(" whole")
        assert texts((await copy.part(Desk.messages).list()).messages) == [("half", "failed")]
        assert texts((await thread.messages.list()).messages) == [("half whole", "completed")]


async def test_a_fork_is_of_one_moment_and_does_not_wake_its_original(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, may_read = asyncio.Event(), asyncio.Event()
    read = ThreadView.records

    async def held(view: ThreadView, *, after: tuple[str, str] = ("", ""), **options: Any) -> list[Record]:
        if after != ("", ""):
            reading.set()
            await may_read.wait()
        return await read(view, after=after, **options)

    async with open_app(store) as app:
        await fill(app)
        values = app.thread(Desk, "one").part(Desk.values)
        await asyncio.gather(*(values.set(f"{number:05}", number) for number in range(1500)))
        before = await shown(app, "one")
    async with open_app(store) as app:
        monkeypatch.setattr(ThreadView, "records", held)
        forking = asyncio.create_task(app.fork_thread(Desk, "one", "copy"))
        await asyncio.wait_for(reading.wait(), PATIENCE)
        assert Desk.starts == []
        with pytest.raises(Unavailable, match="forked: try again"):
            await app.thread(Desk, "copy").state()
        assert [row.key.name async for row in app.threads()] == ["one"]
        # The original goes on.
        one = app.thread(Desk, "one")
        await one.set_state({"rung": 8})
        await one.part(Desk.values).clear()
        await one.part(Desk.messages).inject("user", "later")
        may_read.set()
        await asyncio.wait_for(forking, PATIENCE)
        assert Desk.starts == ["one"]
        assert await shown(app, "copy") == before


async def test_a_fork_has_the_changes_that_were_made_before_it_and_are_not_durable_yet(store: Store) -> None:
    submit, release = store.submit, asyncio.Event()

    async def hold(write: Write) -> int:
        await release.wait()
        return await submit(write)

    async with open_app(store) as app:
        await fill(app)
        store.submit = lambda write: asyncio.ensure_future(hold(write))  # type: ignore[method-assign]
        changing = asyncio.create_task(app.thread(Desk, "one").call(Desk.copy, "copy"))
        await asyncio.wait([changing], timeout=0.2)
        release.set()
        await changing
        assert await app.thread(Desk, "copy").state() == {"rung": 99}


async def test_a_fork_may_have_an_earlier_state(store: Store) -> None:
    async with open_app(store) as app:
        one = app.thread(Desk, "one")
        for number in range(1, 5):
            await one.set_state({"rung": number})
            await one.part(Desk.values).set("n", number)
        for at in (0, 2, 4):
            copy = await app.fork_thread(Desk, "one", f"at {at}", at=at)
            assert await copy.state() == {"rung": at}
            assert await copy.part(Desk.values).get("n") == 4
        for at in (-1, 5, 10**9):
            with pytest.raises(NotFound, match=f"version {at} of desk/one does not exist"):
                await app.fork_thread(Desk, "one", "other", at=at)
        bare = app.thread(Bare, "bare")
        await bare.part(Bare.values).set("a", 1)
        assert await (await app.fork_thread(Bare, "bare", "copy", at=0)).part(Bare.values).get("a") == 1
        assert await app.thread(Bare, "copy").state() is None


async def test_the_state_of_a_fork_is_migrated_and_one_of_before_a_migration_is_refused(store: Store) -> None:
    async with open_app(store) as app:
        await app.thread(Short, "one").set_state(1)
        await app.thread(Short, "one").set_state(2)
    async with open_app(store, short=ShortLater) as app:
        assert await (await app.fork_thread(ShortLater, "one", "copy")).state() == "was 2"
        assert await (await app.fork_thread(ShortLater, "one", "at 1", at=1)).state() == "was 1"
        assert await app.thread(ShortLater, "one").state() == "was 2"  # A use migrates it.
        with pytest.raises(InvalidState, match="version 1 is from before a migration"):
            await app.fork_thread(ShortLater, "one", "other", at=1)
        assert await store.find(ThreadKey("short", "other")) is None


async def test_only_a_stored_thread_is_forked_and_only_to_a_name_that_is_free(store: Store) -> None:
    async with open_app(store) as app:
        with pytest.raises(NotFound, match="there is no thread desk/one"):
            await app.fork_thread(Desk, "one", "copy")
        with pytest.raises(NotFound, match="nothing"):
            await app.fork_thread("nothing", "one", "copy")
        await fill(app)
        for name in ("one", "other"):
            await app.thread(Desk, name).set_state({"rung": 1})
            with pytest.raises(Conflict, match=f"there is a thread desk/{name} already: fork to another name"):
                await app.fork_thread(Desk, "one", name)
            assert await app.thread(Desk, name).state() == {"rung": 1}
        found = await asyncio.gather(*(app.fork_thread(Desk, "one", "copy") for _ in range(5)), return_exceptions=True)
        assert sum(isinstance(each, Conflict) for each in found) == 4
        with pytest.raises(NotFound, match="name must have"):
            await app.fork_thread(Desk, "one", "")


async def test_a_fork_that_fails_or_is_cancelled_leaves_nothing(store: Store) -> None:
    async with open_app(store) as app:
        await fill(app)
        submit = store.submit
        for is_cancelled in (True, False):
            reached, release = asyncio.Event(), asyncio.Event()

            async def hold(write: Write, reached: asyncio.Event = reached, release: asyncio.Event = release) -> int:
                reached.set()
                await release.wait()
                raise StoreError("the disk is full")

            def refuse_last(write: Write, hold: Any = hold) -> asyncio.Future[int]:
                is_last = write.key.name == "copy" and write.due == 0 and not write.is_deletion
                return asyncio.ensure_future(hold(write)) if is_last else submit(write)

            store.submit = refuse_last  # type: ignore[method-assign]
            forking = asyncio.create_task(app.fork_thread(Desk, "one", "copy"))
            await asyncio.wait_for(reached.wait(), PATIENCE)
            if is_cancelled:
                forking.cancel()
            release.set()
            with pytest.raises(asyncio.CancelledError if is_cancelled else StoreError):
                await forking
            store.submit = submit  # type: ignore[method-assign]
            async with asyncio.timeout(PATIENCE):
                while await store.find(ThreadKey("desk", "copy")) is not None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert await (await app.fork_thread(Desk, "one", "copy")).state() == {"rung": 5}


async def test_a_fork_of_a_terminated_thread_takes_work(store: Store) -> None:
    async with open_app(store) as app:
        await fill(app)
        await app.thread(Desk, "one").terminate()
        copy = await app.fork_thread(Desk, "one", "copy")
        await copy.part(Desk.messages).inject("user", "more")
        await copy.part(Desk.schedule).at(datetime.now(UTC) + timedelta(days=9), "ring")
        assert len((await copy.part(Desk.messages).list()).messages) == 3


async def test_a_fork_is_made_now_and_for_the_user_of_its_name_or_of_its_original(store: Store) -> None:
    async with open_app(store) as app:
        await app.thread(Bare, "ada:one").part(Bare.values).set("a", 1)
        began = read_wall_clock()
        await app.fork_thread(Bare, "ada:one", "copy")
        await app.fork_thread(Bare, "ada:one", "bob:one")
        rows = {row.key.name: row async for row in app.threads()}
        assert {name: row.user for name, row in rows.items()} == {"ada:one": "ada", "copy": "ada", "bob:one": "bob"}
        assert rows["ada:one"].created_at < began <= rows["copy"].created_at <= read_wall_clock()
