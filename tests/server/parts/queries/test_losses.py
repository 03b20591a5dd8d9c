"""Results while writes of the store fail: none has a lost row, comes before its state, or has half of a transaction."""

import asyncio
import random

from tests.schedules import play_seeds
from tests.server.parts.queries.readers import Desk, Following
from tests.server.rooms import House, open_house
from tests.server.session.guests import PATIENCE, Guest, joined, until

from plait.actor.actor import Actor


class Schedule:
    """One guest adds orders while writes are held up and fail; another one follows them."""

    def __init__(self, house: House, actor: Actor, writer: Guest, reader: Guest, seed: int) -> None:
        self.house, self.actor = house, actor
        self.writer, self.reader = writer, reader
        self.random = random.Random(seed)
        self.orders, self.count = Following(reader, "orders"), Following(reader, "count")
        self.member = Following(reader, "member", "n")
        # The version that the reader knows, and all items that it was shown.
        self.version = 0
        self.seen: set[str] = set()
        self.sent: list[str] = []
        self.answered: set[str] = set()
        self.failed: set[str] = set()

    def write(self) -> None:
        ref = len(self.sent)
        self.sent.append(f"i{ref}")
        self.writer.send("call", ref=ref, method="add", args=[f"i{ref}"])

    @property
    def is_answered(self) -> bool:
        """Whether all calls are answered."""
        self.look()
        return len(self.answered | self.failed) == len(self.sent)

    def look(self) -> None:
        """Take what has come, and check each result."""
        for frame in self.writer.frames:
            match frame:
                case {"type": "result", "ref": ref}:
                    self.answered.add(self.sent[ref])
                case {"type": "error", "ref": ref}:
                    self.failed.add(self.sent[ref])
        for frame in self.reader.frames:
            match frame:
                case {"type": "change" | "snapshot", "version": version} | {"type": "changes", "to": version}:
                    self.version = version
            for each in (self.orders, self.count, self.member):
                if each.take(frame):
                    assert each.ended is None
                    assert each.at <= self.version
            if self.count.error is None and self.count.at >= 0:
                assert self.count.rows["rows"] == self.count.rows["n"]
            if self.orders.error is None and self.orders.at >= 0:
                self.seen.update(row["item"] for row in self.orders.rows)

    async def step(self) -> None:
        store = self.house.store
        match self.random.choices(
            ["writes", "holds", "fails", "resumes", "one", "slow", "drains"], (50, 10, 6, 10, 10, 5, 9)
        )[0]:
            case "writes":
                self.write()
            case "holds":
                store.is_held = True
            case "fails":
                store.fail_next()
                store.resume()
            case "resumes":
                store.resume()
            case "one":
                store.resume(min(1, len(store.waiting)))
            case "slow":
                self.reader.transport.is_backed_up = True
            case _:
                self.reader.transport.catch_up()
        for _ in range(self.random.randrange(6)):
            await asyncio.sleep(0)
        self.look()

    async def end(self) -> None:
        """Wait until all calls are answered, and a last one has succeeded and was shown."""
        self.house.store._failure = None
        self.house.store.resume()
        self.reader.transport.catch_up()
        await until(lambda: self.is_answered)
        async with asyncio.timeout(PATIENCE):
            while self.sent[-1] not in self.answered:  # The tables may have to be read again.
                self.write()
                await until(lambda: self.is_answered)
        await until(
            lambda: self.is_answered and self.sent[-1] in self.seen and self.count.rows["n"] == self.member.rows
        )


@play_seeds(15)
async def test_no_reader_sees_a_row_that_was_lost(seed: int) -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        await actor.state.store_thread()
        schedule = Schedule(house, actor, await joined(actor, "a"), await joined(actor, "b"), seed)
        for _ in range(200):
            await schedule.step()
        await schedule.end()
        rows = [row["item"] for row in actor.thread.sql("SELECT item FROM orders").value]  # type: ignore[attr-defined]
        assert set(rows) == schedule.answered
        assert len(rows) == len(schedule.answered)
        assert [row["item"] for row in schedule.orders.rows] == rows
        assert schedule.count.rows == {"rows": len(rows), "n": len(rows)}
        assert schedule.failed.isdisjoint(schedule.seen)
