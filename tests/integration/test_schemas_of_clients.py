"""Clients that were built for a type of the state, and join when it has another."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.integration.native_client import NativeClient
from tests.integration.socket_client import Closed
from tests.running import running

from plait import Plait, Thread, migrate
from plait_client import Refused, connect
from plait_schemas.schema import schema_hash, schema_of

PATH = "/threads/room/one"


class First(msgspec.Struct, frozen=True):
    score: int = 0


class Grown(msgspec.Struct, frozen=True):
    score: int = 0
    title: str = "untitled"


class Renamed(msgspec.Struct, frozen=True):
    points: int = 0
    title: str = "untitled"


class FirstRoom(Thread[First]):
    kind = "room"
    initial_state = First(1)


class GrownRoom(Thread[Grown]):
    kind = "room"
    initial_state = Grown(1)


class RenamedRoom(Thread[Renamed]):
    kind = "room"
    initial_state = Renamed(1)
    state_version = 2

    @staticmethod
    @migrate(from_=1)
    def rename(state: Any) -> Any:
        return {"points": state["score"], "title": state.get("title", "untitled")}


class PlainRoom(Thread[dict[str, Any]]):
    kind = "room"
    initial_state = {"n": 0}  # noqa: RUF012


def hash_of(type_: Any) -> str:
    return schema_hash(schema_of(type_))


@asynccontextmanager
async def serving(folder: Path, room: type[Thread[Any]]) -> AsyncIterator[str]:
    """Serve one class from the folder's store."""
    async with running(Plait(room, store=f"sqlite:///{folder}/plait.db")) as address:
        yield address


async def served(folder: Path, *rooms: type[Thread[Any]]) -> None:
    """Have the folder's store served by some classes, one after the other, to a client each."""
    for room in rooms:
        async with serving(folder, room) as address:
            assert (await join(address, None))["type"] == "joined"


async def join(address: str, schema: str | None) -> Any:
    """Join with the hash of a schema; returns `joined`, or the code and the reason that the socket is closed with."""
    client = NativeClient(address, PATH, "a")
    await client.open(joins=False)
    try:
        await client.send("join", client="a", **({} if schema is None else {"schema": schema}))
        await client.until(lambda client: client.frames)
        return client.frames[0]
    except Closed as closed:
        return closed.args
    finally:
        await client.close()


OUTDATED = (4409, "the client was built for another schema of room: reload or update it")


async def test_a_client_of_the_present_schema_joins_and_so_does_one_without(tmp_path: Path) -> None:
    async with serving(tmp_path, FirstRoom) as address:
        for schema in (hash_of(First), None):
            frame = await join(address, schema)
            assert (frame["type"], frame["state"]) == ("joined", {"score": 1})


async def test_a_client_of_an_earlier_schema_joins_if_the_type_has_only_grown(tmp_path: Path) -> None:
    await served(tmp_path, FirstRoom)
    async with serving(tmp_path, GrownRoom) as address:
        for schema in (hash_of(First), hash_of(Grown)):
            frame = await join(address, schema)
            assert (frame["type"], frame["state"]) == ("joined", {"score": 1, "title": "untitled"})


async def test_a_client_of_an_earlier_schema_is_closed_with_4409_if_something_has_gone(tmp_path: Path) -> None:
    await served(tmp_path, FirstRoom, GrownRoom)
    async with serving(tmp_path, RenamedRoom) as address:
        for schema in (hash_of(First), hash_of(Grown)):
            assert await join(address, schema) == OUTDATED
        assert (await join(address, hash_of(Renamed)))["state"] == {"points": 1, "title": "untitled"}


async def test_a_client_of_a_newer_schema_is_closed_with_4409_after_going_back_a_release(tmp_path: Path) -> None:
    await served(tmp_path, FirstRoom, GrownRoom)
    async with serving(tmp_path, FirstRoom) as address:
        assert await join(address, hash_of(Grown)) == OUTDATED
        assert (await join(address, hash_of(First)))["type"] == "joined"


@pytest.mark.parametrize("schema", ["0123456789abcdef", "", "'; drop table schemas; --", "x" * 1000])
async def test_a_client_of_a_schema_that_was_never_served_is_closed_with_4409(tmp_path: Path, schema: str) -> None:
    async with serving(tmp_path, FirstRoom) as address:
        assert await join(address, schema) == OUTDATED
        assert await join(address, hash_of(Grown)) == OUTDATED


async def test_where_the_state_is_plain_json_every_client_joins(tmp_path: Path) -> None:
    async with serving(tmp_path, PlainRoom) as address:
        for schema in (hash_of(First), hash_of(dict[str, Any]), "unknown", None):
            assert (await join(address, schema))["state"] == {"n": 0}


@pytest.mark.parametrize(
    "change",
    [
        lambda room: room.update("/titel", "mine"),
        lambda room: room.set({"score": 1, "titel": "mine"}),
        lambda room: room.set(lambda state: {**state, "titel": "mine"}),
    ],
)
async def test_what_a_client_changes_that_the_type_does_not_have_is_refused_and_shown_no_more(
    tmp_path: Path, change: Any
) -> None:
    async with serving(tmp_path, GrownRoom) as address, connect(f"ws://{address}{PATH}") as room:
        with pytest.raises(Refused) as raised:
            await change(room)
        assert (raised.value.code, raised.value.path) == ("invalid_state", "/titel")
        assert "there is no field 'titel'; did you mean /title?" in str(raised.value)
        assert room.state == {"score": 1, "title": "untitled"}
        await room.update("/title", "mine")


async def test_what_a_client_edits_that_the_type_does_not_have_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, GrownRoom) as address, connect(f"ws://{address}{PATH}", state_type=Grown) as room:
        edit = room.edit()
        with edit as draft:
            draft.titel = "mine"
        with pytest.raises(Refused, match="did you mean /title"):
            await edit
        assert room.state == Grown(1)
