"""Who is here: gathered for a moment, told as differences."""

import asyncio
import json
from typing import Any

import msgspec

from plait.actor.presence import Presence
from plait.actor.transport import Frame
from plait_schemas.messages import PresenceDiff


class Told:
    """A presence, and what it has told everybody."""

    def __init__(self) -> None:
        self.diffs: list[Any] = []
        self.presence = Presence(self._take)
        self.news = asyncio.Event()
        # How many snapshots were written.
        self.written = 0

    def snapshot(self) -> Any:
        return json.loads(self.presence.snapshot(self._write).data)

    def _write(self, diff: PresenceDiff) -> Frame:
        self.written += 1
        return Frame(json.dumps(plain(diff)).encode())

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
    told.presence.set("missing", None)
    told.presence.flush()
    assert told.diffs == [{"joined": {"a": 1}}]


async def test_a_snapshot_is_what_everybody_has_been_told_so_that_the_next_difference_fits_all() -> None:
    told = Told()
    assert not told.presence
    told.presence.set("a", b"1")
    assert not told.presence
    assert told.snapshot() == {"snapshot": {}}
    told.presence.flush()
    assert told.presence
    told.presence.set("a", b"2")
    told.presence.set("b", b"1")
    assert told.snapshot() == {"snapshot": {"a": 1}}
    told.presence.flush()
    assert told.diffs[1:] == [{"joined": {"b": 1}, "updated": {"a": 2}}]


async def test_after_the_end_nothing_is_told() -> None:
    told = Told()
    told.presence.set("a", b"1")
    told.presence.close()
    told.presence.flush()
    assert told.diffs == []


async def test_a_snapshot_is_written_once_for_all_who_come_until_others_are_told_something_else() -> None:
    told = Told()
    for data in (b"1", b"2"):
        told.presence.set("a", data)
        told.presence.flush()
        for _ in range(3):
            assert told.snapshot() == {"snapshot": {"a": int(data)}}
        told.presence.set("a", data)
        told.presence.flush()
        assert told.snapshot() == {"snapshot": {"a": int(data)}}
    assert told.written == 2
