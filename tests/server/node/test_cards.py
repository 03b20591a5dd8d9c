"""The cards of threads: when they are made, with what they are stored, and what stays if they cannot be made."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from tests.cases import each_case
from tests.server.fakes import TroubledStore

from plait import Connection, MemoryStore, Plait, SqliteStore, Store, StoreError, Thread, ThreadKey, Values, rpc
from plait.limits import Limits
from plait.state.card import CARD
from plait.store.protocol import Write

PATIENCE = 10.0
INITIAL = {"title": "new", "players": [], "note": ""}


class Summary(msgspec.Struct, frozen=True):
    """A card with a type."""

    title: str
    players: tuple[str, ...] = ()


class Table(Thread[dict[str, Any]]):
    """A thread whose card has a part of its state."""

    initial_state: Any = INITIAL
    values = Values()
    errors: ClassVar[list[BaseException]] = []
    told: asyncio.Event

    def card(self, state: Any) -> object:
        if state["title"] == "breaks":
            raise RuntimeError("no card for this")
        if state["title"] == "changes":
            self.set_state({**state, "title": "changed by a card"})
        return Summary(state["title"], tuple(state["players"])) if state["title"] else None

    def on_error(self, error: BaseException, connection: Connection | None) -> None:
        self.errors.append(error)
        self.told.set()


class Plain(Thread[dict[str, Any]]):
    """The same kind without cards."""

    kind = "table"
    initial_state: Any = INITIAL
    values = Values()


@asynccontextmanager
async def running(
    *, store: Store | None = None, cls: type[Thread[Any]] = Table, **options: Any
) -> AsyncIterator[Plait]:
    """Run an app with tables."""
    Table.errors.clear()
    Table.told = asyncio.Event()
    async with Plait(cls, store=store or TroubledStore(), **options) as app:
        yield app


async def change(app: Plait, cls: type[Thread[Any]] = Table, **members: Any) -> None:
    """Change members of the state of the table `one`."""
    await app.thread(cls, "one").set_state(lambda state: {**state, **members})


async def card_of(app: Plait, name: str = "one") -> Any:
    """Return the stored card of a table; None without one."""
    data = await app._store.record(ThreadKey("table", name), *CARD)
    return None if data is None else msgspec.json.decode(data)


def cards_in(write: Write) -> list[bytes | None]:
    """Return the cards of a write."""
    return [record.value for record in write.records if (record.part, record.key) == CARD]


async def test_a_card_is_stored_by_the_write_of_the_change_that_makes_another_one() -> None:
    store = TroubledStore()
    async with running(store=store) as app:
        await change(app, title="chess")
        await change(app, note="not on the card")
        await change(app, players=["ada"])
        assert [len(write.changes) for write in store.submitted] == [1, 1, 1]
        assert list(map(cards_in, store.submitted)) == [
            [b'{"title":"chess","players":[]}'],
            [],
            [b'{"title":"chess","players":["ada"]}'],
        ]
        assert await card_of(app) == {"title": "chess", "players": ["ada"]}


async def test_a_new_thread_has_a_card_even_if_its_first_write_is_no_change() -> None:
    async with running() as app:
        await app.thread(Table, "one").part(Table.values).set("a", 1)
        assert await card_of(app) == {"title": "new", "players": []}


async def test_no_card_is_stored_when_it_is_none_and_a_stored_one_is_removed() -> None:
    store = TroubledStore()
    async with running(store=store) as app:
        await change(app, title="")
        assert cards_in(store.submitted[-1]) == []
        await change(app, title="chess")
        await change(app, title="")
        assert await card_of(app) is None


async def test_a_thread_that_wakes_knows_its_card() -> None:
    store = TroubledStore()
    async with running(store=store) as app:
        await change(app, title="chess")
    async with running(store=store) as app:
        await change(app, note="again")
        assert cards_in(store.submitted[-1]) == []
        assert await card_of(app) == {"title": "chess", "players": []}


async def test_the_next_write_adds_or_removes_the_card_of_a_class_that_has_got_or_lost_it() -> None:
    store = TroubledStore()
    async with running(store=store, cls=Plain) as app:
        await change(app, Plain, title="chess")
        assert await card_of(app) is None
    async with running(store=store) as app:
        await app.thread(Table, "one").state()
        assert await card_of(app) is None
        await app.thread(Table, "one").part(Table.values).set("a", 1)
        assert await card_of(app) == {"title": "chess", "players": []}
    async with running(store=store, cls=Plain) as app:
        await change(app, Plain, note="without")
        assert await card_of(app) is None


@each_case(
    ("title", "says"),
    [
        ("breaks", "no card for this"),
        ("changes", "the state cannot be changed while another change is being made"),
        ("x" * 5_000, "the card has 5025 bytes, the limit is 4096"),
    ],
)
async def test_a_change_is_made_without_another_card_if_that_fails_and_on_error_is_told(title: str, says: str) -> None:
    async with running() as app:
        table = app.thread(Table, "one")
        await change(app, title="chess")
        await change(app, title=title)
        assert (await table.state())["title"] == title
        assert await card_of(app) == {"title": "chess", "players": []}
        async with asyncio.timeout(PATIENCE):
            await Table.told.wait()
        assert [str(error)[: len(says)] for error in Table.errors] == [says]
        await change(app, title="go")
        assert await card_of(app) == {"title": "go", "players": []}
        assert len(Table.errors) == 1


async def test_a_card_has_the_bytes_that_the_limit_allows() -> None:
    async with running(limits=Limits(card=20_000)) as app:
        await change(app, title="x" * 5_000)
        assert len((await card_of(app))["title"]) == 5_000


async def test_a_card_whose_write_has_failed_is_stored_with_the_next_one() -> None:
    store = TroubledStore()
    async with running(store=store) as app:
        table = app.thread(Table, "one")
        await change(app, title="chess")
        store.fail_next()
        with pytest.raises(StoreError):
            await change(app, title="go")
        await change(app, title="go")
        assert await card_of(app) == {"title": "go", "players": []}
        store.fail_next()
        with pytest.raises(StoreError):
            await change(app, title="chess")
        await table.part(Table.values).set("a", 1)
        assert await card_of(app) == {"title": "go", "players": []}


async def test_changes_in_one_breath_leave_the_card_of_the_last_one(tmp_path: Path) -> None:
    async with running(store=SqliteStore(tmp_path / "a.db")) as app:
        table = app.thread(Table, "one")
        await asyncio.gather(*(change(app, title=f"t{number}") for number in range(30)))
        assert (await card_of(app))["title"] == (await table.state())["title"]


async def test_a_fork_and_an_import_have_the_card_of_their_state() -> None:
    async with running(store=MemoryStore()) as app:
        for title in ("chess", "go"):
            await change(app, title=title)
        await app.fork_thread(Table, "one", "now")
        await app.fork_thread(Table, "one", "earlier", at=1)
        data = b"".join([lines async for lines in app.export_thread(Table, "one")])
        await app.import_thread(data, name="imported")
        assert [(await card_of(app, name))["title"] for name in ("now", "earlier", "imported")] == ["go", "chess", "go"]


async def test_an_import_into_a_class_without_cards_has_none() -> None:
    async with running(store=MemoryStore()) as app:
        await change(app, title="chess")
        data = b"".join([lines async for lines in app.export_thread(Table, "one")])
    async with running(store=MemoryStore(), cls=Plain) as app:
        await app.import_thread(data)
        assert await card_of(app) is None


async def test_a_terminated_thread_keeps_its_card() -> None:
    class Ending(Table):
        kind = "table"

        @rpc
        async def end(self) -> None:
            await self.terminate()

    store = TroubledStore()
    async with running(store=store, cls=Ending) as app:
        await change(app, Ending, title="chess")
        await app.thread(Ending, "one").call("end")
    async with running(store=store, cls=Ending) as app:
        await change(app, Ending, note="n")
        assert await card_of(app) == {"title": "chess", "players": []}
