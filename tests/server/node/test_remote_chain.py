"""Calls that go from node to node: what waits for them, what they may do, and what they end with."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import each_case
from tests.schedules import schedules
from tests.server.fakes import TroubledStore
from tests.server.nodes import Nodes, open_nodes
from tests.server.rooms import Client

from plait import CallFailed, Indeterminate, Plait, StoreError, Thread, Unavailable, rpc
from plait.actor.actor import Actor
from plait.kv.kv import KVStats
from plait.store.thread_rows import ThreadKey
from plait.web.links.link import Link

PATIENCE = 20.0


class Node(Thread[list[str]]):
    initial_state: Any = list

    def on_start(self) -> None:
        self.gate = asyncio.Event()
        self.reached = asyncio.Event()

    @rpc
    async def walk(self, names: list[str], tree: list[Any]) -> list[str]:
        """Walk a tree of calls, and return the names of the threads as they were reached."""
        place, calls = tree
        found = [names[place]]
        self.set_state(lambda state: [*state, "begin"])
        for call in calls:
            found += await self.thread(Node, names[call[0]]).call(Node.walk, names, call)
        self.set_state(lambda state: [*state, "end"])
        return found

    @rpc
    async def bounce(self, other: str, times: int) -> int:
        """Call the other thread, which calls this one, and so on."""
        return 1 + (await self.thread(Node, other).call(Node.bounce, self.name, times - 1) if times else 0)

    @rpc
    async def forever(self, other: str) -> None:
        await self.thread(Node, other).call(Node.forever, self.name)

    @rpc
    async def ask(self, other: str, method: str, *, is_told: bool = True) -> Any:
        self.asked = self.thread(Node, other).call(method, self.name)
        return await self.asked

    @rpc
    async def change(self, caller: str) -> None:
        await self.set_state(lambda state: [*state, "changed"])

    @rpc
    async def change_caller(self, caller: str) -> None:
        await self.thread(Node, caller).set_state(["changed by another"])

    @rpc
    async def lose(self, caller: str) -> None:
        self.set_state(lambda state: [*state, "lost"])

    @rpc
    async def change_and_lose_own(self, other: str) -> None:
        """Have another thread change, and make a change that is lost."""
        await self.thread(Node, other).call(Node.change, self.name)
        self.set_state(lambda state: [*state, "lost"])

    @rpc
    async def read_and_lose_own(self, other: str) -> None:
        await self.thread(Node, other).state()
        self.set_state(lambda state: [*state, "lost"])

    @rpc(concurrent=True)
    async def wait(self, caller: str = "") -> str:
        self.reached.set()
        await self.gate.wait()
        return "waited"

    @rpc
    async def wait_in_turn(self, caller: str = "") -> str:
        self.reached.set()
        await self.gate.wait()
        return "waited"

    @rpc
    async def change_at_gate(self) -> None:
        self.reached.set()
        await self.gate.wait()
        self.set_state(["changed at the gate"])

    @rpc
    async def record(self, caller: str = "") -> None:
        self.set_state(lambda state: [*state, "recorded"])


def make() -> Plait:
    return Plait(Node, store="memory://")


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with open_nodes(make) as opened:
        yield opened


async def find_actor(nodes: Nodes, name: str, node: int) -> Actor:
    return await nodes.apps[node]._node.actor(ThreadKey("node", name))


async def test_a_call_that_comes_back_to_a_waiting_thread_runs_inline(nodes: Nodes) -> None:
    here, there = nodes.name(Node, 0), nodes.name(Node, 1)
    async with asyncio.timeout(PATIENCE):
        assert await nodes.apps[0].thread(Node, here).call(Node.bounce, there, 30) == 31
    assert nodes.sent >= 60


async def test_a_state_is_set_from_inside_of_a_call_that_waits(nodes: Nodes) -> None:
    here, there = nodes.name(Node, 0), nodes.name(Node, 1)
    async with asyncio.timeout(PATIENCE):
        await nodes.apps[1].thread(Node, here).call(Node.ask, there, "change_caller")
    assert await nodes.apps[1].thread(Node, here).state() == ["changed by another"]


async def test_a_chain_of_too_many_calls_is_refused_across_nodes(nodes: Nodes) -> None:
    here, there = nodes.name(Node, 0), nodes.name(Node, 1)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(CallFailed, match="in a chain of more than 64 calls"):
            await nodes.apps[0].thread(Node, here).call(Node.forever, there)
        assert await nodes.apps[0].thread(Node, here).call(Node.bounce, there, 63) == 64
        with pytest.raises(CallFailed, match="in a chain of more than 64 calls"):
            await nodes.apps[0].thread(Node, here).call(Node.bounce, there, 64)


trees: st.SearchStrategy[Any] = st.recursive(
    st.tuples(st.integers(0, 3), st.just([])).map(list),
    lambda inner: st.tuples(st.integers(0, 3), st.lists(inner, max_size=3)).map(list),
    max_leaves=12,
)


@settings(max_examples=schedules(15))
@given(tree=trees)
def test_a_tree_of_calls_ends_as_in_one_process(tree: list[Any]) -> None:
    async def walk(count: int) -> tuple[list[str], list[Any]]:
        async with asyncio.timeout(PATIENCE), open_nodes(make, count=count) as nodes:
            app = nodes.apps[0]
            found = await app.thread(Node, names[tree[0]]).call(Node.walk, names, tree)
            return found, [await app.thread(Node, name).state() for name in names]

    async def compare() -> None:
        assert await walk(2) == await walk(1)

    asyncio.run(compare())


async def find_names() -> list[str]:
    async with open_nodes(make) as nodes:
        return [nodes.name(Node, number % 2, f"n{number}") for number in range(4)]


names = asyncio.run(find_names())


# Rights


class Guarded(Thread[str]):
    initial_state = ""

    def should_be_readonly(self, connection: Any, request: Any) -> bool:
        return connection.id == "reader"

    @rpc
    async def write_by(self, other: str) -> None:
        await self.thread(Guarded, other).call(Guarded.write, self.name)

    @rpc
    async def write(self, caller: str) -> None:
        await self.thread(Guarded, caller).set_state("written")

    @rpc
    async def destroy_by(self, other: str) -> None:
        await self.thread(Guarded, other).call(Guarded.destroy_caller, self.name)

    @rpc
    async def destroy_caller(self, caller: str) -> None:
        await self.thread(Guarded, caller).destroy()

    @rpc
    async def write_later_by(self, other: str) -> None:
        """Begin a task that outlives the client's turn."""
        self.task = asyncio.create_task(self.write_when_over(other))

    async def write_when_over(self, other: str) -> None:
        self.over = asyncio.Event()
        await self.over.wait()
        await self.thread(Guarded, other).call(Guarded.write, self.name)


