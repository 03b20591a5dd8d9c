"""States that were stored when their class had another type."""

import asyncio
import logging
import math
import re
from collections.abc import Awaitable
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import msgspec
import pytest
from tests.cases import each_case
from tests.server.fakes import TroubledStore
from tests.server.owning import submit
from tests.server.rooms import open_house
from tests.server.session.guests import opening, put

from plait.actor.thread import Thread
from plait.errors import CorruptThread, InvalidState, MigrationFailed, NewerState, PlaitError, StoreError
from plait.limits import DEFAULT_LIMITS
from plait.node.node import Node
from plait.state.migrations import migrate, migrate_state, store_migrated
from plait.store.protocol import StoredThread, Write
from plait.store.sqlite.store import SqliteStore
from plait.store.thread_rows import Snapshot, ThreadKey
from plait_schemas.patch import Op

PATIENCE = 10.0
KEY = ThreadKey("room", "one")


class First(Thread[dict[str, Any]]):
    kind = "room"
    initial_state: Any = staticmethod(lambda: {"points": 1})


class Second(Thread[dict[str, Any]]):
    kind = "room"
    state_version = 2
    initial_state: Any = staticmethod(lambda: {"score": 0})

    @staticmethod
    @migrate(from_=1)
    def rename(state: Any) -> Any:
        state["score"] = state.pop("points")
        return state


class Game(msgspec.Struct, frozen=True):
    score: float
    title: str = "untitled"


class Fourth(Thread[Game]):
    kind = "room"
    state_version = 4
    initial_state = Game(0)
    lines: ClassVar[list[Any]] = []

    @staticmethod
    @migrate(from_=1)
    def rename(state: Any) -> Any:
        return {"score": state["points"]}

    @staticmethod
    @migrate(from_=2)
    def double(state: Any) -> Any:
        state["score"] *= 2
        return state

    @staticmethod
    @migrate(from_=3)
    def halve(state: Any) -> Any:
        return {**state, "score": state["score"] / 4}

    def on_start(self) -> None:
        self.lines.append(self.state)


