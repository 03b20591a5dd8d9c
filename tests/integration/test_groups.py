"""Clients of one gateway, whose up-to-date sockets are sent each change together."""

import asyncio
import json
import os
import random
import string
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.fronts import Front, using_fronts
from tests.integration.native_client import NativeClient, add, joined
from tests.integration.socket_client import TIMEOUT, websocket
from tests.running import running

from plait import MemoryStore, Plait, Thread, ThreadKey
from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.web.relay.remote_socket import RemoteSocket

PATH = "/threads/page/one"
SEED = int(os.environ.get("PLAIT_SEED", "0")) or random.randrange(1 << 32)


class Page(Thread[dict[str, Any]]):
    """A counter, and text of any size."""

    initial_state = {"n": 0, "text": "", "all": []}  # noqa: RUF012


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[str, Front, Actor]]:
    """Serve an app by a gateway; yields its address, the gateway, and the actor of the thread."""
    with using_fronts() as fronts:
        app = Plait(Page, store=MemoryStore(), limits=None)
        async with running(app) as address:
            yield address, fronts[0], await app._node.actor(ThreadKey("page", "one"))


def find_groups(actor: Actor) -> list[set[str]]:
    """Return the ids of the clients in each group."""
    grouped: dict[object, set[str]] = {}
    for connection in actor.sockets:
        if connection.group is not None:
            grouped.setdefault(connection.group, set()).add(connection.id)
    return list(grouped.values())


async def set_number(actor: Actor, number: int, clients: list[NativeClient]) -> None:
    """Set the number by the server, and wait until all clients have it."""
    state = {**actor.thread.state, "n": number}
    await actor.thread.set_state(state)
    for client in clients:
        await client.until(lambda each: each.state is not None and each.state["n"] == number)


def find_connection(actor: Actor, client: NativeClient) -> Connection:
    """Return the connection of a client."""
    (found,) = actor.sockets.find_by_id(client.frames[0]["connection"])
    return found


def is_grouped(actor: Actor, *clients: NativeClient) -> bool:
    """Whether these clients are in one group, and are all of those that are in one."""
    return find_groups(actor) == [{client.frames[0]["connection"] for client in clients}]


async def test_fifty_up_to_date_sockets_of_a_gateway_are_sent_a_change_by_one_cast() -> None:
    async with serving() as (address, front, actor), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(joined(address, PATH, f"c{number}")) for number in range(50)]
        await set_number(actor, 1, clients)
        assert [len(group) for group in find_groups(actor)] == [50]
        casts: list[int] = []
        for number in (2, 3):
            sent = front.app._context.links.count("sent")
            await set_number(actor, number, clients)
            casts.append(front.app._context.links.count("sent") - sent)
        assert casts == [1, 1]
        assert actor.sockets.single == {}
        assert {client.version for client in clients} == {actor.state.durable.version}


async def test_a_client_that_pushes_stays_in_its_group_and_is_not_sent_its_change() -> None:
    async with serving() as (address, front, actor), joined(address, PATH, "a") as a, joined(address, PATH, "b") as b:
        await set_number(actor, 1, [a, b])
        sent = front.app._context.links.count("sent")
        await a.push(add("/all/-", "a"))
        await b.until(lambda client: client.version == 2)
        await a.until(lambda client: client.answers)
        assert front.app._context.links.count("sent") - sent == 2  # The change and the answer.
        assert is_grouped(actor, a, b)
        await set_number(actor, 2, [a, b])
        assert [frame["version"] for frame in a.of(("change", "ack"))] == [1, 2, 3]
        assert [frame["version"] for frame in b.of(("change", "ack"))] == [1, 2, 3]
        assert a.state == b.state == actor.thread.state