async def test_a_readonly_client_gains_no_rights_by_another_node() -> None:
    async with asyncio.timeout(PATIENCE), open_nodes(lambda: Plait(Guarded, store="memory://")) as nodes:
        here, there = nodes.name(Guarded, 0), nodes.name(Guarded, 1)
        actor = await nodes.apps[0]._node.actor(ThreadKey("guarded", here))
        await actor.state.store_thread()
        writer, reader = Client(actor, "writer"), Client(actor, "reader")
        for client in (writer, reader):
            client.open()
            await client.joined()
        for method in ("write_by", "destroy_by"):
            reader.call("1", method, there)
            answer = await reader.next()
            assert (answer["success"], answer["error"]) == (False, "Connection is readonly")
        reader.call("2", "write_later_by", there)
        assert (await reader.next())["success"]
        thread: Any = actor.thread
        while not hasattr(thread, "over"):  # noqa: ASYNC110
            await asyncio.sleep(0)
        thread.over.set()
        with pytest.raises(Exception, match="Connection is readonly"):
            await thread.task
        assert thread.state == ""
        writer.call("1", "write_by", there)
        while (answer := await writer.next())["type"] != "rpc":
            pass
        assert answer["success"]
        assert thread.state == "written"


# Lost changes


@asynccontextmanager
async def open_troubled() -> AsyncIterator[tuple[Nodes, TroubledStore, TroubledStore]]:
    stores = TroubledStore(), TroubledStore()
    async with asyncio.timeout(PATIENCE), open_nodes(make, stores=stores) as nodes:
        try:
            yield nodes, *stores
        finally:
            for store in stores:
                store.resume()


async def test_what_is_lost_with_nothing_durable_in_the_chain_is_a_store_error() -> None:
    async with open_troubled() as (nodes, _, theirs):
        here, there = nodes.name(Node, 0), nodes.name(Node, 1)
        await nodes.apps[0].thread(Node, here).call(Node.record)
        await nodes.apps[0].thread(Node, there).call(Node.record)
        theirs.fail_next()
        with pytest.raises(StoreError) as found:
            await nodes.apps[0].thread(Node, here).call(Node.ask, there, "lose")
        assert type(found.value) is StoreError


