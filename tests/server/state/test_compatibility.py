"""Whether a client that was built for an earlier type of a state can live with the present one."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from tests.cases import each_case

from plait.actor.kind import Kind
from plait.actor.thread import Thread
from plait.errors import Outdated
from plait.state.compatibility import Compatibility
from plait.store.memory import MemoryStore
from plait_schemas.schema import schema_hash, schema_of


class First(msgspec.Struct, frozen=True):
    score: int = 0


class Second(msgspec.Struct, frozen=True):
    score: int = 0
    title: str = ""


class Third(msgspec.Struct, frozen=True):
    score: str = ""
    title: str = ""


@dataclass
class Odd:
    """Has a field that msgspec can hold, and has no schema for."""

    what: object = None


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    color: str = ""


class WiderSettings(msgspec.Struct, forbid_unknown_fields=True):
    color: str = ""
    size: int = 0


def kind_of(type_: Any) -> Kind:
    class Room(Thread[type_]):  # type: ignore[misc,valid-type]
        pass

    return Room._kind


def hash_of(type_: Any) -> str:
    return schema_hash(schema_of(type_))


async def served(*types: Any) -> tuple[Compatibility, Kind]:
    """Serve a store with one type after the other; returns what the last one knows."""
    async with MemoryStore() as store:
        found = [(Compatibility(store), kind_of(each)) for each in types]
        for compatibility, kind in found:
            await compatibility.remember({kind.name: kind.state_type})
    return found[-1]


async def test_a_client_of_the_present_schema_is_let_in_and_so_is_one_without() -> None:
    compatibility, kind = await served(First)
    await compatibility.check(kind.name, hash_of(First))
    await compatibility.check(kind.name, None)


async def test_a_client_of_an_earlier_schema_that_has_only_grown_is_let_in() -> None:
    compatibility, kind = await served(First, Second)
    await compatibility.check(kind.name, hash_of(First))
    await compatibility.check(kind.name, hash_of(Second))


@each_case(
    ("types", "outdated"),
    [
        ((Second, First), Second),
        ((Second, Third), Second),
        ((First, Second, Third), First),
        ((Settings, WiderSettings), Settings),
        ((First, int), First),
    ],
)
async def test_a_client_of_an_earlier_schema_that_is_another_is_outdated(types: tuple[Any, ...], outdated: Any) -> None:
    compatibility, kind = await served(*types)
    with pytest.raises(Outdated, match="another schema of room"):
        await compatibility.check(kind.name, hash_of(outdated))
    await compatibility.check(kind.name, hash_of(types[-1]))


@each_case("hash", ["0123456789abcdef", "", "x" * 1000])
async def test_a_schema_that_was_never_served_is_outdated(hash: str) -> None:
    compatibility, kind = await served(First)
    with pytest.raises(Outdated):
        await compatibility.check(kind.name, hash)
    with pytest.raises(Outdated):
        await compatibility.check(kind.name, hash_of(Second))


async def test_a_schema_that_another_kind_was_served_with_is_outdated() -> None:
    class Hall(Thread[First]):
        pass

    async with MemoryStore() as store:
        compatibility = Compatibility(store)
        kind = kind_of(Second)
        await compatibility.remember({each.name: each.state_type for each in (kind, Hall._kind)})
        await compatibility.check(Hall._kind.name, hash_of(First))
        with pytest.raises(Outdated):
            await compatibility.check(kind.name, hash_of(First))


async def test_what_was_served_and_taken_back_is_compared_with_the_present() -> None:
    compatibility, kind = await served(First, Third, First)
    await compatibility.check(kind.name, hash_of(First))
    with pytest.raises(Outdated):
        await compatibility.check(kind.name, hash_of(Third))


@each_case("type_", [Any, dict, dict[str, Any], list[Any]])
async def test_where_any_json_is_a_state_every_client_is_let_in(type_: Any) -> None:
    compatibility, kind = await served(First, type_)
    for hash in (hash_of(First), "unknown", None):
        await compatibility.check(kind.name, hash)


async def test_where_a_type_has_no_schema_every_client_is_let_in() -> None:
    with pytest.raises(TypeError):
        schema_of(Odd)
    compatibility, kind = await served(Odd)
    for hash in ("unknown", None):
        await compatibility.check(kind.name, hash)
