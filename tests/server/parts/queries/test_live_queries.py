"""Queries that clients of the native protocol follow."""

from typing import Any

import pytest
from tests.server.parts.queries.readers import ABSENT, Desk, Following
from tests.server.rooms import open_house
from tests.server.session.guests import Guest, joined, joins, until

from plait import Principal, Stream, Thread, current, query, rpc
from plait.parts.queries.passes import QueryPasses


async def settle(actor: Any) -> None:
    """Wait until everything is durable, and the passes of queries have run."""
    passes = actor.use_service(QueryPasses)
    passes.interval = 0.0
    await until(lambda: actor.state.is_durable and not passes._waiting)


async def test_a_result_comes_first_and_then_differences() -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        desk: Any = actor.thread
        guest = await joined(actor, "a")
        orders = Following(guest, "orders")
        assert await orders.next() == []
        for item in ("tea", "milk", "salt", "a longer name of an order"):
            desk.add(item)
        await orders.until(
            [{"id": n, "item": item} for n, item in enumerate(("tea", "milk", "salt", "a longer name of an order"), 1)]
        )
        desk.add("x")
        await orders.next()
        assert "ops" in orders.chunks[-1]
        assert orders.rows[-1] == {"id": 5, "item": "x"}


async def test_writes_elsewhere_run_nothing_again() -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        desk: Any = actor.thread
        guest = await joined(actor, "a")
        orders, member, value = (
            Following(guest, "orders"),
            Following(guest, "member", "n"),
            Following(guest, "value", "k"),
        )
        for each in (orders, member, value):
            await each.next()
        before = Desk.runs
        desk.sql("INSERT INTO logs VALUES (1)")
        desk.set("other", 5)
        await desk.values.set("another", 1)
        await settle(actor)
        assert Desk.runs == before
        desk.set("n", 5)
        assert await member.next() == 5
        await desk.values.set("k", [1])
        assert await value.next() == [1]
        assert Desk.runs == before + 2


async def test_names_of_tables_are_those_of_sqlite() -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        desk: Any = actor.thread
        orders = Following(await joined(actor, "a"), "orders")
        await orders.next()
        desk.sql("INSERT INTO ORDERS (item) VALUES ('tea')")
        assert await orders.next() == [{"id": 1, "item": "tea"}]


@pytest.mark.parametrize("how", ["state", "member", "sql", "values"])
async def test_a_query_that_writes_fails_and_writes_nothing(how: str) -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        desk: Any = actor.thread
        writes = Following(await joined(actor, "a"), "writes", how)
        assert await writes.next() is ABSENT
        assert writes.error["code"] == "call_failed"
        assert desk.state == Desk.initial_state
        assert desk.sql("SELECT * FROM logs").value == []
        assert not await desk.values.has("a")


async def test_a_result_waits_until_what_it_has_seen_is_durable() -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        desk: Any = actor.thread
        guest = await joined(actor, "a")
        count = Following(guest, "count")
        assert await count.next() == {"rows": 0, "n": 0}
        house.store.is_held = True
        desk.add("tea")
        await until(lambda: actor.state.find_pending() is not None)
        count.drain()
        assert count.rows == {"rows": 0, "n": 0}
        house.store.resume()
        assert await count.next() == {"rows": 1, "n": 1}
        assert count.at == 1


async def test_a_lost_write_is_never_shown() -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        desk: Any = actor.thread
        guest = await joined(actor, "a")
        count = Following(guest, "count")
        await count.next()
        house.store.is_held = True
        desk.add("lost")
        await until(lambda: len(actor.state._pending[-1]._callbacks) > 0)
        house.store.fail_next()
        house.store.resume()
        await settle(actor)
        await desk.sql.read("SELECT item FROM orders")  # Waits until the tables have been read again.
        desk.add("kept")
        await count.until({"rows": 1, "n": 1})
        assert all(chunk.get("rows", {}).get("n") in (None, 0, 1) for chunk in count.chunks)
        assert desk.sql("SELECT item FROM orders").value == [{"item": "kept"}]


async def test_a_change_that_is_undone_by_a_loss_is_seen_again() -> None:
    """One change leads away from the shown result, and the next one, which is lost, back to it."""
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        desk: Any = actor.thread
        member = Following(await joined(actor, "a"), "member", "n")
        assert await member.next() == 0
        house.store.is_held = True
        desk.set("n", 1)
        desk.set("n", 0)
        await settle_runs(actor)
        house.store.resume(1)
        await until(lambda: actor.state.durable.version == 1)
        house.store.fail_next()
        house.store.resume()
        assert await member.next() == 1


async def test_an_error_is_told_once_and_the_query_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        desk: Any = actor.thread
        fails = Following(await joined(actor, "a"), "fails")
        assert await fails.next() == 0
        desk.set("n", 1)
        assert await fails.next() == 0
        assert fails.error["code"] == "call_failed"
        assert "odd" not in fails.error["message"]
        desk.set("n", 3)
        await settle(actor)
        desk.set("n", 0)
        assert await fails.next() == 0
        assert fails.error is None
        assert [sorted(chunk) for chunk in fails.chunks] == [["at", "rows", "tag"], ["at", "error"], ["at", "tag"]]
        assert len([each for each in caplog.records if "ValueError" in each.getMessage()]) == 1


