"""A session without sockets: rules that no script of a conversation covers."""

import sys
import tracemalloc
from typing import Any

import msgspec
import pytest
from tests.cases import each_case
from tests.client.peer import Link, Peer

from plait_client.errors import TooLarge
from plait_client.events import Acked, CallLost, Changed, Dropped, Joined, Nacked
from plait_client.sending import CALLS_AT_ONCE
from plait_client.session import Session
from plait_schemas import messages
from plait_schemas.codec import decode_json
from plait_schemas.frames import decode_server, encode
from plait_schemas.messages import UNANSWERED
from plait_schemas.patch import Op, PatchError, splice


class Clock:
    """Seconds that go by when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def build_session(state: Any = None, version: int = 3, *, clock: Clock | None = None, **joined: Any) -> Session:
    """Return a session that has joined a thread with this state."""
    session = Session("c1", now=clock or Clock())
    session.open()
    join(session, version, state=state or {"n": 1}, **joined)
    session.take_frames()
    session.take_events()
    return session


def receive(session: Session, type: str, **fields: Any) -> None:
    session.receive(decode_server(msgspec.json.encode({"type": type, **fields})))


def join(session: Session, version: int, **fields: Any) -> None:
    receive(session, "joined", **{"connection": "s1", "thread": "note/a", "epoch": "e", "version": version, **fields})


def take(session: Session) -> list[Any]:
    """Return the sent frames, without frames that count messages."""
    frames = [frame for frame in session.take_frames() if not is_count(frame)]
    return [frame if isinstance(frame, bytes) else decode_json(encode(frame)) for frame in frames]


def is_count(frame: object) -> bool:
    return isinstance(frame, messages.Ping) and frame.messages is not None


def set_n(session: Session, value: Any) -> None:
    session.push([Op("replace", "/n", value)])


# Changing


def test_a_call_whose_arguments_cannot_be_encoded_leaves_nothing_behind() -> None:
    session = build_session()
    with pytest.raises(TypeError):
        session.call("add", [object()])
    session.lost(1006)
    assert session.take_events() == []


def test_what_does_not_fit_what_is_shown_is_refused_at_once_and_not_pushed() -> None:
    session = build_session()
    with pytest.raises(PatchError):
        session.push([Op("replace", "/n", 2), Op("remove", "/nowhere")])
    assert session.shown == {"n": 1}
    assert session.take_frames() == []
    set_n(session, 2)
    assert [push.ref for push in session.pending] == [1]


def test_keys_that_mean_something_else_in_javascript_are_keys_like_any_other() -> None:
    session = build_session()
    ops = [Op("add", "/__proto__", {}), Op("add", "/__proto__/constructor", 1), Op("add", "/prototype", 2)]
    session.push(ops)
    assert session.shown == {"n": 1, "__proto__": {"constructor": 1}, "prototype": 2}
    assert [op["path"] for op in take(session)[0]["ops"]] == [op.path for op in ops]


def test_what_is_pushed_is_a_copy() -> None:
    session = build_session()
    tags = ["a"]
    session.push([Op("add", "/tags", tags)])
    tags.append("b")
    assert session.shown == {"n": 1, "tags": ["a"]}
    assert take(session)[0]["ops"] == [{"op": "add", "path": "/tags", "value": ["a"]}]


def test_no_more_pushes_than_the_server_remembers_are_without_an_answer() -> None:
    session = build_session()
    for value in range(2, 102):
        set_n(session, value)
    assert [frame["ref"] for frame in take(session)] == list(range(1, UNANSWERED + 1))
    assert len(session.pending) == 100
    receive(session, "ack", ref=1, version=4)
    assert [frame["ref"] for frame in take(session)] == [65]
    assert session.shown == {"n": 101}


def test_a_push_that_had_to_wait_names_the_version_on_which_it_was_made() -> None:
    session = build_session()
    for value in range(2, 67):
        set_n(session, value)
    session.take_frames()
    receive(session, "ack", ref=1, version=4)
    (push,) = take(session)
    assert (push["ref"], push["base"], push["made"]) == (65, ["e", 4], ["e", 3])


def test_all_that_is_pending_goes_out_again_in_windows() -> None:
    session = build_session()
    session.lost(1006)
    for value in range(2, 72):
        set_n(session, value)
    session.open()
    session.take_frames()
    join(session, 3)
    assert [frame["ref"] for frame in take(session)] == list(range(1, 65))
    for ref in range(1, 7):
        receive(session, "ack", ref=ref, version=3 + ref)
    assert [frame["ref"] for frame in take(session)] == list(range(65, 71))


def test_a_call_waits_for_the_pushes_before_it_to_be_sent_and_for_no_others() -> None:
    session = build_session()
    for value in range(2, 72):
        set_n(session, value)
    session.call("count")
    for value in range(100):
        set_n(session, value)
    session.take_frames()
    session.lost(1006)
    assert session.take_events() == []
    session.open()
    join(session, 3)
    session.take_frames()
    for ref in range(1, 7):
        receive(session, "ack", ref=ref, version=3 + ref)
    assert [(frame["type"], frame["ref"]) for frame in take(session)][-2:] == [("push", 70), ("call", 1)]


def test_calls_above_those_that_the_server_lets_wait_are_sent_in_order_as_others_end() -> None:
    session = build_session()
    refs = [session.call("count") for _ in range(CALLS_AT_ONCE + 3)]
    session.send("after them")
    set_n(session, 2)
    assert [frame["ref"] for frame in take(session)] == refs[:CALLS_AT_ONCE]
    receive(session, "result", ref=refs[7], done=True, value=1)
    assert [frame["ref"] for frame in take(session)] == [refs[CALLS_AT_ONCE]]
    receive(session, "result", ref=refs[8], done=False, value=1)
    assert take(session) == []
    receive(session, "error", ref=refs[8], code="call_failed", message="no")
    assert [frame["ref"] for frame in take(session)] == [refs[CALLS_AT_ONCE + 1]]
    session.cancel(refs[0])
    assert [frame["type"] for frame in take(session)] == ["cancel", "call", "message", "push"]


def test_a_call_that_waits_for_others_to_end_is_sent_on_the_next_socket_and_may_be_cancelled() -> None:
    session = build_session()
    refs = [session.call("count") for _ in range(CALLS_AT_ONCE + 2)]
    session.take_frames()
    session.cancel(refs[-1])
    assert take(session) == []
    session.lost(1006)
    assert len(session.take_events()) == CALLS_AT_ONCE
    session.open()
    join(session, 3)
    assert [frame.get("ref") for frame in take(session)] == [None, refs[-2]]


def test_a_call_ends_at_the_same_cost_however_many_wait() -> None:
    def count_calls(waiting: int) -> int:
        session = build_session()
        refs = [session.call("count") for _ in range(CALLS_AT_ONCE + waiting)]
        count = 0

        def note(frame: object, event: str, arg: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            receive(session, "result", ref=refs[0], done=True, value=1)
        finally:
            sys.setprofile(None)
        return count

    assert count_calls(4_000) == count_calls(100)


def throttled(*delays: float) -> tuple[Session, Clock]:
    """Return a session whose pushes came too fast; each was told its time to wait."""
    session = build_session(clock=(clock := Clock()))
    for n in range(len(delays)):
        set_n(session, 2 + n)
    session.take_frames()
    for ref, delay in enumerate(delays, 1):
        receive(session, "nack", ref=ref, code="rate_limited", message="slow", version=3, retry_after=delay)
    return session, clock


def test_what_is_after_pushes_that_came_too_fast_goes_out_when_they_are_answered_one_by_one() -> None:
    session, clock = throttled(1, 2)
    session.send("one")
    session.send_binary(b"two")
    session.call("three")
    clock.now += 2
    session.tick()
    assert [frame["ref"] for frame in take(session)] == [1, 2]
    receive(session, "ack", ref=1, version=4)
    receive(session, "ack", ref=2, version=5)
    assert take(session) == []
    for expected in ({"type": "message", "data": "one"}, b"two", {"type": "call", "ref": 1, "method": "three"}):
        assert session.due == clock.now + 2
        clock.now += 2
        session.tick()
        assert take(session) == [expected]


def test_what_is_after_a_call_that_is_cancelled_before_it_was_sent_goes_out_at_once() -> None:
    session, clock = throttled(1.0)
    ref = session.call("slow")
    set_n(session, 9)
    clock.now += 1.0
    session.tick()
    session.take_frames()
    receive(session, "ack", ref=1, version=4)
    assert take(session) == []
    session.cancel(ref)
    assert [(frame["type"], frame["ref"]) for frame in take(session)] == [("push", 2)]


def test_pending_pushes_keep_their_operations_and_not_the_states_that_they_make() -> None:
    session = build_session({"n": 1, "numbers": list(range(20_000))})
    tracemalloc.start()
    try:
        for index in range(300):
            session.push([Op("replace", f"/numbers/{index}", -1)])
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert session.shown["numbers"][299:301] == [-1, 300]
    assert size < 10_000_000


def test_pushes_do_not_take_the_place_of_what_was_said_before_them() -> None:
    clock = Clock()
    session = build_session(clock=clock)
    set_n(session, 2)
    session.take_frames()
    receive(session, "nack", ref=1, code="rate_limited", message="slow", version=3, retry_after=2)
    session.send("text")
    set_n(session, 3)
    clock.now += 2
    session.tick()
    session.take_frames()
    receive(session, "ack", ref=1, version=4)
    receive(session, "nack", ref=2, code="rate_limited", message="slow", version=3, retry_after=1)
    clock.now += 1
    session.tick()
    assert take(session) == []
    clock.now += 1
    session.tick()
    assert [frame["type"] for frame in take(session)] == ["message", "push"]


def test_a_frame_that_is_read_when_the_time_of_a_message_has_come_does_not_put_it_off() -> None:
    clock = Clock()
    session = build_session(clock=clock)
    set_n(session, 2)
    session.take_frames()
    receive(session, "nack", ref=1, code="rate_limited", message="slow", version=3, retry_after=0.5)
    session.send("text")
    clock.now += 0.5
    session.tick()
    session.take_frames()
    receive(session, "ack", ref=1, version=4)
    assert take(session) == []
    assert session.due == clock.now + 0.5
    clock.now += 0.51
    receive(session, "message", data="of another")
    assert session.due is not None
    assert session.due <= clock.now
    session.tick()
    assert [frame["type"] for frame in take(session)] == ["message"]


def test_a_server_that_takes_so_many_messages_a_second_refuses_nothing_but_pushes() -> None:
    clock = Clock()
    peer = Peer({"n": 1})
    session = Session("c1", now=clock)
    link = Link(session.receive)
    session.open()
    tokens, refused, taken = 5.0, [], []

    def deliver() -> None:
        nonlocal tokens
        while frames := session.take_frames():
            for frame in frames:
                if isinstance(frame, messages.Ping):
                    peer.receive(link, frame)
                elif tokens >= 1:
                    tokens -= 1
                    taken.append(frame if isinstance(frame, bytes) else type(frame).__name__)
                    if not isinstance(frame, bytes):
                        peer.receive(link, frame)
                elif isinstance(frame, messages.Push):
                    wait = (1 - tokens) / 8
                    link.send(messages.Nack(frame.ref, "rate_limited", "", peer.version, retry_after=wait))
                else:
                    refused.append(frame)

    deliver()
    for value in range(10):
        set_n(session, value + 2)
    deliver()
    session.send("text")
    session.send_binary(b"bytes")
    session.call("add", [1])
    for value in range(10):
        set_n(session, value + 20)
    session.call("add", [2])
    deliver()
    while session.is_busy:
        assert session.due is not None
        elapsed, clock.now = session.due - clock.now, session.due
        tokens += elapsed * 8
        session.tick()
        deliver()
    assert refused == []
    assert [name for name in taken if name != "Push"] == ["Join", "Message", b"bytes", "Call", "Call"]
    assert (taken.index("Message"), taken[-1], taken.count("Push")) == (11, "Call", 20)


def test_messages_that_wait_for_pushes_are_sent_on_the_next_socket_when_this_one_is_lost() -> None:
    session = build_session()
    for value in range(2, 72):
        set_n(session, value)
    session.send("text")
    session.send_binary(b"bytes")
    session.lost(1006)
    session.open()
    join(session, 3)
    assert {frame["type"] for frame in take(session)} == {"join", "push"}
    for ref in range(1, 7):
        receive(session, "ack", ref=ref, version=3 + ref)
    *pushes, message, binary = take(session)
    assert [frame["type"] for frame in (*pushes, message)] == ["push"] * 6 + ["message"]
    assert binary == b"bytes"


def test_a_binary_message_is_not_sent_before_the_answer_to_the_join() -> None:
    session = build_session()
    session.lost(1006)
    session.send_binary(b"bytes")
    session.open()
    assert [frame["type"] for frame in take(session)] == ["join"]
    join(session, 3)
    assert take(session) == [b"bytes"]


def test_binary_messages_keep_their_place_among_all_that_is_sent() -> None:
    session = build_session()
    session.send_binary(b"one")
    session.send("two")
    session.send_binary(b"three")
    set_n(session, 4)
    session.send_binary(b"five")
    session.call("six")
    one, two, three, four, five, six = take(session)
    assert (one, two["data"], three, four["ref"], five, six["method"]) == (b"one", "two", b"three", 1, b"five", "six")


def test_messages_that_were_on_their_way_are_lost_with_the_socket() -> None:
    session = build_session()
    session.send("text")
    session.send_binary(b"bytes")
    session.open()
    session.take_frames()
    join(session, 3)
    assert take(session) == []


# Numbers


def test_a_client_whose_id_was_used_before_goes_on_with_its_numbers() -> None:
    session = build_session(last_ref=7)
    set_n(session, 2)
    assert [frame["ref"] for frame in take(session)] == [8]


def test_pushes_that_never_left_are_not_among_those_that_were_answered_for() -> None:
    session = build_session()
    session.lost(1006)
    set_n(session, 2)
    set_n(session, 3)
    session.open()
    session.take_frames()
    join(session, 3, last_ref=4)
    assert [frame["ref"] for frame in take(session)] == [5, 6]
    assert session.shown == {"n": 3}


def test_a_settled_push_that_the_server_no_longer_counts_is_refused() -> None:
    session = build_session()
    set_n(session, 2)
    for last_ref in (1, 0):
        session.open()
        join(session, 3, last_ref=last_ref, state={"n": 1})
        assert session.shown == {"n": 1}
    assert [event.answer.code for event in session.take_events() if isinstance(event, Nacked)] == ["conflict"]
    assert session.pending == []


def test_a_settled_push_of_the_largest_size_is_asked_about_in_a_frame_that_the_server_takes() -> None:
    limit = 500
    session = build_session(max_frame=limit)
    set_n(session, "x" * 414)
    (first,) = session.take_frames()
    assert isinstance(first, messages.Push)
    assert len(encode(first)) == limit
    session.open()
    session.take_frames()
    join(session, 4, last_ref=1, state={"n": "x" * 414}, max_frame=limit)
    (again,) = session.take_frames()
    assert isinstance(again, messages.Push)
    assert (again.ref, again.made, again.ops) == (1, ("e", 3), [])
    assert len(encode(again)) <= limit


def test_a_settled_push_is_done_with_whatever_version_its_answer_names() -> None:
    session = build_session()
    set_n(session, 2)
    session.open()
    join(session, 1, epoch="f", last_ref=1, state={"n": 0})
    session.take_events()
    receive(session, "ack", ref=1, version=900)
    (acked,) = session.take_events()
    assert isinstance(acked, Acked)
    assert not session.needs_socket
    assert (session.version, session.confirmed) == (1, {"n": 0})


def test_an_answer_to_nothing_that_is_pending_is_ignored() -> None:
    session = build_session()
    receive(session, "ack", ref=9, version=3)
    receive(session, "nack", ref=9, code="rejected", message="no", version=3)
    assert session.take_events() == []
    assert not session.needs_socket


def test_an_ack_of_a_later_version_for_nothing_that_is_pending_is_a_gap() -> None:
    session = build_session()
    receive(session, "ack", ref=9, version=4)
    assert session.needs_socket


def test_an_ack_with_operations_for_nothing_that_is_pending_is_a_change() -> None:
    session = build_session()
    receive(session, "ack", ref=9, version=4, ops=[{"op": "replace", "path": "/n", "value": 2}])
    (changed,) = session.take_events()
    assert isinstance(changed, Changed)
    assert (changed.version, session.shown, session.status) == (4, {"n": 2}, "online")


def test_many_gaps_in_flight_make_the_client_send_once() -> None:
    session = build_session(last_ref=20)
    for value in range(2, 12):
        set_n(session, value)
    session.take_frames()
    for ref in range(21, 31):
        receive(session, "nack", ref=ref, code="gap", message="gap", version=3, expected=5)
    assert [frame["ref"] for frame in take(session)] == list(range(5, 15))
    for ref in range(5, 15):
        receive(session, "ack", ref=ref, version=ref - 1)
    assert session.pending == []
    assert session.confirmed == {"n": 11}


def test_a_refusal_for_haste_that_comes_late_is_waited_for() -> None:
    session, clock = throttled(1, 3)
    assert session.due == clock.now + 3
    clock.now += 3
    session.tick()
    assert [frame["ref"] for frame in take(session)] == [1, 2]


def test_a_late_refusal_for_haste_of_what_was_sent_again_already_does_not_send_it_once_more() -> None:
    session = build_session(clock=(clock := Clock()))
    for value in (2, 3, 4):
        set_n(session, value)
    session.take_frames()
    receive(session, "nack", ref=1, code="gap", message="gap", version=3, expected=1)
    assert [frame["ref"] for frame in take(session)] == [1, 2, 3]
    for ref in (2, 3):
        receive(session, "nack", ref=ref, code="rate_limited", message="slow", version=3, retry_after=1)
    clock.now += 1
    session.tick()
    assert take(session) == []
    for ref in (1, 2, 3):
        receive(session, "ack", ref=ref, version=3 + ref)
    assert (session.pending, session.confirmed, session.status) == ([], {"n": 4}, "online")


def test_a_refusal_for_haste_that_does_not_say_for_how_long_is_waited_for_a_second() -> None:
    session = build_session(clock=(clock := Clock()))
    set_n(session, 2)
    session.take_frames()
    receive(session, "nack", ref=1, code="rate_limited", message="slow", version=3)
    assert session.due == clock.now + 1
    clock.now += 1
    session.tick()
    assert [frame["ref"] for frame in take(session)] == [1]


def test_a_new_socket_ends_the_wait_of_the_old_one() -> None:
    session = build_session()
    set_n(session, 2)
    receive(session, "nack", ref=1, code="rate_limited", message="slow", version=3, retry_after=1000)
    session.open()
    session.take_frames()
    join(session, 3)
    assert [frame["ref"] for frame in take(session)] == [1]


# What is shown


def test_what_did_not_change_is_the_same_object() -> None:
    session = build_session({"a": {"x": [1]}, "b": {"y": 1}})
    a, b = session.shown["a"], session.shown["b"]
    session.push([Op("replace", "/b/y", 2)])
    assert session.shown["a"] is a
    receive(session, "change", version=4, ops=[{"op": "add", "path": "/c", "value": 1}], source="s2")
    assert session.shown["a"] is a
    assert session.confirmed["b"] is b


def test_an_accepted_push_leaves_the_very_object_that_is_shown() -> None:
    session = build_session()
    set_n(session, 2)
    receive(session, "change", version=4, ops=[{"op": "add", "path": "/c", "value": 1}], source="s2")
    shown = session.shown
    receive(session, "ack", ref=1, version=5, rebased=True)
    assert session.shown is shown
    assert session.confirmed == shown


def test_an_ack_without_operations_means_those_that_were_sent() -> None:
    session = build_session({"items": ["a", "b"]})
    session.push([Op("replace", "/items/0", "m")])
    receive(session, "change", version=4, ops=[{"op": "add", "path": "/items/0", "value": "o"}], source="s2")
    assert session.shown == {"items": ["o", "m", "b"]}
    receive(session, "ack", ref=1, version=5, rebased=True)
    assert session.shown == session.confirmed == {"items": ["m", "a", "b"]}


def test_pushes_after_one_that_was_applied_otherwise_are_moved() -> None:
    session = build_session({"items": ["a", "b"]})
    session.push([Op("replace", "/items/0", "m")])
    session.push([Op("replace", "/items/1", "B")])
    applied = [{"op": "replace", "path": "/items/0", "value": "M"}, {"op": "add", "path": "/items/0", "value": "z"}]
    receive(session, "ack", ref=1, version=4, rebased=True, ops=applied)
    assert session.shown == {"items": ["z", "M", "B"]}


def test_a_push_made_on_settled_ones_is_moved_only_over_what_others_did() -> None:
    session = build_session({"items": ["a"]})
    session.push([Op("add", "/items/0", {"t": "m"})])
    session.take_frames()
    session.push([Op("replace", "/items/0/t", "M")])
    session.open()
    session.take_frames()
    join(
        session,
        5,
        last_ref=1,
        ops=[
            {"op": "add", "path": "/items/0", "value": {"t": "m"}},
            {"op": "add", "path": "/items/0", "value": "o"},
        ],
    )
    assert session.shown == {"items": ["o", {"t": "M"}, "a"]}
    assert take(session)[1]["ops"] == [{"op": "replace", "path": "/items/1/t", "value": "M"}]


def test_a_pending_push_is_moved_over_a_whole_state() -> None:
    session = build_session({"items": ["a", "b"]})
    session.push([Op("replace", "/items/1", "B")])
    receive(session, "snapshot", epoch="e", version=9, state={"items": ["x", "a", "b"]})
    assert session.shown == {"items": ["x", "a", "B"]}


@each_case("items", [["x", "a"], ["b", "x", "a"], ["x"], []])
@each_case("is_join", [False, True])
def test_a_pending_removal_hits_its_own_element_in_a_whole_state_or_none(items: list[str], is_join: bool) -> None:
    session = build_session({"items": ["a", "b", "c"]})
    session.push([Op("remove", "/items/1")])
    state = {"items": items}
    if is_join:
        session.open()
        join(session, 9, state=state)
    else:
        receive(session, "snapshot", epoch="e", version=9, state=state)
    assert session.shown == {"items": [item for item in items if item != "b"]}


@each_case("is_join", [False, True])
@each_case("texts", [["/note"], []])
def test_what_is_typed_keeps_its_place_in_a_whole_state_that_others_have_changed_around_it(
    texts: list[str], is_join: bool
) -> None:
    session = build_session({"note": "abcdef"}, texts=texts)
    session.push([splice("/note", 3, 0, "!")])
    state = {"note": "aXbcdYef"}
    if is_join:
        session.open()
        join(session, 9, state=state, texts=texts)
    else:
        receive(session, "snapshot", epoch="e", version=9, state=state)
    assert session.shown == {"note": "aXbc!dYef"}


def test_what_is_deleted_in_a_text_is_not_brought_back_by_a_whole_state() -> None:
    session = build_session({"cards": [{"id": 1, "body": "abcdef"}, {"id": 2, "body": ""}]}, texts=["/cards/*/body"])
    session.push([splice("/cards/0/body", 2, 1)])
    session.open()
    join(session, 9, state={"cards": [{"id": 2, "body": ""}, {"id": 1, "body": "aXbcdYef"}]}, texts=["/cards/*/body"])
    assert session.shown["cards"][1] == {"id": 1, "body": "aXbdYef"}
    assert session.shown["cards"][0] == {"id": 2, "body": ""}


@pytest.mark.parametrize("is_whole", [False, True])
def test_thousands_of_letters_typed_offline_in_a_long_text_are_all_there_after_it(is_whole: bool) -> None:
    peer = Peer({"note": "word " * 20_000, "n": 0})
    peer.texts = ["/note"]
    session = Session("c1", now=Clock())
    arrived: list[messages.ServerMessage] = []
    session.open()
    peer.join(link := Link(arrived.append), messages.Join("c1"))
    session.receive(arrived.pop())
    session.lost(1006)
    peer.leave(link)
    for count in range(2000):
        session.push([splice("/note", 50_000 + count, 0, "x")])
    peer.change([splice("/note", 49_990, 20, "12345")])
    session.open()
    session.take_frames()
    peer.join(link := Link(arrived.append), messages.Join("c1", None if is_whole else ("e", 0)), whole=is_whole)
    while arrived:
        session.receive(arrived.pop(0))
        frames = [frame for frame in session.take_frames() if isinstance(frame, messages.Push)]
        assert len(frames) <= UNANSWERED
        assert sum(len(encode(frame)) for frame in frames) < UNANSWERED * 250
        for frame in frames:
            peer.push(link, frame)
            if frame.ref % 100 == 0:
                peer.change([splice("/note", 0, 0, "y")])
    assert session.pending == []
    assert session.shown == session.confirmed == peer.state
    assert "12345" + "x" * 2000 in peer.state["note"]
    assert peer.state["note"].count("x") == 2000


def test_a_string_of_which_no_push_changes_a_part_is_replaced_whole() -> None:
    session = build_session({"note": "abcdef", "status": "open"})
    session.push([Op("replace", "/status", "closed")])
    receive(session, "snapshot", epoch="e", version=9, state={"note": "abc", "status": "opened"})
    assert session.shown == {"note": "abc", "status": "closed"}


def test_a_push_that_was_applied_otherwise_does_not_let_those_after_it_hit_others() -> None:
    session = build_session({"items": ["a", "b", "c"]})
    set_items = Op("replace", "/items", ["b", "c"])
    session.push([Op("remove", "/items/0")])
    session.push([Op("remove", "/items/1")])
    session.take_frames()
    receive(session, "change", version=4, ops=[{"op": "add", "path": "/other", "value": 1}], source="s2")
    applied = [{"op": set_items.op, "path": set_items.path, "value": ["c", "b"]}]
    receive(session, "ack", ref=1, version=5, rebased=True, ops=applied)
    assert session.shown["items"] == ["b"]


def test_a_join_that_tells_nothing_but_a_version_that_is_not_known_is_a_gap() -> None:
    session = build_session()
    session.open()
    join(session, 4)
    assert session.needs_socket
    session.open()
    assert take(session) == [{"type": "join", "client": "c1"}]


def test_a_change_is_told_with_what_was_before_and_whose_it_was() -> None:
    session = build_session()
    receive(session, "change", version=4, ops=[{"op": "replace", "path": "/n", "value": 2}], source="s2")
    set_n(session, 3)
    receive(session, "ack", ref=1, version=5)
    first, second, acked = session.take_events()
    assert isinstance(first, Changed)
    assert isinstance(second, Changed)
    assert (first.before, first.after, first.version, first.source) == ({"n": 1}, {"n": 2}, 4, "s2")
    assert (second.before, second.after, second.version, second.source) == ({"n": 2}, {"n": 3}, 5, "s1")
    assert isinstance(acked, Acked)


def test_a_refusal_is_told_with_the_answer() -> None:
    session = build_session()
    set_n(session, 2)
    receive(session, "nack", ref=1, code="rejected", message="no", version=3, path="/n")
    (nacked,) = session.take_events()
    assert isinstance(nacked, Nacked)
    assert (nacked.push.ref, nacked.answer.path) == (1, "/n")


# Joining


def test_the_join_shows_what_the_client_is() -> None:
    session = Session("c1", now=Clock(), schema="9c41")
    session.open("secret")
    assert take(session) == [{"type": "join", "client": "c1", "schema": "9c41", "token": "secret"}]


def test_what_comes_on_a_socket_that_was_given_up_is_not_looked_at() -> None:
    session = build_session()
    receive(session, "change", version=9, ops=[], source="s2")
    assert session.needs_socket
    receive(session, "change", version=4, ops=[{"op": "replace", "path": "/n", "value": 2}], source="s2")
    assert session.version == 3


def test_what_comes_before_the_answer_to_the_join_is_not_looked_at() -> None:
    session = Session("c1", now=Clock())
    session.open()
    receive(session, "change", version=4, ops=[], source="s2")
    receive(session, "message", data=1)
    assert session.take_events() == []
    join(session, 3, state={"n": 1})
    assert session.shown == {"n": 1}


def test_a_joined_session_says_who_and_where_it_is() -> None:
    session = build_session(readonly=True, connection="s7")
    assert (session.connection, session.thread, session.is_readonly) == ("s7", "note/a", True)
    statuses = [session.status]
    for code in (1006, 4404):
        session.lost(code)
        statuses.append(session.status)
    assert statuses == ["online", "offline", "closed"]
    assert session.stopped == 4404


def test_a_session_is_connecting_until_it_has_joined_or_failed_to() -> None:
    session = Session("c1", now=Clock())
    statuses = [session.status]
    session.open()
    statuses.append(session.status)
    session.lost(1006)
    statuses.append(session.status)
    session.open()
    statuses.append(session.status)
    join(session, 1, state={"n": 1})
    assert [*statuses, session.status] == ["connecting", "connecting", "offline", "offline", "online"]


def test_a_socket_that_is_closed_for_the_size_of_a_frame_before_the_join_was_not_closed_for_a_push() -> None:
    session = build_session()
    set_n(session, "x" * 70_000)
    session.lost(1006)
    session.open()
    session.lost(1009)
    session.open()
    session.take_frames()
    join(session, 3)
    assert [frame["ref"] for frame in take(session)] == [1]


# Size


def push_frame(value: Any, ref: int = 1) -> bytes:
    return encode(messages.Push(ref, ("e", 3), ops=[Op("replace", "/n", value)]))


def refusals(session: Session) -> list[tuple[int, str]]:
    return [(each.push.ref, each.answer.code) for each in session.take_events() if isinstance(each, Nacked)]


def test_a_push_of_the_size_that_the_server_takes_is_sent_and_one_that_is_a_byte_larger_is_refused() -> None:
    session = build_session(max_frame=len(push_frame("éé")))
    set_n(session, "éé")
    (sent,) = session.take_frames()
    assert not isinstance(sent, bytes)
    assert encode(sent) == push_frame("éé")
    receive(session, "nack", ref=1, code="rejected", message="no", version=3)
    session.take_events()
    set_n(session, "éé!")
    assert take(session) == []
    assert refusals(session) == [(2, "too_large")]
    assert session.shown == {"n": 1}


def test_a_push_that_is_refused_for_its_size_leaves_no_gap_and_those_after_it_are_moved() -> None:
    session = build_session({"items": ["a", "b"]}, max_frame=200)
    session.push([Op("add", "/items/-", "c")])
    session.push([Op("add", "/items/0", {"text": "x" * 200})])
    session.push([Op("replace", "/items/1", "B")])
    assert [(frame["ref"], frame["ops"][0]["path"]) for frame in take(session)] == [(1, "/items/-"), (2, "/items/1")]
    assert session.shown == {"items": ["a", "B", "c"]}
    receive(session, "ack", ref=1, version=4)
    receive(session, "ack", ref=2, version=5)
    assert session.confirmed == session.shown


def test_what_was_changed_without_a_connection_is_looked_at_for_its_size_when_the_client_has_joined() -> None:
    session = build_session({"items": ["a"]})
    session.lost(1006)
    session.push([Op("replace", "/items/0", "A")])
    session.push([Op("add", "/items/0", {"text": "x" * 200})])
    session.push([Op("replace", "/items/0/text", "y")])
    session.push([Op("replace", "/items/1", "AA")])
    session.open()
    session.take_frames()
    join(session, 3, max_frame=200)
    assert [(frame["ref"], frame["ops"][0]["path"]) for frame in take(session)] == [(1, "/items/0"), (2, "/items/0")]
    assert refusals(session) == [(2, "too_large"), (2, "conflict")]
    assert session.shown == {"items": ["AA"]}
    assert [push.ref for push in session.pending] == [1, 2]


def test_a_push_that_has_been_answered_for_is_not_refused_for_its_size() -> None:
    session = build_session()
    set_n(session, "x" * 200)
    session.open()
    session.take_frames()
    join(session, 4, last_ref=1, ops=[{"op": "replace", "path": "/n", "value": "x" * 200}], max_frame=200)
    assert [frame["ref"] for frame in take(session)] == [1]
    assert refusals(session) == []


def test_a_call_or_message_that_is_too_large_raises_and_leaves_nothing_behind() -> None:
    session = build_session(max_frame=100)
    with pytest.raises(TooLarge, match="more than the 100 bytes"):
        session.call("add", ["x" * 100])
    with pytest.raises(TooLarge):
        session.send("x" * 100)
    with pytest.raises(TooLarge):
        session.send_binary(b"x" * 101)
    session.send_binary(b"x" * 100)
    assert take(session) == [b"x" * 100]
    assert session.call("add") == 1
    assert [frame["type"] for frame in take(session)] == ["call"]


def test_a_call_or_message_that_waited_for_a_socket_that_takes_less_is_not_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = build_session()
    for value in range(2, 67):
        set_n(session, value)
    session.send("x" * 300)
    ref = session.call("add", ["x" * 300])
    session.call("count")
    session.lost(1006)
    session.open()
    session.take_frames()
    join(session, 3, max_frame=200)
    assert session.take_events() == [Joined()]
    receive(session, "ack", ref=1, version=4)
    assert [frame["type"] for frame in take(session)][-2:] == ["push", "call"]
    (dropped,) = [each for each in session.take_events() if isinstance(each, Dropped)]
    assert (dropped.ref, dropped.error.limit) == (ref, 200)
    assert len(caplog.records) == 1


def test_a_presence_that_is_too_large_raises_and_the_one_before_is_kept() -> None:
    session = build_session(max_frame=100)
    session.set_presence({"name": "Ada"})
    with pytest.raises(TooLarge):
        session.set_presence({"name": "A" * 100})
    session.lost(1006)
    with pytest.raises(TooLarge):
        session.set_presence({"name": "A" * 100})
    session.open()
    session.take_frames()
    join(session, 3, max_frame=100)
    assert [frame["data"] for frame in take(session)] == [{"name": "Ada"}]


def test_a_presence_that_is_too_large_for_a_socket_is_sent_on_the_next_that_takes_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = build_session()
    session.set_presence({"name": "A" * 100})
    session.open()
    session.take_frames()
    join(session, 3, max_frame=100)
    assert take(session) == []
    session.open()
    session.take_frames()
    join(session, 3, max_frame=100)
    assert take(session) == []
    assert len(caplog.records) == 1
    session.open()
    session.take_frames()
    join(session, 3)
    assert [frame["data"] for frame in take(session)] == [{"name": "A" * 100}]


# Calls


def test_calls_have_numbers_of_their_own_and_each_gets_its_results() -> None:
    session = build_session()
    assert session.call("add", ["Ada"], {"team": "red"}) == 1
    assert session.call("count") == 2
    assert take(session) == [
        {"type": "call", "ref": 1, "method": "add", "args": ["Ada"], "kwargs": {"team": "red"}},
        {"type": "call", "ref": 2, "method": "count"},
    ]
    receive(session, "result", ref=2, value=1, done=False)
    receive(session, "error", ref=1, code="call_failed", message="no")
    receive(session, "result", ref=2, value=3, done=True)
    assert [getattr(each, "ref", None) for each in session.take_events()] == [2, 1, 2]


def test_a_call_under_way_is_lost_with_the_socket_and_not_sent_again() -> None:
    session = build_session()
    session.call("add")
    session.take_frames()
    session.lost(1006)
    assert session.take_events() == [CallLost(1)]
    session.open()
    session.take_frames()
    join(session, 3)
    assert take(session) == []


def test_a_call_that_is_answered_as_in_doubt_is_not_sent_again() -> None:
    session = build_session()
    session.call("add")
    session.take_frames()
    receive(session, "error", ref=1, code="indeterminate", message="a part is stored")
    assert [getattr(each, "ref", None) for each in session.take_events()] == [1]
    assert take(session) == []
    session.lost(1006)
    session.open()
    session.take_frames()
    join(session, 3)
    assert take(session) == []


def test_only_a_call_under_way_is_cancelled() -> None:
    session = build_session()
    ref = session.call("add")
    session.cancel(ref)
    session.cancel(ref)
    receive(session, "result", ref=ref, value=1, done=True)
    assert [frame["type"] for frame in take(session)] == ["call", "cancel"]
    assert session.take_events() == []


# Presence and tokens


def test_presence_is_a_snapshot_and_what_changes() -> None:
    session = build_session()
    receive(session, "presence", snapshot={"a": 1, "b": 2})
    before = session.presence
    receive(session, "presence", joined={"c": 3}, updated={"a": 9}, left=["b"])
    assert session.presence == {"a": 9, "c": 3}
    assert before == {"a": 1, "b": 2}
    receive(session, "presence", snapshot={})
    assert session.presence == {}


def test_presence_is_said_again_when_the_client_has_joined_anew() -> None:
    session = build_session()
    session.set_presence({"name": "Ada"})
    session.lost(1006)
    session.set_presence({"name": "Ada L."})
    session.open()
    session.take_frames()
    set_n(session, 2)
    join(session, 3)
    assert [frame["type"] for frame in take(session)] == ["push", "presence"]


def test_presence_that_was_taken_away_is_not_said_again() -> None:
    session = build_session()
    session.set_presence(1)
    session.set_presence(None)
    assert [frame["data"] for frame in take(session)] == [1, None]
    session.open()
    session.take_frames()
    join(session, 3)
    assert take(session) == []


def test_a_token_that_expires_is_told_and_a_fresh_one_shown() -> None:
    session = build_session()
    receive(session, "auth_expiring", **{"in": 30})
    assert session.take_events() == [messages.AuthExpiring(30)]
    session.auth("fresh")
    assert take(session) == [{"type": "auth", "token": "fresh"}]


def test_a_token_that_comes_while_a_socket_joins_is_shown_when_it_has_joined() -> None:
    session = build_session()
    session.lost(1006)
    session.open("old")
    session.auth("fresh")
    assert [frame["type"] for frame in take(session)] == ["join"]
    join(session, 3)
    assert take(session) == [{"type": "auth", "token": "fresh"}]


# Time


def test_a_session_knows_when_it_is_to_be_woken() -> None:
    clock = Clock()
    session = build_session(clock=clock)
    assert session.due == clock.now + 20
    clock.now += 20
    session.tick()
    assert session.due == clock.now + 20
    session.tick()
    assert [frame["type"] for frame in take(session)] == ["ping"]
    clock.now += 20
    session.tick()
    assert session.needs_socket
    assert session.due is None


def test_a_server_that_does_not_answer_the_join_is_given_up() -> None:
    clock = Clock()
    session = Session("c1", now=clock)
    session.open()
    session.take_frames()
    clock.now += 39
    session.tick()
    assert not session.needs_socket
    clock.now += 1
    session.tick()
    assert session.needs_socket
    assert session.take_frames() == []
