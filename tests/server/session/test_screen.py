"""Which states a client may show: what it has read and written, in the orders in which it may have done so."""

from typing import Any

from plait.revision import Revision
from plait.session.screen import Screen
from plait.state import StateType

TYPE = StateType(Any)


def revision(size: int = 10) -> Revision:
    return Revision(TYPE, json=b" " * size)


def sent(screen: Screen, *revisions: Revision, first: int = 1) -> None:
    for number, each in enumerate(revisions, first):
        screen.note_sent(number, float(number), each)


def test_nothing_is_shown_before_anything_was_sent_or_written() -> None:
    assert Screen().states(0) == []


def test_the_last_frame_that_was_read_is_the_likeliest_then_the_newest_until_that_is_read_too() -> None:
    screen, (a, b, c) = Screen(), [revision() for _ in range(3)]
    sent(screen, a)
    screen.note_read(1)
    sent(screen, b, c, first=2)
    assert screen.states(1) == [a, c, b]
    screen.note_read(2)
    assert screen.states(2) == [b, c]
    screen.note_read(3)
    assert screen.states(3) == [c]
    assert screen.is_certain


def test_what_a_client_wrote_takes_the_place_of_what_it_had_read() -> None:
    screen, a, own, later = Screen(), revision(), revision(), revision()
    sent(screen, a)
    screen.note_read(1)
    screen.note_written(own, sent=1, seen=1, read=1)
    assert screen.states(1) == [own]
    screen.note_written(later, sent=1, seen=1, read=1)
    assert screen.states(1) == [later]


def test_a_frame_that_was_under_way_when_a_write_came_may_be_shown_or_not_until_a_later_one_is_read() -> None:
    screen, (a, crossing, after), own = Screen(), [revision() for _ in range(3)], revision()
    sent(screen, a)
    screen.note_read(1)
    sent(screen, crossing, first=2)
    screen.note_written(own, sent=2, seen=1, read=1)
    assert screen.states(1) == [own, crossing]
    screen.note_read(2)
    # The client had most likely written before it read that.
    assert screen.states(2) == [crossing, own]
    sent(screen, after, first=3)
    assert screen.states(2) == [crossing, own, after]
    screen.note_read(3)
    assert screen.states(3) == [after]


def test_what_a_client_wrote_is_shown_no_more_when_it_has_read_a_frame_that_was_sent_behind_it() -> None:
    screen, a, own, b = Screen(), revision(), revision(), revision()
    sent(screen, a)
    screen.note_read(1)
    screen.note_written(own, sent=1, seen=1, read=1)
    sent(screen, b, first=2)
    assert screen.states(1) == [own, b]
    screen.note_read(2)
    assert screen.states(2) == [b]


def test_a_frame_that_a_page_has_got_and_may_not_have_read_is_the_likeliest_and_not_the_only_one() -> None:
    screen, a, b = Screen(), revision(), revision()
    sent(screen, a, b)
    screen.note_read(1)
    assert screen.states(2) == [b, a]
    assert screen.read_before(1.5, 2) == 1
    assert screen.read_before(2.5, 2) == 2
    assert screen.read_before(2.5, 1) == 1
    assert screen.read_before(0.5, 2) == 0


def test_a_state_that_was_sent_twice_is_one() -> None:
    screen, a = Screen(), revision()
    sent(screen, a, a)
    assert screen.states(0) == [a]


def test_of_many_frames_that_are_not_read_the_first_and_the_last_are_remembered() -> None:
    screen, revisions = Screen(), [revision() for _ in range(1000)]
    sent(screen, *revisions)
    assert screen.states(0) == [*reversed(revisions[-63:]), revisions[0]]
    screen.note_read(1000)
    assert screen.states(1000) == [revisions[-1]]


def test_of_large_states_few_are_remembered() -> None:
    screen, revisions = Screen(), [revision(600_000) for _ in range(10)]
    sent(screen, *revisions)
    assert screen.states(0) == [revisions[-1], revisions[0]]
    for number in range(10, 20):
        sent(screen, small := revision(), first=number + 1)
    screen.note_read(19)
    assert screen.states(20)[0] is small
    assert len(screen.states(20)) == 2
