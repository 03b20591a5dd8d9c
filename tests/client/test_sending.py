import random
from typing import Any

import msgspec

from plait_client.session import Session
from plait_schemas import messages
from plait_schemas.codec import decode_json
from plait_schemas.messages import Ping
from plait_schemas.patch import Op


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def join(session: Session) -> None:
    session.open()
    session.receive(messages.Joined("s1", "note/a", "e", 1, state=msgspec.Raw(b"{}")))
    session.take_events()


def build_session() -> tuple[Session, Clock]:
    clock = Clock()
    session = Session("c1", now=clock)
    join(session)
    session.take_frames()
    return session, clock


def wait(session: Session, clock: Clock) -> list[Any]:
    """Go on to when something is due."""
    assert session.due is not None
    clock.now = session.due
    session.tick()
    return session.take_frames()


def refusal(refused: str, taken: int | None = None, wait: float = 3.0) -> messages.Error:
    return messages.Error("rate_limited", "slow", refused=refused, retry_after=wait, messages=taken)


def answer(session: Session, taken: int) -> list[Any]:
    """Answer all sent pings, like a server that has accepted this many messages."""
    frames = session.take_frames()
    for frame in frames:
        if isinstance(frame, Ping):
            session.receive(messages.Pong(taken))
    return frames


def data(frames: list[Any]) -> list[Any]:
    return [decode_json(f.data) if isinstance(f, messages.Message | messages.Presence) else f for f in frames]


class Taker:
    """Takes messages as a server does, and refuses some."""

    def __init__(self, dice: random.Random) -> None:
        self.heard: list[Any] = []
        self.answers: list[messages.ServerMessage] = []
        self._dice = dice
        self._next = 1

    def receive(self, frame: messages.ClientMessage | bytes) -> None:
        match frame:
            case Ping(messages=int(count)):
                self._next = count + 1
                self.answers.append(messages.Pong(len(self.heard)))
            case messages.Message() | bytes():
                is_next = self._next == len(self.heard) + 1
                self._next += 1
                if self._dice.random() < 0.2:
                    self.answers.append(refusal("message", len(self.heard), 0.1))
                elif is_next:
                    self.heard.append(frame[0] if isinstance(frame, bytes) else decode_json(frame.data))


def test_whatever_is_refused_all_messages_arrive_once_and_in_order() -> None:
    for seed in range(100):
        dice = random.Random(seed)
        session, clock = build_session()
        taker, sent, carried = Taker(dice), 0, list[Any]()
        for _ in range(20_000):
            if sent < 200 and dice.random() < 0.5:
                if dice.random() < 0.2:
                    session.send_binary(bytes([sent]))
                else:
                    session.send(sent)
                sent += 1
            carried += session.take_frames()
            # Frames and answers are on their way for a while.
            for _ in range(min(dice.randrange(20), len(carried))):
                taker.receive(carried.pop(0))
            for _ in range(min(dice.randrange(20), len(taker.answers))):
                session.receive(taker.answers.pop(0))
            clock.now += 0.02
            session.tick()
            if len(taker.heard) == 200:
                break
        assert taker.heard == list(range(200))


def test_messages_are_asked_about_now_and_then() -> None:
    session, _ = build_session()
    for number in range(100):
        session.send(number)
    frames = session.take_frames()
    assert [frame for frame in frames if isinstance(frame, Ping)] == [Ping(0), Ping(32), Ping(64)]
    assert len(frames) == 64 + 3
    session.receive(messages.Pong(64))
    assert len(session.take_frames()) == 36 + 1


def test_what_is_asked_for_after_messages_that_are_sent_again_waits_for_them() -> None:
    session, clock = build_session()
    session.send("a")
    session.send("b")
    answer(session, 0)
    session.receive(refusal("message", 0))
    session.send("c")
    session.call("later")
    assert answer(session, 0) == [Ping(2)]
    frames = wait(session, clock)
    assert data(frames)[:5] == [Ping(0), "a", "b", Ping(2), "c"]
    assert isinstance(frames[5], messages.Call)
    assert clock.now == 3


def test_a_change_alone_waits_for_the_messages_before_it_that_are_sent_again_too() -> None:
    session, clock = build_session()
    session.send("a")
    answer(session, 0)
    session.receive(refusal("message", 0))
    session.push([Op("add", "/n", 1)])
    assert answer(session, 0) == [Ping(1)]
    *frames, push = wait(session, clock)
    assert data(frames) == [Ping(0), "a", Ping(1)]
    assert isinstance(push, messages.Push)


