"""Handles to files of threads that another node owns, and of this one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from tests.server.nodes import Nodes, open_nodes
from tests.server.parts.files_lab import until

from plait import Files, Indeterminate, NotFound, Plait, Thread, Unavailable
from plait.node.remote_requests import CallPart
from plait.parts.files.file import CHUNK
from plait.store.thread_rows import RecordRange

SIZE = 20 * CHUNK + 8


class Shelf(Thread[Any]):
    files = Files()


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with open_nodes(lambda: Plait(Shelf, store="memory://")) as nodes:
        yield nodes


def body(size: int = SIZE) -> bytes:
    return bytes(range(256)) * (size // 256) + b"e" * (size % 256)


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 100_000):
        yield data[at : at + 100_000]


@pytest.mark.parametrize("node", [0, 1])
async def test_a_handle_writes_and_reads_files(node: int, nodes: Nodes) -> None:
    files = nodes.handle(Shelf, node).files
    written = await files.write("a/b.bin", pieces(body()), metadata={"n": 1})
    assert (written.path, written.size, written.metadata) == ("a/b.bin", SIZE, {"n": 1})
    assert await files.stat("a/b.bin") == written
    assert await files.read("a/b.bin") == body()
    assert b"".join([each async for each in files.stream("a/b.bin", 5, CHUNK + 9)]) == body()[5 : CHUNK + 9]
    assert (await files.write("c.txt", "text")).size == 4
    assert [(each.path, each.line, each.text) for each in await files.grep("ex")] == [("c.txt", 1, "text")]
    assert [each.path for each in await files.find("**")] == ["a/b.bin", "c.txt"]
    assert await files.read("none") is None
    with pytest.raises(NotFound, match="there is no file none"):
        [each async for each in files.stream("none")]
    assert await files.unlink("a/b.bin") is True
    assert await files.move("c.txt", "d.txt") == await files.stat("d.txt")
    assert (await files.stats()).files == 1


@pytest.mark.parametrize("node", [0, 1])
async def test_what_only_the_thread_can_use_handles_do_not_have(node: int, nodes: Nodes) -> None:
    files = nodes.handle(Shelf, node).files
    for method in ("receive", "put"):
        with pytest.raises(AttributeError, match="inside of the thread"):
            getattr(files, method)


async def test_a_stream_of_another_node_waits_for_its_reader(nodes: Nodes) -> None:
    files = nodes.handle(Shelf, 1).files
    await files.write("a.bin", pieces(body()))
    actor = await nodes.apps[1]._node.actor(nodes.handle(Shelf, 1)._key)
    reads, record = list[str](), actor.host.store.record

    async def count(*args: Any) -> Any:
        reads.append(args[2])
        return await record(*args)

    actor.host.store.record = count  # type: ignore[method-assign]
    async with aclosing(files.stream("a.bin")) as stream:
        await anext(stream)
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert len(reads) < 6
        async for _ in stream:
            pass
    assert len(reads) == 21


async def test_a_write_that_breaks_off_leaves_no_file(nodes: Nodes) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield body()
        raise LookupError

    handle = nodes.handle(Shelf, 1)
    with pytest.raises(LookupError):
        await handle.files.write("a.bin", broken())
    assert await handle.files.stat("a.bin") is None


async def read_all(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


@pytest.mark.parametrize("end", ["raises", "lost"])
async def test_a_write_whose_caller_leaves_ends_and_leaves_nothing(end: str, nodes: Nodes) -> None:
    gate = asyncio.Event()

    async def broken() -> AsyncIterator[bytes]:
        yield body(2 * CHUNK)
        await gate.wait()
        raise LookupError

    handle = nodes.handle(Shelf, 1)
    await handle.files.mkdir("a")
    actor = await nodes.apps[1]._node.actor(handle._key)

    async def stored() -> set[str]:
        return {each.key[:2] for each in await actor.host.store.records(handle._key, RecordRange("files"))}

    async def is_received() -> bool:
        return "c/" in await stored()

    async def is_over() -> bool:
        return await stored() == {"f/"}

    write = asyncio.ensure_future(handle.files.write("a.bin", broken()))
    await until(is_received)
    if end == "raises":
        gate.set()
    else:
        (link,) = nodes.apps[0]._context.links._dialled.values()
        await link.close()
    await until(is_over)
    assert not actor.usage.holds
    gate.set()
    with pytest.raises((LookupError, Indeterminate)):
        await write


async def test_a_read_that_is_lost_halfway_may_be_repeated(nodes: Nodes) -> None:
    handle = nodes.handle(Shelf, 1)
    await handle.files.write("a.bin", body(5 * CHUNK))
    pieces = handle.files.stream("a.bin")
    assert await anext(pieces)
    (link,) = nodes.apps[0]._context.links._dialled.values()
    await link.close()
    with pytest.raises(Unavailable, match="another process was lost during a call; try again"):
        await read_all(pieces)
    assert await handle.files.read("a.bin") == body(5 * CHUNK)


async def test_content_does_not_travel_as_json(nodes: Nodes) -> None:
    handle = nodes.handle(Shelf, 1)
    requests, ask = list[Any](), nodes.apps[0]._node.everywhere.nodes.ask

    async def note(to: Any, request: Any, **options: Any) -> bytes:
        requests.append(request)
        return await ask(to, request, **options)

    nodes.apps[0]._node.everywhere.nodes.ask = note  # type: ignore[method-assign]
    await handle.files.write("a.bin", body())
    await handle.files.read("a.bin")
    assert [(type(each), each.has_body) for each in requests] == [(CallPart, True)]
