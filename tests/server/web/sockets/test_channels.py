"""The channels of a carrier: what is held, what waits, and what is closed."""

import asyncio

import pytest
from tests.server.session.guests import until
from tests.server.web.sockets.carriers import Line, Reading

from plait.actor.transport import Frame
from plait.limits import Limits

KIB = 1024
# A mark is sent after 64 KiB, and four may be unanswered.
MARKED = 64 * KIB
# The most that is held for a channel.
HELD = 1024 * KIB


async def opened(line: Line, number: int, path: str) -> Reading:
    line.say(f"{number} {path}")
    await until(lambda: path in line.sessions)
    return line.sessions[path]


async def test_each_channel_has_its_own_messages() -> None:
    line = Line()
    a, b = await opened(line, 1, "/a"), await opened(line, 22, "/b")
    line.say("22 {}", "1 [1]", "22 ")
    line.say_bytes(b"1 \x00\xff 5")
    await until(lambda: len(a.received) + len(b.received) == 4)
    assert (a.received, b.received) == ([b"[1]", b"\x00\xff 5"], [b"{}", b""])
    a.channel.send(Frame(b"to a"))
    b.channel.send(Frame(b"\x00", is_text=False))
    await until(lambda: len(line.told) == 2)
    assert line.told == [(1, b"to a"), (22, b"\x00")]


async def test_messages_before_the_request_is_accepted_wait_for_it() -> None:
    line = Line()
    line.say("1 /wait", "1 join", "1 push")
    await until(lambda: line.waiting)
    session = line.accept("/wait", line.waiting[0])
    await until(lambda: session.received == [b"join", b"push"])


async def test_a_refused_channel_is_closed_and_its_number_is_free() -> None:
    line = Line()
    line.say("1 /refuse", "1 join")
    await until(lambda: line.of(1) == [b"!1006 the request was refused (403)"])
    await opened(line, 1, "/a")
    assert line.close_code is None


async def test_a_peer_closes_a_channel_after_what_it_has_sent_on_it() -> None:
    line = Line()
    a, b = await opened(line, 1, "/a"), await opened(line, 2, "/b")
    a.channel.pause()
    line.say("1 last", "1 !4000 enough")
    a.channel.resume()
    await until(lambda: a.closed == (4000, "enough"))
    assert a.received == [b"last"]
    assert a.has_ended
    assert line.told == []
    line.say("1 late", "2 on")
    await until(lambda: b.received == [b"on"])
    assert (a.received, b.closed) == ([b"last"], None)


@pytest.mark.parametrize("code", ["", "5", "no", "0999", "5000", "40000"])
async def test_a_close_without_a_code_is_1005(code: str) -> None:
    line = Line()
    a = await opened(line, 1, "/a")
    line.say(f"1 !{code}")
    await until(lambda: a.closed == (1005, ""))


@pytest.mark.parametrize(
    "message", ["hello", "1", " {}", "-1 {}", "x1 {}", "1234567890 {}", "1 /a b", "1 /\x07", "2 /ä"]
)
async def test_what_is_no_message_of_a_carrier_closes_it(message: str) -> None:
    line = Line()
    a = await opened(line, 1, "/a")
    line.say(message)
    await until(lambda: line.close_code == 4400)
    assert a.closed is not None
    assert a.has_ended
    assert line.has_ended


async def test_the_end_of_a_carrier_ends_its_channels_after_what_they_have_received() -> None:
    line = Line()
    a = await opened(line, 1, "/a")
    line.say("2 /wait")
    await until(lambda: line.waiting)
    line.say("1 last")
    line.socket.connection_lost(None)
    await until(lambda: a.closed == (1006, ""))
    assert a.received == [b"last"]
    assert a.has_ended
    assert line.has_ended
    # It can no longer be accepted, and the app sees a disconnect.
    assert line.waiting[0].accept(a.end) is None
    await until(lambda: line.disconnects == 1)