def test_nothing_is_sent_again_before_all_that_was_on_its_way_is_answered() -> None:
    session, clock = build_session()
    for number in range(64):
        session.send(number)
    session.take_frames()
    session.receive(messages.Pong(0))
    for _ in range(20):
        session.receive(refusal("message", 10, wait=0.001))
    assert session.take_frames() == [Ping(64)]
    clock.now = 1
    session.tick()
    session.receive(messages.Pong(10))
    assert session.take_frames() == []
    assert session.due == 21
    for _ in range(34):
        session.receive(refusal("message", 10, wait=3))
    for _ in range(2):
        assert session.take_frames() == []
        session.receive(messages.Pong(10))
    assert data(wait(session, clock)) == [Ping(10), *range(10, 64), Ping(64)]
    assert clock.now == 4


def test_what_is_sent_again_goes_out_with_the_last_answer_where_the_time_has_passed() -> None:
    session, clock = build_session()
    session.send("a")
    answer(session, 0)
    session.receive(refusal("message", 0))
    clock.now = 5
    session.tick()
    assert answer(session, 0) == [Ping(1)]
    assert data(session.take_frames()) == [Ping(0), "a", Ping(1)]


def test_messages_that_wait_when_a_socket_is_lost_are_sent_on_the_next() -> None:
    session, _ = build_session()
    session.send("on its way")
    session.lost(1006)
    join(session)
    session.send("a")
    session.send("b")
    session.receive(refusal("message", 1))
    session.lost(1006)
    session.take_frames()
    session.open()
    assert session.due == 40
    join(session)
    assert data(session.take_frames())[1:] == [Ping(0), "b", Ping(1)]


def test_what_was_sent_again_is_sent_on_the_next_socket_only_where_it_was_refused_again() -> None:
    session, clock = build_session()
    session.send("a")
    session.send("b")
    session.receive(refusal("message", 0))
    answer(session, 0)
    assert "b" in data(wait(session, clock))
    session.lost(1006)
    join(session)
    assert data(session.take_frames())[1:] == []
    session.send("c")
    session.send("d")
    session.receive(refusal("message", 0))
    answer(session, 0)
    wait(session, clock)
    session.receive(refusal("message", 1))
    session.lost(1006)
    join(session)
    assert data(session.take_frames())[1:] == [Ping(0), "d", Ping(1)]


def test_who_closes_waits_until_it_is_known_that_messages_were_taken() -> None:
    session, clock = build_session()
    session.send("a")
    answer(session, 0)
    session.finish()
    assert session.take_frames() == [Ping(1)]
    session.receive(refusal("message", 0))
    session.receive(messages.Pong(0))
    answer(session, 0)
    assert session.is_busy
    assert "a" in data(wait(session, clock))
    session.receive(messages.Pong(1))
    assert not session.is_busy


def test_who_closes_while_messages_are_to_be_sent_again_on_the_next_socket_waits_for_them() -> None:
    session, _ = build_session()
    session.send("a")
    session.receive(refusal("message", 0))
    session.lost(1006)
    session.open()
    session.finish()
    session.receive(messages.Joined("s1", "note/a", "e", 1, state=msgspec.Raw(b"{}")))
    assert "a" in data(answer(session, 1))
    assert not session.is_busy


def test_of_presences_that_come_too_fast_the_last_one_is_sent_and_from_then_on_they_are_gathered() -> None:
    session, clock = build_session()
    for number in (1, 2, 3):
        session.set_presence(number)
    assert data(session.take_frames()) == [1, 2, 3]
    for seconds in (1, 2):
        session.receive(refusal("presence", wait=seconds))
    for number in (4, 5):
        session.set_presence(number)
    assert session.take_frames() == []
    assert (data(wait(session, clock)), clock.now) == ([5], 2)
    session.set_presence(6)
    session.set_presence(None)
    assert session.take_frames() == []
    assert (data(wait(session, clock)), clock.now) == ([None], 2.05)
    assert session.take_events() == []


def test_a_fresh_token_that_came_too_fast_is_sent_again() -> None:
    session, clock = build_session()
    session.auth("fresh")
    session.take_frames()
    session.receive(refusal("auth"))
    assert wait(session, clock) == [messages.Auth("fresh")]


def test_any_other_error_is_told() -> None:
    session, _ = build_session()
    error = messages.Error("too_large", "a presence has too many bytes")
    session.receive(error)
    assert session.take_events() == [error]