async def test_readers_know_the_source_of_each_change_as_others_enter_and_push() -> None:
    async with serving() as (address, _, actor), joined(address, PATH, "a") as a:
        await set_number(actor, 1, [a])
        await set_number(actor, 2, [a])
        async with joined(address, PATH, "b") as b:
            await push_all(a)  # It is the only one in the group, which the other enters now.
            await set_number(actor, 3, [a, b])
            await push_all(b, a, a)
            async with joined(address, PATH, "c") as c:
                await set_number(actor, 4, [a, b, c])
                assert is_grouped(actor, a, b, c)
                await push_all(c, c, a, b, b, a)
                find_connection(actor, b).leave_group()
                await push_all(a)
                find_connection(actor, b).leave_group()
                await push_all(b, c, c, b)
                await set_number(actor, 5, [a, b, c])
                expected = await find_sources(actor)
                for client in (a, b, c):
                    found = read_sources(client)
                    assert found == {version: expected[version] for version in found}
                assert len(read_sources(a)) > 8


async def push_all(*clients: NativeClient) -> None:
    """Push by one client after the other."""
    for client in clients:
        await client.push(add("/all/-", 1))
        await client.until(lambda each: not each.pending)


async def find_sources(actor: Actor) -> dict[int, str]:
    """Return who made each version, as the log has it."""
    found: dict[int, str] = {}
    while rows := await actor.log.page(len(found)):
        found |= {row.version: row.source for row in rows}
    return found


def read_sources(client: NativeClient) -> dict[int, str]:
    """Return who made each version, as a client was told."""
    found, source = {}, "server"
    for frame in client.of("change"):
        found[frame["version"]] = source = frame.get("source", source)
    return found


async def test_the_last_socket_that_leaves_ends_its_group() -> None:
    async with serving() as (address, _, actor):
        async with joined(address, PATH, "a") as a, joined(address, PATH, "b") as b:
            await set_number(actor, 1, [a, b])
            await b.close()
            await set_number(actor, 2, [a])
            assert is_grouped(actor, a)
        async with joined(address, PATH, "c") as c:
            assert actor.sockets.groups == {}
            assert list(actor.sockets.single) == [find_connection(actor, c)]


async def test_sockets_of_a_gateway_that_reads_nothing_leave_their_group_and_catch_up() -> None:
    async with serving() as (address, front, actor), joined(address, PATH, "a") as a, joined(address, PATH, "b") as b:
        await set_number(actor, 1, [a, b])
        link = front.context.links.find(1)
        assert link is not None
        assert link._transport is not None
        link._transport.pause_reading()
        for number in range(200):  # More than waits for marks, and less than makes the link full.
            await actor.thread.set_state({"n": number, "text": random.choice(string.ascii_letters) * 5_000, "all": []})
        assert find_groups(actor) == []
        link._transport.resume_reading()
        await a.until(lambda client: client.state["n"] == 199)
        await b.until(lambda client: client.state["n"] == 199)
        assert len(a.of("change")) < 150
        await set_number(actor, -1, [a, b])
        assert is_grouped(actor, a, b)


async def test_a_client_without_the_state_gets_no_changes_from_a_group() -> None:
    async with serving() as (address, _, actor), joined(address, PATH, "a") as a:
        async with (
            await websocket(f"ws://{address}{PATH}", subprotocols=["plait.v1"]) as socket,
            asyncio.timeout(TIMEOUT),
        ):
            await socket.send(json.dumps({"type": "join", "client": "b", "state": False}))
            types = [json.loads(await socket.recv())["type"]]
            for number in range(1, 4):
                await set_number(actor, number, [a])
            await socket.send(json.dumps({"type": "call", "ref": 1, "method": "missing"}))
            while types[-1] != "error":
                types.append(json.loads(await socket.recv())["type"])
        assert types == ["joined", "error"]


async def test_a_client_whose_protocol_is_disabled_gets_no_changes_from_its_group() -> None:
    async with (
        serving() as (address, _, actor),
        joined(address, PATH, "a") as a,
        joined(address, PATH, "b") as b,
        joined(address, PATH, "c") as c,
    ):
        await set_number(actor, 1, [a, b, c])
        await actor.thread.set_state({**actor.thread.state, "n": 2})
        find_connection(actor, b).protocol_enabled = False
        await set_number(actor, 3, [c])
        for client, connection in ((a, find_connection(actor, a)), (b, find_connection(actor, b))):
            connection.send("last")
            await client.until(lambda each: each.of("message", data="last"))
        assert [frame["version"] for frame in a.of("change")] == [1, 2, 3]
        assert [frame["version"] for frame in b.of("change")] == [1, 2]
        assert [frame["version"] for frame in c.of("change")] == [1, 2, 3]