async def test_what_is_lost_after_only_reading_another_thread_is_a_store_error() -> None:
    async with open_troubled() as (nodes, ours, _):
        here, there = nodes.name(Node, 0), nodes.name(Node, 1)
        await nodes.apps[0].thread(Node, here).call(Node.record)
        await nodes.apps[0].thread(Node, there).call(Node.record)
        ours.fail_next()
        with pytest.raises(StoreError) as found:
            await nodes.apps[0].thread(Node, here).call(Node.read_and_lose_own, there)
        assert type(found.value) is StoreError


async def test_what_is_lost_after_another_node_has_stored_something_is_indeterminate() -> None:
    async with open_troubled() as (nodes, ours, _):
        here, there = nodes.name(Node, 0), nodes.name(Node, 1)
        await nodes.apps[0].thread(Node, here).call(Node.record)
        ours.fail_next()
        with pytest.raises(Indeterminate):
            await nodes.apps[0].thread(Node, here).call(Node.change_and_lose_own, there)
        assert "changed" in await nodes.apps[0].thread(Node, there).state()


async def test_a_result_comes_when_it_is_durable() -> None:
    async with open_troubled() as (nodes, _, theirs):
        room, name = nodes.handle(Node, 1), nodes.name(Node, 1)
        await room.record()
        theirs.is_held = True
        call = asyncio.create_task(room.record())
        actor = await find_actor(nodes, name, 1)
        while actor.state.current.version < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        state = asyncio.create_task(room.state())
        # Whatever comes to the owner later is answered at once, and what waits for the store is not.
        assert await nodes.apps[0].thread(Node, nodes.name(Node, 1, "other")).state() == []
        assert not call.done()
        assert not state.done()
        theirs.resume()
        await call
        assert await state == ["recorded"] * 2


# Cancelling, and lost nodes


async def test_a_cancelled_call_that_has_not_begun_is_skipped(nodes: Nodes) -> None:
    room, name = nodes.handle(Node, 1), nodes.name(Node, 1)
    async with asyncio.timeout(PATIENCE):
        running = asyncio.create_task(room.wait_in_turn())
        thread: Any = (await find_actor(nodes, name, 1)).thread
        await thread.reached.wait()
        waiting = asyncio.create_task(room.record())
        mailbox = thread._actor.turns.mailbox
        while not mailbox.length:  # noqa: ASYNC110
            await asyncio.sleep(0)
        ((turn,),) = mailbox._queues.values()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        while not turn.is_abandoned:  # noqa: ASYNC110
            await asyncio.sleep(0)
        thread.gate.set()
        assert await running == "waited"
        assert await room.state() == []


async def test_a_cancelled_call_that_has_begun_is_finished(nodes: Nodes) -> None:
    room, name = nodes.handle(Node, 1), nodes.name(Node, 1)
    async with asyncio.timeout(PATIENCE):
        running = asyncio.create_task(room.change_at_gate())
        thread: Any = (await find_actor(nodes, name, 1)).thread
        await thread.reached.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        thread.gate.set()
        while not (state := await room.state()):
            pass
        assert state == ["changed at the gate"]


async def test_a_call_whose_link_is_lost_is_indeterminate(nodes: Nodes) -> None:
    room, name = nodes.handle(Node, 1), nodes.name(Node, 1)
    async with asyncio.timeout(PATIENCE):
        running = asyncio.create_task(room.wait_in_turn())
        thread: Any = (await find_actor(nodes, name, 1)).thread
        await thread.reached.wait()
        (link,) = nodes.apps[0]._context.links._dialled.values()
        await link.close()
        with pytest.raises(Indeterminate, match="another process was lost during a call"):
            await running
        thread.gate.set()
        # The next call makes a new link.
        assert await room.state() == []


async def test_a_read_whose_link_is_lost_is_repeated() -> None:
    async with open_troubled() as (nodes, _, theirs):
        room, name = nodes.handle(Node, 1), nodes.name(Node, 1)
        await room.record()
        theirs.is_held = True
        recording = asyncio.create_task(room.record())
        actor = await find_actor(nodes, name, 1)
        while actor.state.current.version < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        reading = asyncio.create_task(room.state())
        (link,) = nodes.apps[0]._context.links._dialled.values()
        await wait_for_message(link)
        await link.close()
        with pytest.raises(Indeterminate):
            await recording
        theirs.resume()
        assert await reading == ["recorded"] * 2