async def outcome(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def written(store: TroubledStore, cls: type[Thread[Any]] = First, points: int = 5) -> None:
    """Count in a thread with a class of an earlier version, and put the thread to sleep."""
    async with open_house(cls, store=store) as house:
        for n in range(2, points + 1):
            await outcome(house.handle(cls).set_state({"points": n}))


class Kept(TroubledStore):
    """A store that is open already when a house enters it, and stays so when one leaves it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.resume()


async def kept_store() -> Kept:
    store = Kept()
    await store.inner.__aenter__()
    return store


async def dump(store: TroubledStore) -> Any:
    """Return all that is stored of the thread."""
    return await store.inner.load(KEY), await store.inner.changes(KEY, after=0)


# Waking


async def test_a_thread_that_wakes_has_the_state_of_the_type_that_its_class_has() -> None:
    store = await kept_store()
    await written(store)
    Fourth.lines = []
    async with open_house(Fourth, store=store) as house:
        assert await outcome(house.handle(Fourth).state()) == Game(2.5)
        assert Fourth.lines == [Game(2.5)]


async def test_a_migration_is_a_durable_change_that_everybody_can_see() -> None:
    store = await kept_store()
    await written(store)
    async with open_house(Second, store=store) as house:
        thread: Any = (await house.actor(Second)).thread
        assert (thread.version, thread.state) == (5, {"score": 5})
        stored = await store.load(KEY)
        assert stored is not None
        assert (stored.version, stored.state_version) == (5, 2)
        changes = await thread.history()
        assert [(each.version, each.source) for each in changes] == [
            *((n, "server") for n in range(1, 5)),
            (5, "migration"),
        ]
        assert changes[-1].ops == [Op("remove", "/points"), Op("add", "/score", 5)]
        assert await thread.at(4) == {"points": 5}
        assert await outcome(thread.set_state({"score": 6})) == 6


async def test_a_thread_is_migrated_once() -> None:
    store = await kept_store()
    await written(store)
    for _ in range(3):
        async with open_house(Fourth, store=store) as house:
            assert await outcome(house.handle(Fourth).state()) == Game(2.5)
    stored, changes = await dump(store)
    assert (stored.version, stored.state_version) == (5, 4)
    assert [row.source for row in changes].count("migration") == 1


async def test_versions_are_brought_up_step_by_step_from_whichever_is_stored() -> None:
    store = await kept_store()
    await written(store)
    async with open_house(Second, store=store) as house:
        await outcome(house.handle(Second).set_state({"score": 10}))
    async with open_house(Fourth, store=store) as house:
        assert await outcome(house.handle(Fourth).state()) == Game(5)
    _, changes = await dump(store)
    assert [row.source for row in changes] == ["server"] * 4 + ["migration", "server", "migration"]


async def test_a_fresh_thread_begins_with_the_version_of_its_class() -> None:
    store = await kept_store()
    async with open_house(Fourth, store=store) as house:
        assert await outcome(house.handle(Fourth).state()) == Game(0)
        await outcome((await house.actor(Fourth)).state.store_thread())
    stored, changes = await dump(store)
    assert (stored.version, stored.state_version, changes) == (0, 4, [])


async def test_a_thread_that_begins_with_a_change_has_the_version_of_its_class() -> None:
    class Late(Thread[Any]):
        kind = "room"
        state_version = 3

    store = await kept_store()
    async with open_house(Late, store=store) as house:
        assert await outcome(house.handle(Late).set_state(5)) == 1
    stored, _ = await dump(store)
    assert stored.state_version == 3
    async with open_house(Late, store=store) as house:
        assert await outcome(house.handle(Late).state()) == 5


async def test_a_thread_that_was_never_stored_is_not_migrated() -> None:
    async with open_house(Second) as house:
        assert await outcome(house.handle(Second).state()) == {"score": 0}
        assert house.store.submitted == []


async def test_a_migration_that_changes_nothing_is_still_taken_note_of() -> None:
    class Same(Second):
        kind = "room"

        @staticmethod
        @migrate(from_=1)
        def rename(state: Any) -> Any:
            return state

    store = await kept_store()
    await written(store)
    for _ in range(2):
        async with open_house(Same, store=store) as house:
            assert await outcome(house.handle(Same).state()) == {"points": 5}
    stored, changes = await dump(store)
    assert (stored.version, stored.state_version) == (5, 2)
    assert [row.source for row in changes][4:] == ["migration"]


async def test_several_who_wake_a_thread_at_once_migrate_it_once() -> None:
    store = await kept_store()
    await written(store)
    async with open_house(Second, store=store) as house:
        store.is_held = True
        calls = [asyncio.create_task(house.handle(Second).state()) for _ in range(5)]
        while not store.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not any(call.done() for call in calls)
        store.resume()
        assert await outcome(asyncio.gather(*calls)) == [{"score": 5}] * 5
    assert (await dump(store))[0].version == 5


async def test_what_was_migrated_can_be_undone_up_to_there_and_reverted_to() -> None:
    store = await kept_store()
    await written(store)
    async with open_house(Second, store=store) as house:
        thread: Any = (await house.actor(Second)).thread
        await outcome(thread.set_state({"score": 6}))
        assert await outcome(thread.undo("server")) == 7
        assert thread.state == {"score": 5}
        assert await outcome(thread.revert(6)) == 8
        assert thread.state == {"score": 6}


async def test_what_was_before_a_migration_is_not_reverted_to() -> None:
    store = await kept_store()
    await written(store)
    async with open_house(Second, store=store) as house:
        thread: Any = (await house.actor(Second)).thread
        with pytest.raises(InvalidState, match="version 3 is from before a migration"):
            await outcome(thread.revert(3))
        assert thread.state == {"score": 5}
        # Nor when that is more changes ago than are read in one go.
        for n in range(600):
            thread.set_state({"score": n})
        await outcome(thread.set_state({"score": 5}))
        with pytest.raises(InvalidState, match="version 3 is from before a migration"):
            await outcome(thread.revert(3))


async def test_what_was_before_a_migration_is_no_state_of_the_type_that_the_class_has() -> None:
    class Titled(Thread[Game]):
        kind = "room"
        state_version = 2
        initial_state = Game(0)

        @staticmethod
        @migrate(from_=1)
        def entitle(state: Any) -> Any:
            return {"score": state["score"], "title": "from before"}

    class Untitled(First):
        kind = "room"
        initial_state: Any = staticmethod(lambda: {"score": 0})

    store = await kept_store()
    async with open_house(Untitled, store=store) as house:
        await outcome(house.handle(Untitled).set_state({"score": 1}))
    async with open_house(Titled, store=store) as house:
        thread: Any = (await house.actor(Titled)).thread
        await outcome(thread.set_state(Game(2, "titled")))
        for version in (0, 1):
            with pytest.raises(InvalidState, match=f"version {version} is from before a migration"):
                await thread.at(version)
        assert [await thread.at(version) for version in (2, 3)] == [Game(1, "from before"), Game(2, "titled")]


# What cannot be migrated


async def refused(
    store: TroubledStore,
    cls: type[Thread[Any]],
    error: type[PlaitError],
    match: str,
    caplog: pytest.LogCaptureFixture,
    *,
    says: str = "",
) -> None:
    """Find that a thread cannot be woken, each time, which leaves it as it was.

    Callers get the error `match`, and the log says more: `says`.
    """
    before = await dump(store)
    async with open_house(cls, store=store) as house:
        for _ in range(2):
            caplog.clear()
            with pytest.raises(error, match=match) as raised:
                await outcome(house.handle(cls).state())
            (record,) = [record for record in caplog.records if record.name == "plait.node"]
            assert record.levelno == logging.ERROR
            assert re.search(says or match, record.getMessage())
            assert not says or not re.search(says, str(raised.value))
        assert house.node.actors == []
    assert await dump(store) == before


class Failing(Second):
    kind = "room"
    state_version = 3

    @staticmethod
    @migrate(from_=2)
    def fail(state: Any) -> Any:
        state["score"] = state["missing"]
        return state


class Missing(Second):
    kind = "room"
    state_version = 3


class Wrong(Thread[Game]):
    kind = "room"
    state_version = 2

    @staticmethod
    @migrate(from_=1)
    def wrong(state: Any) -> Any:
        return {"score": "many"}


class Strict(msgspec.Struct, frozen=True):
    score: float

    def __post_init__(self) -> None:
        raise KeyError(self.score)


class Checked(Thread[Strict]):
    kind = "room"
    state_version = 2

    @staticmethod
    @migrate(from_=1)
    def rename(state: Any) -> Any:
        return {"score": state["points"]}


class NotJson(Thread[Any]):
    kind = "room"
    state_version = 2

    @staticmethod
    @migrate(from_=1)
    def wrong(state: Any) -> Any:
        return object()


class NotFinite(Thread[Any]):
    kind = "room"
    state_version = 2

    @staticmethod
    @migrate(from_=1)
    def wrong(state: Any) -> Any:
        return {"scores": [state["points"] * 1e308 * 10]}


class Undefined(msgspec.Struct, frozen=True):
    score: float = math.nan


class LeftUndefined(Thread[Undefined]):
    kind = "room"
    state_version = 2

    @staticmethod
    @migrate(from_=1)
    def leave(state: Any) -> Any:
        return {}


@pytest.mark.parametrize(
    ("cls", "says"),
    [
        (Failing, r": @migrate\(from_=2\) raised KeyError: 'missing'$"),
        (Missing, r": Missing has no @migrate\(from_=2\)$"),
        (Wrong, r": the result of the migrations is not a state of Wrong: Expected `float`, got `str`, at /score$"),
        (Checked, r": the result of the migrations is not a state of Checked: KeyError: 5\.0$"),
        (NotJson, r": the result of the migrations is not JSON: Encoding objects of type object is unsupported"),
        (NotFinite, r": the result of the migrations is not JSON: it has .* infinite or not a number, at /scores/0$"),
        (LeftUndefined, r": the result of the migrations is not JSON: it has .* infinite or not a number, at /score$"),
    ],
)
async def test_a_migration_that_fails_leaves_the_thread_as_it_was_and_only_the_log_says_why(
    cls: type[Thread[Any]], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = await kept_store()
    await written(store)
    match = f"^room/one could not be migrated to state_version {cls.state_version}$"
    await refused(store, cls, MigrationFailed, match, caplog, says=says)
    async with open_house(Second, store=store) as house:
        assert await outcome(house.handle(Second).state()) == {"score": 5}


async def test_a_state_of_newer_code_is_refused_and_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    store = await kept_store()
    await written(store)
    async with open_house(Fourth, store=store) as house:
        await outcome(house.handle(Fourth).state())
    await refused(store, Second, NewerState, "state_version 4, this code has 2", caplog)
    await refused(store, First, NewerState, "state_version 4, this code has 1", caplog)
    async with open_house(Fourth, store=store) as house:
        assert await outcome(house.handle(Fourth).state()) == Game(2.5)


async def test_a_migration_that_could_not_be_stored_is_tried_again() -> None:
    store = await kept_store()
    await written(store)
    before = await dump(store)
    async with open_house(Second, store=store) as house:
        store.fail_next()
        with pytest.raises(StoreError, match="full"):
            await outcome(house.handle(Second).state())
        assert await dump(store) == before
        assert await outcome(house.handle(Second).state()) == {"score": 5}


@pytest.mark.parametrize("snapshot", [b"{", b'{"a":', b"\xff"])
async def test_what_cannot_be_read_is_corrupt_and_not_migrated(
    snapshot: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store = await kept_store()
    await submit(store.inner, Write(KEY, "epoch", None, 0, snapshots=(Snapshot(0, snapshot),)))
    await refused(store, Second, CorruptThread, "room/one", caplog)


async def test_what_a_migration_raised_is_in_the_log_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    store = await kept_store()
    await written(store)
    async with open_house(Failing, store=store) as house:
        with pytest.raises(MigrationFailed):
            await outcome(house.handle(Failing).state())
    assert 'state["score"] = state["missing"]' in caplog.text


@pytest.mark.parametrize(
    ("type_", "says"), [(Game, "Expected `float`, got `str`, at /score"), (Strict, r"KeyError: 1\.0")]
)
async def test_a_state_that_is_none_of_its_type_is_left_as_it_is_and_only_the_log_says_why(
    type_: Any, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Room(Thread[type_]):  # type: ignore[valid-type]
        pass

    store = await kept_store()
    snapshot = b'{"score":"many"}' if type_ is Game else b'{"score":1}'
    await submit(store.inner, Write(KEY, "epoch", None, 0, snapshots=(Snapshot(0, snapshot),)))
    match = "^room/one: the stored state does not fit its class's type$"
    await refused(store, Room, CorruptThread, match, caplog, says=says)


async def test_a_migration_gets_a_copy_that_it_may_change() -> None:
    stored = StoredThread("epoch", 0, b'{"points":3}', ())
    store = await kept_store()
    await submit(store.inner, Write(KEY, "epoch", None, 0, snapshots=(Snapshot(0, b'{"points":3}'),)))
    fence = await store.claim(KEY)
    data = migrate_state(KEY, Second._kind, stored)
    assert data is not None
    found = await store_migrated(store, KEY, stored, data, state_version=2, fence=fence)
    assert (found.version, found.snapshot, found.state_version) == (1, b'{"score":3}', 2)
    assert stored.snapshot == b'{"points":3}'
    assert migrate_state(KEY, Second._kind, found) is None


# In a file


async def test_what_was_migrated_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    for cls, state in ((First, {"points": 1}), (Second, {"score": 1}), (Fourth, Game(0.5)), (Fourth, Game(0.5))):
        async with SqliteStore(path) as store:
            node = Node([cls._kind], store, DEFAULT_LIMITS)
            node.start()
            assert await outcome(node.handle(cls, "one").state()) == state
            await (await node.actor(KEY)).state.store_thread()
            await node.stop(5)
    async with SqliteStore(path) as store:
        stored = await store.load(KEY)
        assert stored is not None
        assert (stored.version, stored.state_version) == (2, 4)
        assert [row.source for row in await store.changes(KEY, after=0)] == ["migration", "migration"]
        versions = [await store.load(KEY, version=version) for version in range(3)]
        assert [each.snapshot for each in versions if each is not None] == [
            b'{"points":1}',
            b'{"score":1}',
            b'{"score":0.5,"title":"untitled"}',
        ]


# Types that have changed without a migration


class Old(msgspec.Struct, frozen=True):
    score: int = 0
    gone: str = "old"


class New(msgspec.Struct, frozen=True):
    score: int = 0
    title: str = ""
    tags: tuple[str, ...] = ()


class OldRoom(Thread[Old]):
    kind = "room"
    initial_state = Old()


class NewRoom(Thread[New]):
    kind = "room"
    initial_state = New()


@each_case("changes", [0, 1])
async def test_a_field_with_a_default_may_be_added_to_a_type_and_then_be_changed(changes: int) -> None:
    store = await kept_store()
    async with open_house(OldRoom, store=store) as house:
        await outcome(house.handle(OldRoom).state())
        for n in range(changes):
            await outcome(house.handle(OldRoom).set_state(Old(n + 1)))
    for round in range(2):
        async with open_house(NewRoom, store=store) as house:
            thread: Any = (await house.actor(NewRoom)).thread
            client = await house.join(NewRoom, "a")
            assert thread.state == (New(changes) if round == 0 else New(changes, "titled", ("a", "b")))
            assert client.transport.sent[1]["state"] == msgspec.to_builtins(thread.state) | {
                "tags": list(thread.state.tags)
            }
            if round == 0:
                await outcome(thread.update("/title", "titled"))
                async with thread.edit() as draft:
                    draft.tags.append("a")
                await outcome(thread.set_state(msgspec.structs.replace(thread.state, tags=("a", "b"))))
                assert await thread.at(changes) == New(changes)
                assert await thread.at(changes + 1) == New(changes, "titled")
            await outcome(thread.undo("server"))
            assert thread.state == New(changes, "titled", ("a",))
            await outcome(thread.set_state(New(changes, "titled", ("a", "b"))))


@each_case("have", [0, 1])
async def test_who_comes_back_is_told_of_a_field_that_the_type_has_gained_and_nothing_is_written_for_it(
    have: int,
) -> None:
    store = await kept_store()
    async with open_house(OldRoom, store=store) as house:
        await outcome(house.handle(OldRoom).set_state(Old(1)))
    before = await dump(store)
    epoch = before[0].epoch
    for cls, state in ((NewRoom, {"score": 1, "title": "", "tags": []}), (OldRoom, None)):
        async with open_house(cls, store=store) as house:
            _, frame = await opening(await house.actor(cls), "a", have=(epoch, have))
            assert frame["version"] == 1
            if state is not None:
                assert frame["state"] == state
            else:
                assert "state" not in frame
        assert await dump(store) == before


async def test_who_comes_back_after_the_first_change_of_a_type_that_has_grown_is_sent_the_changes() -> None:
    store = await kept_store()
    async with open_house(OldRoom, store=store) as house:
        await outcome(house.handle(OldRoom).set_state(Old(1)))
        epoch = (await house.actor(OldRoom)).state.history.epoch
    async with open_house(NewRoom, store=store) as house:
        assert await outcome(house.handle(NewRoom).set_state(New(1, "titled"))) == 2
        _, frame = await opening(await house.actor(NewRoom), "a", have=(epoch, 1))
        assert frame["ops"] == [put("", {"score": 1, "title": "titled", "tags": []})]


async def test_fields_in_another_order_are_the_same_state() -> None:
    class Turned(msgspec.Struct, frozen=True):
        gone: str = "old"
        score: int = 0

    class TurnedRoom(Thread[Turned]):
        kind = "room"

    store = await kept_store()
    async with open_house(OldRoom, store=store) as house:
        await outcome(house.handle(OldRoom).set_state(Old(1)))
        epoch = (await house.actor(OldRoom)).state.history.epoch
    async with open_house(TurnedRoom, store=store) as house:
        actor = await house.actor(TurnedRoom)
        _, frame = await opening(actor, "a", have=(epoch, 1))
        assert not frame.keys() & {"state", "ops"}
        await outcome(house.handle(TurnedRoom).set_state(Turned(score=2)))
        _, frame = await opening(actor, "b", have=(epoch, 1))
        assert frame["ops"] == [put("/score", 2)]
