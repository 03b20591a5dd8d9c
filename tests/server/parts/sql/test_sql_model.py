"""Random blocks, statements, refused writes and restarts: the tables always have what a dict has."""

import random
from pathlib import Path
from typing import Any

import pytest
from tests.schedules import play_seeds
from tests.server.parts.workshop import FlakyStore, Workshop, make_store, open_workshop

from plait import Sql, SqlError, StoreError, Thread

Rows = dict[int, str]


class Undone(Exception):
    """Ends a block."""


class Ledger(Thread[Any]):
    """Has the same texts in a table with an index and in one for searches, and their number in its state."""

    initial_state = 0
    sql = Sql(
        migrations=[
            "create table rows (n integer primary key, text text unique)",
            "create virtual table words using fts5(text)",
        ]
    )

    def put(self, n: int, text: str) -> None:
        """Set a row, or remove it if the text is empty."""
        if text:
            self.sql("insert into rows values (?, ?) on conflict (n) do update set text = excluded.text", n, text)
        else:
            self.sql("delete from rows where n = ?", n)
        self.sql("delete from words where rowid = ?", n)
        if text:
            self.sql("insert into words (rowid, text) values (?, ?)", n, text)


class Player:
    """Does the same to a thread and to a dict."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._texts = 0
        self.rows: Rows = {}

    def step(self, ledger: Ledger) -> None:
        """Do one block, which may be undone."""
        before = dict(self.rows)
        try:
            with ledger.transaction():
                self._fill(ledger, depth=0)
                ledger.set_state(len(self.rows))
        except Undone:
            self.rows = before

    def _fill(self, ledger: Ledger, depth: int) -> None:
        for _ in range(self._chance.randrange(1, 5)):
            match self._chance.choice(("put", "put", "put", "fail", "inner", "read")):
                case "put":
                    self._put(ledger)
                case "fail" if self.rows:
                    n, text = self._chance.choice(sorted(self.rows.items()))
                    with pytest.raises(SqlError):
                        ledger.sql("insert or fail into rows values (?, 'a'), (?, ?)", n + 1000, n + 2000, text)
                case "inner" if depth < 3:
                    before = dict(self.rows)
                    try:
                        with ledger.transaction():
                            self._fill(ledger, depth + 1)
                    except Undone:
                        self.rows = before
                case _:
                    check(ledger, self.rows)
        if self._chance.random() < 0.3:
            raise Undone

    def _put(self, ledger: Ledger) -> None:
        n = self._chance.randrange(20)
        self._texts += 1
        text = "" if self._chance.random() < 0.2 else f"text{self._texts} " + "x" * self._chance.choice((0, 10, 5_000))
        ledger.put(n, text)
        if text:
            self.rows[n] = text
        else:
            self.rows.pop(n, None)


def check(ledger: Ledger, rows: Rows) -> None:
    """Compare the tables with a dict."""
    found = ledger.sql("select n, text from rows order by n").value
    assert [(row["n"], row["text"]) for row in found] == sorted(rows.items())
    words = ledger.sql("select rowid as n from words where words match 'text*' order by n").value
    assert [row["n"] for row in words] == sorted(rows)


async def play(works: Workshop, player: Player, chance: random.Random) -> None:
    """Do some steps; the store refuses the last ones in some rounds."""
    ledger = await works.thread(Ledger)
    for _ in range(6):
        durable, refuses = dict(player.rows), False
        for _ in range(chance.randrange(1, 4)):
            if not refuses and chance.random() < 0.2:
                await ledger._actor.state.wait_until_durable()  # A store refuses no write before those before it.
                durable, refuses = dict(player.rows), True
                works.store.refuses = lambda _: True
            player.step(ledger)
            check(ledger, player.rows)
        pending = ledger._actor.state.find_pending()
        try:
            if pending is not None:
                await pending
        except StoreError:
            assert refuses
            player.rows = durable
        works.store.refuses = lambda _: False
        await works.handle(Ledger).sql.read("select 1 as a")
        check(ledger, player.rows)
        assert ledger.state == len(player.rows) or not ledger.version
    assert await ledger.sql("pragma integrity_check") == [{"integrity_check": "ok"}]


def make(folder: Path, chance: random.Random) -> FlakyStore:
    """Return a store in a new folder."""
    folder.mkdir()
    return make_store(chance.choice(("memory", "sqlite")), folder)


@play_seeds(5)
async def test_the_tables_have_what_a_dict_has(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    player = Player(chance)
    async with make(tmp_path / f"{seed}", chance) as store:
        for _ in range(4):
            async with open_workshop(store, Ledger) as works:
                await play(works, player, chance)