async def test_a_slow_reader_is_skipped_and_gets_one_difference_later() -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        desk: Any = actor.thread
        guest, other = await joined(actor, "a"), await joined(actor, "b")
        slow, fast = Following(guest, "orders"), Following(other, "orders")
        await slow.next()
        await fast.next()
        guest.transport.is_backed_up = True
        for item in "abc":
            desk.add(item)
            await fast.until([{"id": n, "item": each} for n, each in enumerate("abc"[: "abc".index(item) + 1], 1)])
        assert guest.frames == []
        guest.transport.catch_up()
        frames = guest.frames
        assert [frame["type"] for frame in frames] == ["changes", "result"]
        for frame in frames:
            slow.take(frame)
        assert slow.rows == fast.rows


async def test_a_new_reader_gets_the_shown_result_without_a_run() -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        first = Following(await joined(actor, "a"), "orders")
        await first.next()
        before = Desk.runs
        second = Following(await joined(actor, "b"), "orders")
        second.drain()
        assert second.rows == []
        assert Desk.runs == before


async def test_a_reader_that_comes_while_a_run_is_due_gets_a_result_that_has_not_changed() -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        desk: Any = actor.thread
        first, guest = Following(await joined(actor, "a"), "orders", 0), await joined(actor, "b")
        await first.next()
        desk.add("tea")
        second = Following(guest, "orders", 0)
        assert await second.next() == []
        assert len(first.chunks) == 1


async def test_a_reader_that_comes_before_a_loss_gets_the_result_before_it() -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        desk: Any = actor.thread
        first, guest = Following(await joined(actor, "a"), "member", "n"), await joined(actor, "b")
        await first.next()
        house.store.is_held = True
        desk.set("n", 1)
        await settle_runs(actor)
        second = Following(guest, "member", "n")
        house.store.fail_next()
        house.store.resume()
        assert await second.next() == 0


async def test_a_reconnect_says_its_tag() -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        guest = await joined(actor, "a")
        orders = Following(guest, "orders")
        await orders.next()
        guest.leave()
        again = Following(await joined(actor, "a"), "orders", have=orders.tag)
        await again.next()
        assert again.chunks == [{"at": 0, "tag": orders.tag}]
        other = Following(await joined(actor, "b"), "orders", have="another")
        assert await other.next() == []


async def test_a_reader_that_leaves_ends_the_query() -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        desk: Any = actor.thread
        guest = await joined(actor, "a")
        orders = Following(guest, "orders")
        await orders.next()
        guest.send("cancel", ref=orders.ref)
        before = Desk.runs
        desk.add("tea")
        await settle(actor)
        assert Desk.runs == before
        assert actor.state.on_touch is None
        assert [frame["type"] for frame in guest.frames] == ["change"]


async def test_limits_of_a_connection_and_of_a_thread() -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        guests = [await joined(actor, f"guest {n}") for n in range(5)]
        following = [Following(guest, "orders", n * 64 + k) for n, guest in enumerate(guests[:4]) for k in range(64)]
        for each in following:
            await each.next()
        more = Following(guests[0], "orders", 1)
        await more.next()
        assert more.ended == "rate_limited"
        more = Following(guests[4], "orders", 9_999)
        await more.next()
        assert more.ended == "rate_limited"
        shared = Following(guests[4], "orders", 1)
        assert await shared.next() == []
        guests[0].send("cancel", ref=following[0].ref)
        again = Following(guests[4], "orders", 9_999)
        assert await again.next() == []


async def test_queries_and_rpcs_are_told_apart() -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        guest = await joined(actor, "a")
        guest.send("call", ref=1, method="orders")
        guest.send("call", ref=2, method="add", args=["tea"], have="")
        guest.send("call", ref=3, method="order", have="")
        await until(lambda: guest.transport._unread.qsize() == 3)
        errors = [(frame["ref"], frame["code"], frame["message"]) for frame in guest.frames]
        assert errors == [
            (1, "method_not_found", "orders is a query: follow it with `query`, or GET …/query/orders"),
            (2, "method_not_found", "add is not a query: call it"),
            (3, "method_not_found", "Query order does not exist; did you mean orders?"),
        ]


class Big(Thread[Any]):
    initial_state = {"size": 10}  # noqa: RUF012

    @query
    def text(self) -> str:
        return "x" * int(self.state["size"])

    @query
    def whole(self) -> Any:
        return {"state": self.state}

    @rpc
    def grow(self, size: int) -> None:
        self.set_state({"size": size})


async def test_a_result_above_a_mib_is_an_error() -> None:
    async with open_house(Big) as house:
        actor = await house.actor(Big)
        big: Any = actor.thread
        text = Following(await joined(actor, "a"), "text")
        assert await text.next() == "x" * 10
        big.grow(1 << 20)
        await text.next()
        assert text.error["code"] == "too_large"
        big.grow(5)
        assert await text.next() == "xxxxx"


