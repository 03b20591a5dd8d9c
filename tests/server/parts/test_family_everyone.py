"""What a thread tells all its children: stored once, and taken by each child once and in order."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.schedules import schedules
from tests.server.parts.family_lab import FamilyLab, FlakyMemory, open_lab, until

from plait import Family, Store, Thread
from plait.errors import NotFound, Unavailable
from plait.parts.family import sending
from plait.parts.part import Part

NAMES = ("a", "b", "c")

STEPS = (
    *[("tell", "")] * 8,
    *[(step, name) for name in NAMES for step in ("spawn", "spawn", "leave", "return", "destroy")],
    ("wait", ""),
    ("wait", ""),
    ("sleep", ""),
    ("restart", ""),
)


class Box(Part[None]):
    """A part that hands down the last number, and keeps what it gets."""

    role = "box"

    def __init__(self) -> None:
        super().__init__()
        self.last = 0
        self.got: dict[str, list[dict[str, int]]] = {}

    def bind(self, actor: Any) -> None:
        return None

    def hand_down(self, actor: Any) -> dict[str, int]:
        return {"born": self.last}

    def take_item(self, actor: Any, body: Any) -> None:
        self.got.setdefault(actor.key.name, []).append(body)


class Shelf(Thread[None]):
    family = Family()
    box = Box()


class Shelves:
    """A parent and its children; some cannot be reached."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._away: set[str] = set()
        Shelf.box.last = 0
        Shelf.box.got.clear()
        self.lab: FamilyLab

    async def play(self, steps: Sequence[tuple[str, str]]) -> None:
        waiting = deque(steps)
        while waiting:
            async with open_lab(self._store, Shelf) as self.lab:
                while waiting and (step := waiting.popleft())[0] != "restart":
                    await self._do(*step)
        async with open_lab(self._store, Shelf) as self.lab:
            self._away.clear()
            await (await self._wake()).family.tell_children("box", {"end": 1})
            await self.lab.wait_for_sent(Shelf, "root")
            await self.check()

    async def _wake(self) -> Shelf:
        root = await self.lab.thread(Shelf, "root")
        sender = root.family._sender
        if "_deliver" not in vars(sender) or getattr(sender._deliver, "__name__", "") != "deliver":
            sent = sender._deliver

            async def deliver(to: str, items: Any) -> str:
                if to in self._away:
                    raise Unavailable("it is away")
                return await sent(to, items)

            sender._deliver = deliver
        return root

    async def _do(self, step: str, name: str) -> None:
        root, reference = await self._wake(), f"shelf/{name}"
        match step:
            case "tell":
                Shelf.box.last += 1
                await root.family.tell_children("box", {str(Shelf.box.last): Shelf.box.last})
            case "spawn":
                spawned = root.family.spawn(Shelf, name)
                if reference not in self._away:
                    await spawned
            case "leave":
                self._away.add(reference)
            case "return":
                self._away.discard(reference)
            case "destroy" if reference not in self._away and reference in {c.reference for c in root.family.children}:
                await root.family._sender.wait_until_born(reference)
                with suppress(NotFound):  # It was destroyed before, and its parent does not know it yet.
                    await self.lab.app.destroy(Shelf, name)
            case "wait":
                await asyncio.sleep(0.002)
            case "sleep" if not self._away:
                await self.lab.wait_for_sent(Shelf, "root")
                await self.lab.sleep(Shelf, "root")
        assert len(root.family._store.outbox) <= 4 * len(NAMES)

    async def check(self) -> None:
        children = {child.name for child in (await self._wake()).family.children if not child.is_destroyed}
        for name in children:
            got = Shelf.box.got[name]
            births = [place for place, body in enumerate(got) if "born" in body]
            seen = [number for body in got[births[-1] + 1 :] for key, number in sorted(body.items()) if key != "end"]
            born = got[births[-1]]["born"]
            assert sorted(set(seen)) == list(range(born + 1, Shelf.box.last + 1)), (name, got)
            assert "end" in got[-1]


@settings(max_examples=schedules(20))
@given(st.integers(0, 1 << 30))
def test_each_child_gets_all_that_was_told_after_its_birth(seed: int) -> None:
    steps = Random(seed).choices(STEPS, k=80)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sending, "_SHORTEST", 1_000)
        patch.setattr(sending, "_LONGEST", 2_000)
        asyncio.run(Shelves(FlakyMemory()).play(steps))


async def test_what_is_told_to_many_children_is_one_record() -> None:
    async with open_lab(FlakyMemory(), Shelf) as lab:
        root = await lab.thread(Shelf, "many")
        await asyncio.gather(*[root.family.spawn(Shelf, f"m{number}") for number in range(50)])
        await lab.wait_for_sent(Shelf, "many")
        assert isinstance(lab.store, FlakyMemory)
        lab.store.writes.clear()
        await root.family.tell_children("box", {"n": 1})
        assert len(lab.store.writes[0].records) == 1

        async def have_all() -> bool:
            return all(Shelf.box.got[f"m{number}"][-1] == {"n": 1} for number in range(50))

        await until(have_all)
        await lab.wait_for_sent(Shelf, "many")
        assert not root.family._store.outbox