# Upwards


async def test_a_thread_that_does_not_read_delays_no_other() -> None:
    line = Line()
    slow, other = await opened(line, 1, "/slow"), await opened(line, 2, "/other")
    slow.channel.pause()
    line.say(*["1 more"] * 200, "2 {}")
    await until(lambda: other.received == [b"{}"])
    assert slow.received == []
    assert line.pipe.is_read
    slow.channel.resume()
    await until(lambda: len(slow.received) == 200)


@pytest.mark.parametrize(("size", "count"), [(1, 256), (60 * KIB, 16)])
async def test_a_carrier_is_not_read_while_a_channel_holds_too_much(size: int, count: int) -> None:
    line = Line()
    slow, other = await opened(line, 1, "/slow"), await opened(line, 2, "/other")
    slow.channel.pause()
    message = f"1 {'x' * size}"
    line.say(*[message] * 2 * count)
    await until(lambda: line.carrier.is_paused)
    line.say("2 {}")
    # Not all is taken: the connection waits for the thread.
    for _ in range(20):
        await asyncio.sleep(0)
    assert not line.pipe.is_read
    assert slow.channel.held <= HELD + size + 4 * KIB
    assert other.received == []
    slow.channel.resume()
    await until(lambda: len(slow.received) == 2 * count)
    await until(lambda: other.received == [b"{}"])
    assert slow.channel.held == 0
    assert line.pipe.is_read


async def test_what_a_carrier_holds_in_all_is_limited() -> None:
    line = Line()
    slow = [await opened(line, number, f"/{number}") for number in range(1, 9)]
    for each in slow:
        each.channel.pause()
    # Each channel stays below its own limit.
    line.say(*[f"{number} {'x' * 100 * KIB}" for _ in range(9) for number in range(1, 9)])
    await until(lambda: line.carrier.is_paused)
    assert sum(each.channel.held for each in slow) <= 4 * HELD + 104 * KIB
    for each in slow:
        each.channel.resume()
    await until(lambda: all(len(each.received) == 9 for each in slow))
    assert line.pipe.is_read


async def test_too_many_requests_that_wait_pause_the_carrier() -> None:
    line = Line()
    line.say(*[f"{number} /wait" for number in range(900)])
    await until(lambda: line.carrier.is_paused)
    assert len(line.carrier.channels) < 300
    accepted = 0
    while accepted < 900:
        await until(lambda: line.waiting)
        line.accept("/wait", line.waiting.pop())
        accepted += 1
    await until(lambda: line.pipe.is_read)


async def test_what_was_held_for_a_closed_channel_is_not_counted() -> None:
    line = Line()
    slow, other = await opened(line, 1, "/slow"), await opened(line, 2, "/other")
    slow.channel.pause()
    line.say(*["1 x"] * 300, "2 {}")
    await until(lambda: line.carrier.is_paused)
    slow.channel.close(1001, "moved")
    await until(lambda: other.received == [b"{}"])
    assert slow.received == []
    assert line.pipe.is_read


async def test_what_a_channel_that_has_stopped_reading_is_sent_pauses_nothing() -> None:
    line = Line()
    stopped, other = await opened(line, 1, "/stopped"), await opened(line, 2, "/other")
    stopped.channel.stop_reading()
    line.say(*["1 x"] * 600, "2 {}")
    await until(lambda: other.received == [b"{}"])
    assert line.pipe.is_read
    stopped.channel.close(1001, "moved")
    assert stopped.received == []


async def test_requests_that_come_too_fast_are_refused() -> None:
    line = Line(limits=Limits(messages_per_second=0.001, message_burst=3))
    line.say(*[f"{number} /{number}" for number in range(5)])
    await until(lambda: len(line.told) == 2)
    assert [(number, text[:6]) for number, text in line.told] == [(3, b"!1013 "), (4, b"!1013 ")]
    assert len(line.sessions) == 3