@each_case("read", ["get", "keys", "stats"])
async def test_a_read_of_kv_whose_link_is_lost_is_repeated(read: str) -> None:
    async with open_troubled() as (nodes, _, theirs):
        kv, namespace = nodes.apps[0].kv, nodes.name_of("plait-kv", 1)
        await kv.set(namespace, "key", 1)
        theirs.is_held = True
        setting = asyncio.ensure_future(kv.set(namespace, "key", 2))
        (link,) = nodes.apps[0]._context.links._dialled.values()
        await wait_for_message(link)
        reading = asyncio.create_task(kv.get(namespace, "key") if read == "get" else getattr(kv, read)(namespace))
        await wait_for_message(link)
        await link.close()
        with pytest.raises(Indeterminate):
            await setting
        theirs.resume()
        found = await reading
        assert (found.data if read == "get" else found) == {"get": 2, "keys": ["key"], "stats": KVStats(1, 1)}[read]


async def wait_for_message(link: Link) -> None:
    sent = link.sent
    while link.sent == sent:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def until_unlinked(nodes: Nodes) -> None:
    """Wait until the first node has noticed that its link is lost: a call that is put on it before is in doubt."""
    while nodes.apps[0]._context.links.find(1) is not None:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_a_call_waits_for_a_node_that_comes_back(nodes: Nodes) -> None:
    async with asyncio.timeout(PATIENCE):
        owner = nodes.apps[1]
        await owner._context.links.stop()
        await until_unlinked(nodes)
        call = asyncio.create_task(nodes.handle(Node, 1).record())
        await asyncio.sleep(0)
        await owner._context.links.start()
        await call


async def test_a_node_that_stays_away_is_unavailable(nodes: Nodes) -> None:
    async with asyncio.timeout(PATIENCE):
        await nodes.apps[1]._context.links.stop()
        await until_unlinked(nodes)
        nodes.apps[0]._context.links.hold = 0.1
        with pytest.raises(Unavailable, match="the process that owns this thread is not running"):
            await nodes.handle(Node, 1).record()


async def test_a_node_that_shuts_down_begins_no_call_but_those_of_turns(nodes: Nodes) -> None:
    here = nodes.handle(Node, 0)
    there, name = nodes.handle(Node, 1), nodes.name(Node, 1)
    async with asyncio.timeout(PATIENCE):
        await there.record()
        owner = nodes.apps[1]
        running = asyncio.create_task(there.wait_in_turn())
        thread: Any = (await find_actor(nodes, name, 1)).thread
        await thread.reached.wait()
        owner._context.links.go_away()
        draining = owner.drain()
        refused = asyncio.create_task(there.record())
        other = nodes.name(Node, 1, "other")
        await here.ask(other, "record")
        assert not refused.done()
        thread.gate.set()
        await running
        await draining
        # The next process of the node.
        await owner.__aexit__(None, None, None)
        await owner.__aenter__()
        await refused
        assert await there.state() == ["recorded"] * 2


async def test_a_call_that_a_node_has_refused_is_put_again(nodes: Nodes) -> None:
    there, owner = nodes.handle(Node, 1), nodes.apps[1]
    async with asyncio.timeout(PATIENCE):
        await there.record()
        # The caller has not read yet that the node is away.
        draining = owner._node.drain(PATIENCE)
        (link,) = nodes.apps[0]._context.links._dialled.values()
        sent = link.sent
        call = asyncio.create_task(there.record())
        while link.sent < sent + 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not call.done()
        await draining
        await owner.__aexit__(None, None, None)
        await owner.__aenter__()
        await call
        assert await there.state() == ["recorded"] * 2


async def test_a_change_that_a_node_could_not_store_before_its_end_is_indeterminate() -> None:
    stores = TroubledStore(), TroubledStore()

    def make_hasty() -> Plait:
        return Plait(Node, store="memory://", shutdown_timeout=0.1)

    async with asyncio.timeout(PATIENCE), open_nodes(make_hasty, stores=stores) as nodes:
        there, owner = nodes.handle(Node, 1), nodes.apps[1]
        await there.record()
        actor = await find_actor(nodes, nodes.name(Node, 1), 1)
        stores[1].is_held = True
        changing = asyncio.create_task(there.set_state(["changed"]))
        while actor.state.current.version < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        stopping = asyncio.create_task(owner.__aexit__(None, None, None))
        try:
            with pytest.raises(Indeterminate):
                await changing
        finally:
            stores[1].resume()
            await stopping
            await owner.__aenter__()