async def test_a_state_that_is_returned_whole_is_followed_whole() -> None:
    async with open_house(Big) as house:
        actor = await house.actor(Big)
        big: Any = actor.thread
        whole = Following(await joined(actor, "a"), "whole")
        assert await whole.next() == {"state": {"size": 10}}
        big.grow(11)
        assert await whole.next() == {"state": {"size": 11}}


async def test_handles_call_queries() -> None:
    async with open_house(Desk) as house:
        handle = house.handle(Desk)
        assert await handle.call("orders") == []
        assert await handle.call("all") == {"state": Desk.initial_state}
        with pytest.raises(RuntimeError, match="only reads"):
            await handle.call("writes", "state")


async def settle_runs(actor: Any) -> None:
    """Wait until no query waits for a run."""
    passes = actor.use_service(QueryPasses)
    passes.interval = 0.0
    await until(lambda: not passes._waiting)


async def test_the_statements_of_a_run_share_50_ms() -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        guest = await joined(actor, "a")
        assert await Following(guest, "heavy", 10).next() == 20
        heavy = Following(guest, "heavy", 1_000_000_000)
        await heavy.next()
        assert heavy.error["code"] == "sql_error"
        assert heavy.ended is None


async def test_a_query_knows_for_whom_it_runs_and_nothing_else_of_its_reader() -> None:
    async with open_house(Asks) as house:
        actor = await house.actor(Asks)
        ann = Following(await joined(actor, "a", principal=Principal("ann")), "asks")
        bob = Following(await joined(actor, "b", principal=Principal("bob")), "asks")
        assert await ann.next() == ["ann", "one"]
        assert await bob.next() == ["bob", "one"]
        nobody = Following(await joined(actor, "c"), "asks")
        await nobody.next()
        assert nobody.error["code"] == "unauthenticated"


async def test_a_query_that_changes_its_arguments_gets_the_same_ones_in_each_run() -> None:
    async with open_house(Asks) as house:
        actor = await house.actor(Asks)
        numbered = Following(await joined(actor, "a", principal=Principal("ann")), "numbered", {"first": 5})
        assert await numbered.next() == [5, "ann"]
        actor.thread.set_state({"n": 1})
        assert await numbered.next() == [6, "ann"]


class Asks(Thread[Any]):
    initial_state = {"n": 0}  # noqa: RUF012

    @query
    def counted(self) -> Any:
        return [self.state["n"], current().principal.claims]

    @query
    def numbered(self, options: dict[str, Any]) -> Any:
        return [options.pop("first") + self.state["n"], current().principal.id]

    @query
    def asks(self) -> Any:
        found = current()
        return [found.principal.id, found.thread.name]


async def test_a_reader_that_loses_its_right_to_call_is_told_and_ends() -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        guest = await joined(actor, "a", principal=Principal("ann"))
        orders = Following(guest, "orders")
        await orders.next()
        guest.connection.rights = guest.connection.rights._replace(may_call=False)
        desk: Any = actor.thread
        desk.add("secret")
        await orders.next()
        assert orders.ended == "forbidden"
        assert orders.rows == []


@pytest.mark.parametrize("waits_for", ["store", "reader"])
async def test_a_result_that_waits_is_not_sent_to_a_principal_that_came_later(waits_for: str) -> None:
    async with open_house(Asks) as house:
        actor = await house.actor(Asks)
        guest = await joined(actor, "a", principal=Principal("ann", {"group": 1}))
        counted = Following(guest, "counted")
        assert await counted.next() == [0, {"group": 1}]
        guest.transport.is_backed_up = waits_for == "reader"
        house.store.is_held = waits_for == "store"
        commit = actor.thread.set_state({"n": 1})
        await settle_runs(actor)
        guest.connection.rights = guest.connection.rights._replace(principal=Principal("ann", {"group": 2}))
        house.store.resume()
        await commit
        guest.transport.catch_up()
        assert await counted.next() == [1, {"group": 2}]
        assert len(counted.chunks) == 2


async def test_a_client_without_the_state_is_told_versions_and_follows_queries() -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        desk: Any = actor.thread
        guest = Guest(actor, "a", has_state=False)
        await guest.open()
        await actor.wait_until_idle()
        assert joins(guest.frames) == {"version": 0}
        member = Following(guest, "member", "n")
        await member.next()
        desk.set("n", 7)
        assert await member.next() == 7
        assert member.at == 1
        desk.set("other", 7)
        desk.emit("done")
        assert (await guest.transport.next())["type"] == "event"
        again = Guest(actor, "a", have=(actor.state.epoch, 1), has_state=False)
        await again.open()
        await actor.wait_until_idle()
        assert joins(again.frames) == {"version": 2}


def test_a_query_must_be_a_plain_function() -> None:
    with pytest.raises(TypeError, match="must not await"):

        @query
        async def late(self: Any) -> None: ...

    with pytest.raises(TypeError, match="does not stream"):

        class Streams(Thread[Any]):
            @query
            def values(self, stream: Stream) -> None: ...