async def test_no_channel_waits_for_marks_while_the_carrier_is_not_read() -> None:
    line = Line()
    slow, other = await opened(line, 1, "/slow"), await opened(line, 2, "/other")
    for _ in range(8):
        other.channel.send(Frame(b"x" * (MARKED + 1)))
    await until(lambda: len(line.of(2)) == 8)  # Four frames, four marks.
    assert other.channel.is_backed_up
    slow.channel.pause()
    line.say(*["1 x"] * 300)
    await until(lambda: len(line.of(2)) > 8)
    await until(lambda: not other.channel.is_backed_up)
    await until(lambda: line.of(2).count(b"?") == 8)


async def test_a_message_that_is_too_large_closes_its_channel_alone() -> None:
    line = Line(limits=Limits(frame=2000))
    a, b = await opened(line, 1, "/a"), await opened(line, 2, "/b")
    line.say("1 " + "x" * 2000, "1 " + "x" * 2001, "2 {}")
    await until(lambda: b.received == [b"{}"])
    assert a.closed is not None
    assert a.closed[0] == 1009
    assert a.channel.hit == "frame"
    assert line.of(1) == [b"!1009 a message may have at most 2000 bytes"]


# Downwards


async def test_after_four_marks_a_channel_waits_for_the_peer_and_no_other_does() -> None:
    line = Line()
    hot, cold = await opened(line, 1, "/hot"), await opened(line, 2, "/cold")
    for _ in range(100):
        hot.channel.send(Frame(b"x" * 8 * KIB))
    assert hot.channel.is_backed_up
    await until(lambda: not cold.channel.is_backed_up)
    cold.channel.send(Frame(b"cold"))
    await until(lambda: line.of(2) == [b"cold"])
    sent = line.of(1)
    assert sent.count(b"?") == 4
    assert 4 * MARKED < sum(map(len, sent)) < 5 * MARKED
    # After each answer it sends as much again.
    line.say("1 ?")
    await until(lambda: line.of(1).count(b"?") == 5)
    assert hot.drains == 0
    while len(line.of(1)) < 100 + line.of(1).count(b"?"):
        line.say("1 ?")
        await asyncio.sleep(0)
    line.say(*["1 ?"] * 20)
    await until(lambda: hot.drains > 0)
    assert not hot.channel.is_backed_up


async def test_answers_that_were_not_asked_for_give_no_room() -> None:
    line = Line()
    hot = await opened(line, 1, "/hot")
    line.say(*["1 ?"] * 100, "1 x")
    await until(lambda: hot.received == [b"x"])
    for _ in range(100):
        hot.channel.send(Frame(b"x" * 8 * KIB))
    await until(lambda: line.of(1).count(b"?") >= 4)
    for _ in range(20):
        await asyncio.sleep(0)
    assert line.of(1).count(b"?") == 4
    assert hot.channel.is_backed_up


async def test_a_channel_that_overflows_is_closed_alone() -> None:
    line = Line()
    hot, cold = await opened(line, 1, "/hot"), await opened(line, 2, "/cold")
    for _ in range(200):
        hot.channel.send(Frame(b"x" * 8 * KIB))
    assert hot.closed == (1013, "the client reads too slowly")
    assert hot.channel.hit == "write_buffer"
    cold.channel.send(Frame(b"cold"))
    await until(lambda: line.of(2) == [b"cold"])
    assert line.of(1)[-1] == b"!1013 the client reads too slowly"
    assert (line.close_code, cold.closed) == (None, None)
    assert hot.has_ended


