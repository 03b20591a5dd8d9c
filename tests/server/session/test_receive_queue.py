"""What a client sends before it can be handled: kept in its order, and handed over a little at a time."""

import asyncio
from itertools import pairwise

from tests.cases import each_case
from tests.server.fakes import FakeTransport
from tests.server.session.guests import until
from tests.server.web.test_fairness import Work, count_iterations

from plait.actor.connection import Connection
from plait.session.receive_queue import ReceiveQueue
from plait.web.fairness import AT_ONCE


class Desk:
    """A queue, and what it has handed over."""

    def __init__(self, work: Work | None = None) -> None:
        self.taken: list[bytes] = []
        self.transport = FakeTransport()
        # What each message costs is counted there.
        self.work = work
        if work is not None:
            self.transport.scheduler = work.scheduler
        self.connection = Connection("a", self.transport, lambda callback: callback(None))
        self.queue = ReceiveQueue(self.connection, self.transport, self._take)

    def _take(self, data: bytes, is_text: bool) -> None:
        self.taken.append(data)
        if self.work is not None:
            self.work.do(data.decode(), AT_ONCE / 4)
        if data == b"hold":
            self.queue.hold()


@each_case("messages", [[b"%d" % n for n in range(60)], [b"%d" % n + b"x" * 20_000 for n in range(5)]])
async def test_between_messages_that_have_waited_others_have_their_turns(messages: list[bytes]) -> None:
    desk = Desk()
    for message in messages:
        desk.queue.receive(message, True)
    desk.queue.release()
    assert 0 < len(desk.taken) < len(messages)
    desk.queue.receive(b"late", True)
    turns: list[int] = []

    def other() -> None:
        turns.append(len(desk.taken))
        if len(desk.taken) <= len(messages):
            asyncio.get_running_loop().call_soon(other)

    other()
    await until(lambda: len(desk.taken) > len(messages))
    assert desk.taken == [*messages, b"late"]
    assert len(set(turns)) > 2
    desk.queue.receive(b"at once", True)
    assert desk.taken[-1] == b"at once"


async def test_messages_of_many_that_are_let_in_at_once_have_their_turns() -> None:
    work = Work()
    desks = [Desk(work) for _ in range(10)]
    messages = [b"%d" % n for n in range(20)]
    for desk in desks:
        for message in messages:
            desk.queue.receive(message, True)
    for desk in desks:
        desk.queue.release()
    assert [len(desk.taken) for desk in desks[1:]] == [0] * 9
    desks[1].queue.hold()
    desks[2].queue.close()
    seen = count_iterations(work)
    others = [desk for desk in desks if desk not in desks[1:3]]
    await until(lambda: all(len(desk.taken) == len(messages) for desk in others))
    assert all(desk.taken == messages for desk in others)
    assert max(len(later) - len(earlier) for earlier, later in pairwise(seen)) < 20
    assert (desks[1].taken, desks[2].taken) == ([], [])
    desks[1].queue.release()
    await until(lambda: desks[1].taken == messages)


async def test_what_is_held_while_it_is_handed_over_waits_until_it_is_released_again() -> None:
    desk = Desk()
    for message in (b"first", b"hold", b"second"):
        desk.queue.receive(message, True)
    desk.queue.release()
    assert desk.taken == [b"first", b"hold"]
    desk.queue.receive(b"third", True)
    desk.queue.release()
    assert desk.taken == [b"first", b"hold", b"second", b"third"]


async def test_what_has_waited_is_forgotten_when_the_connection_is_closed_meanwhile() -> None:
    desk = Desk()
    for n in range(60):
        desk.queue.receive(b"%d" % n, True)
    desk.queue.release()
    count = len(desk.taken)
    desk.queue.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(desk.taken) == count