async def test_a_socket_leaves_its_group_when_its_gateway_says_that_it_is_slow() -> None:
    async with serving() as (address, _, actor), joined(address, PATH, "a") as a, joined(address, PATH, "b") as b:
        await set_number(actor, 1, [a, b])
        await set_number(actor, 2, [a, b])
        socket = find_connection(actor, b)._transport
        assert isinstance(socket, RemoteSocket)
        socket.set_slow(is_backed=True)
        assert is_grouped(actor, a)
        await set_number(actor, 3, [a])
        await set_number(actor, 4, [a])
        socket.set_slow(is_backed=False)
        await set_number(actor, 5, [a, b])
        assert is_grouped(actor, a, b)
        assert [(frame["from"], frame["to"]) for frame in b.of("changes")] == [(2, 4)]
        assert [frame["version"] for frame in b.of("change")] == [1, 2, 5]


async def test_a_slow_reader_leaves_its_group_and_catches_up() -> None:
    async with (
        serving() as (address, _, actor),
        joined(address, PATH, "fast") as fast,
        joined(address, PATH, "slow") as slow,
    ):
        await set_number(actor, 1, [fast, slow])
        slow.socket.transport.pause_reading()
        for number in range(2, 60):  # More than all buffers hold.
            await actor.thread.set_state(
                {"n": number, "text": random.choice(string.ascii_letters) * 300_000, "all": []}
            )
            await fast.until(lambda client: client.state["n"] == actor.thread.state["n"])
        await set_number(actor, -1, [fast])
        assert is_grouped(actor, fast)
        slow.socket.transport.resume_reading()
        await set_number(actor, -2, [fast])
        await slow.until(lambda client: client.state["n"] == -2)
        assert slow.of(("changes", "snapshot"))
        await set_number(actor, -3, [fast, slow])
        assert is_grouped(actor, fast, slow)
        assert slow.state == fast.state == actor.thread.state


async def test_clients_that_push_and_leave_and_read_slowly_end_alike_without_gaps() -> None:
    chance = random.Random(SEED)
    async with serving() as (address, _, actor), AsyncExitStack() as stack:
        clients = [NativeClient(address, PATH, f"c{number}") for number in range(6)]
        for client in clients:
            await client.join()
            stack.push_async_callback(client.close)
        paused: set[NativeClient] = set()
        for step in range(300):
            client = chance.choice(clients)
            match chance.choices(("push", "server", "big", "pause", "resume", "rejoin"), (30, 20, 10, 5, 10, 5))[0]:
                case "push":
                    await client.push(add("/all/-", f"{step}"))
                case "server":
                    await actor.thread.set_state(lambda state: {**state, "n": state["n"] + 1})
                case "big":
                    await actor.thread.set_state(
                        lambda state: {**state, "text": chance.choice(string.ascii_letters) * 300_000}
                    )
                case "pause" if len(paused) < 3:
                    client.socket.transport.pause_reading()
                    paused.add(client)
                case "resume" if paused:
                    again = paused.pop()
                    again.socket.transport.resume_reading()
                case "rejoin" if client not in paused:
                    await client.close()
                    await client.join()
        for client in paused:
            client.socket.transport.resume_reading()
        for client in clients:
            await client.until(lambda each: not each.pending)
        await actor.thread.set_state(lambda state: {**state, "n": -1})
        sources = await find_sources(actor)
        for client in clients:
            await client.until(lambda each: each.version == actor.state.durable.version)
            assert client.state == actor.thread.state, f"PLAIT_SEED={SEED}"
            found = read_sources(client)
            assert found == {version: sources[version] for version in found}, f"PLAIT_SEED={SEED}"