async def test_the_channels_of_a_slow_peer_take_turns() -> None:
    line = Line()
    sessions = [await opened(line, number, f"/{number}") for number in range(8)]
    line.fill()
    for each in sessions:
        for _ in range(32):
            each.channel.send(Frame(b"x" * 8 * KIB))
    assert line.told == []
    turns: list[int] = []
    while len(turns) < 16:
        before = len(line.told)
        line.drain()
        line.fill()
        await until(lambda before=before: len(line.told) > before)  # type: ignore[misc]
        turns += dict.fromkeys(number for number, _ in line.told[before:])
    # Who has had no turn for longest is next.
    assert turns[:16] == [*range(8), *range(8)]


async def test_a_closing_channel_sends_what_waits_before_the_code() -> None:
    line = Line()
    hot = await opened(line, 1, "/hot")
    for _ in range(60):
        hot.channel.send(Frame(b"x" * 8 * KIB))
    hot.channel.close(4410, "the thread was destroyed")
    assert hot.closed == (4410, "the thread was destroyed")
    assert not hot.has_ended
    line.say(*["1 ?"] * 4)
    await until(lambda: hot.has_ended)
    frames = [b"x" * 8 * KIB] * 60 + [b"!4410 the thread was destroyed"]
    await until(lambda: [each for each in line.of(1) if each != b"?"] == frames)
    assert line.carrier.channels == {}


async def test_a_closing_channel_waits_for_no_peer_that_has_gone() -> None:
    line = Line()
    hot = await opened(line, 1, "/hot")
    for _ in range(60):
        hot.channel.send(Frame(b"x" * 8 * KIB))
    hot.channel.close(1001, "moved")
    line.socket.connection_lost(None)
    assert hot.has_ended
    assert line.has_ended


async def test_nothing_that_waits_is_sent_by_a_node_that_has_lost_its_threads() -> None:
    line = Line()
    hot, cold = await opened(line, 1, "/hot"), await opened(line, 2, "/cold")
    for _ in range(60):
        hot.channel.send(Frame(b"x" * 8 * KIB))
    await until(lambda: line.of(1).count(b"?") == 4)
    sent = [*line.of(1)]
    cold.channel.send(Frame(b"outdated"))
    # As a node does that the others have found dead.
    line.batcher.drop()
    for each in (hot, cold):
        each.channel.close(1001, "lost")
    line.carrier.cut_off()
    await until(lambda: line.close_code == 1001)
    assert line.of(1) == sent
    assert b"outdated" not in line.of(2)
    assert hot.has_ended
    assert cold.has_ended


async def test_who_waits_for_a_slow_peer_waits_for_its_channel_alone() -> None:
    line = Line()
    hot, cold = await opened(line, 1, "/hot"), await opened(line, 2, "/cold")
    for _ in range(5):
        hot.channel.send(Frame(b"x" * (MARKED + 1)))
    await asyncio.wait_for(cold.channel.drain(), 20)
    waiting = asyncio.create_task(hot.channel.drain())
    await asyncio.sleep(0)
    assert not waiting.done()
    line.say(*["1 ?"] * 4)
    await asyncio.wait_for(waiting, 20)


# The carrier


async def test_a_carrier_without_channels_is_closed() -> None:
    line = Line(patience=0.01)
    await until(lambda: line.close_code == 1001)
    assert line.has_ended


async def test_a_carrier_is_closed_after_its_last_channel() -> None:
    line = Line(patience=0.05)
    a = await opened(line, 1, "/a")
    empty = Line(patience=0.05)
    await until(lambda: empty.close_code == 1001)
    assert line.close_code is None
    line.say("1 !1000")
    await until(lambda: line.close_code == 1001)
    assert a.closed == (1000, "")


async def test_a_carrier_leaves_with_its_last_channel() -> None:
    line = Line()
    a = await opened(line, 1, "/a")
    line.carrier.leave()
    line.say("2 /b")
    await until(lambda: line.of(2) == [b"!1001 the server is shutting down"])
    assert line.close_code is None
    a.channel.close(1001, "the server is shutting down")
    await until(lambda: line.close_code == 1001)
    empty = Line()
    empty.carrier.leave()
    await until(lambda: empty.close_code == 1001)
