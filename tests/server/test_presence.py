"""Who is here: gathered for a moment, told as differences."""

import asyncio
from typing import Any

import msgspec

from plait.presence import Presence
from plait_schemas.messages import PresenceDiff


class Told:
    """A presence, and what it has told everybody."""

    def __init__(self) -> None:
        self.diffs: list[Any] = []
        self.presence = Presence(asyncio.get_running_loop(), self._take)
        self.news = asyncio.Event()

    def _take(self, diff: PresenceDiff) -> None:
        self.diffs.append(plain(diff))
        self.news.set()


def plain(diff: PresenceDiff) -> Any:
    found = msgspec.json.decode(msgspec.json.encode(diff))
    del found["type"]
    return found


async def test_what_changes_is_gathered_and_told_once() -> None:
    told = Told()
    presence = told.presence
    presence.set("a", b"1")
    presence.set("a", b"2")
    presence.set("b", b'{"n":1}')
    presence.set("c", b"3")
    presence.set("c", None)
    assert told.diffs == []
    presence.flush()
    presence.flush()
    assert told.diffs == [{"joined": {"a": 2, "b": {"n": 1}}}]
    presence.set("a", b"3")
    presence.set("b", b"null")
    presence.set("d", b"4")
    presence.flush()
    assert told.diffs[1:] == [{"joined": {"d": 4}, "updated": {"a": 3}, "left": ["b"]}]
    assert presence.values() == {"a": 3, "d": 4}


async def test_it_is_told_by_itself_within_a_moment_and_not_at_once() -> None:
    told = Told()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    told.presence.set("a", b"1")
    async with asyncio.timeout(10):
        await told.news.wait()
    assert loop.time() - begun >= 0.04
    assert told.diffs == [{"joined": {"a": 1}}]


async def test_what_comes_while_others_wait_does_not_make_them_wait_longer() -> None:
    told = Told()
    told.presence.set("a", b"1")
    timer = told.presence._timer
    told.presence.set("b", b"1")
    assert told.presence._timer is timer
    told.presence.close()


async def test_what_is_as_it_was_is_not_told() -> None:
    told = Told()
    told.presence.set("a", b"1")
    told.presence.flush()
    told.presence.set("a", None)
    told.presence.set("a", b"1")
    told.presence.set("nobody", None)
    told.presence.flush()
    assert told.diffs == [{"joined": {"a": 1}}]


async def test_a_snapshot_is_what_everybody_has_been_told_so_that_the_next_difference_fits_all() -> None:
    told = Told()
    assert not told.presence
    told.presence.set("a", b"1")
    assert not told.presence
    assert plain(told.presence.snapshot()) == {"snapshot": {}}
    told.presence.flush()
    assert told.presence
    told.presence.set("a", b"2")
    told.presence.set("b", b"1")
    assert plain(told.presence.snapshot()) == {"snapshot": {"a": 1}}
    told.presence.flush()
    assert told.diffs[1:] == [{"joined": {"b": 1}, "updated": {"a": 2}}]


async def test_after_the_end_nothing_is_told() -> None:
    told = Told()
    told.presence.set("a", b"1")
    told.presence.close()
    told.presence.flush()
    assert told.diffs == []
