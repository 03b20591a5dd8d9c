"""Which states a client may show: what it has read and written, in the orders in which it may have done so."""

from typing import Any

from plait.session.cloudflare.screen import Screen
from plait.state.history import Link
from plait.state.revision import Revision
from plait.state.types import StateType

TYPE = StateType(Any)


def chain(count: int, *, size: int = 10) -> list[Link]:
    """Return links of versions that follow each other, from 0 on."""
    links: list[Link] = []
    for version in range(count):
        revision = Revision(TYPE, json=b" " * size)
        revision.version = version
        link = Link(revision, links[-1] if links else None)
        link.at = float(version)
        links.append(link)
    return links


def revisions(*links: Link) -> list[Revision]:
    return [link.revision for link in links]


def written() -> Revision:
    return Revision(TYPE, json=b"{}")


def sent(screen: Screen, *links: Link) -> None:
    for link in links:
        screen.note_sent(link)


def test_nothing_is_shown_before_anything_was_sent_or_written() -> None:
    assert Screen().states(0) == []


def test_the_last_state_that_was_read_is_the_likeliest_then_the_newest_until_that_is_read_too() -> None:
    screen, (a, b, c) = Screen(), chain(3)
    sent(screen, a)
    assert not screen.shows(a.revision)
    screen.note_read(0)
    assert screen.shows(a.revision)
    sent(screen, b, c)
    assert screen.states(0) == revisions(a, c, b)
    assert not screen.shows(a.revision)
    screen.note_read(1)
    assert screen.states(1) == revisions(b, c)
    screen.note_read(2)
    assert screen.states(2) == revisions(c)
    assert screen.is_certain
    assert screen.shows(c.revision)


def test_what_a_client_wrote_takes_the_place_of_what_it_had_read() -> None:
    screen, (a,), own, later = Screen(), chain(1), written(), written()
    sent(screen, a)
    screen.note_read(0)
    screen.note_written(own, a, seen=0)
    assert screen.states(0) == [own]
    screen.note_written(later, a, seen=0)
    assert screen.states(0) == [later]
    assert screen.shows(later)
    assert not screen.shows(a.revision)


def test_a_state_that_was_under_way_when_a_write_came_may_be_shown_or_not_until_a_later_one_is_read() -> None:
    screen, (a, crossing, _, after), own = Screen(), chain(4), written()
    sent(screen, a)
    screen.note_read(0)
    sent(screen, crossing)
    screen.note_written(own, crossing, seen=0)
    assert screen.states(0) == [own, crossing.revision]
    screen.note_read(1)
    # The client had most likely written before it read that.
    assert screen.states(1) == [crossing.revision, own]
    sent(screen, after)
    assert screen.states(1) == [crossing.revision, own, after.revision]
    screen.note_read(3)
    assert screen.states(3) == [after.revision]


def test_what_a_client_wrote_is_shown_no_more_when_it_has_read_a_state_that_was_sent_after_it() -> None:
    screen, (a, _, b), own = Screen(), chain(3), written()
    sent(screen, a)
    screen.note_read(0)
    screen.note_written(own, a, seen=0)
    sent(screen, b)
    assert screen.states(0) == [own, b.revision]
    screen.note_read(2)
    assert screen.states(2) == [b.revision]


def test_a_state_that_a_page_has_got_and_may_not_have_read_is_the_likeliest_and_not_the_only_one() -> None:
    screen, (a, b, c) = Screen(), chain(3)
    sent(screen, a, b, c)
    screen.note_read(0)
    assert screen.states(1) == revisions(b, a, c)
    assert screen.read_before(1.5, 2) == 1
    assert screen.read_before(2.5, 2) == 2
    assert screen.read_before(2.5, 1) == 1
    assert screen.read_before(0.5, 2) == -1


def test_what_could_not_be_stored_is_shown_no_more() -> None:
    screen, (a,), own = Screen(), chain(1), written()
    sent(screen, a)
    screen.note_read(0)
    screen.note_written(own, a, seen=0)
    screen.note_lost(a.revision)
    sent(screen, a)
    screen.note_read(0)
    assert screen.states(0) == [a.revision]


def test_of_many_states_that_are_not_read_the_one_that_was_and_the_last_are_remembered() -> None:
    screen, links = Screen(), chain(1000)
    sent(screen, links[0])
    screen.note_read(0)
    sent(screen, *links[1:])
    found = screen.states(0)
    assert found[:2] == revisions(links[0], links[-1])
    assert len(found) <= 66
    screen.note_read(999)
    assert screen.states(999) == revisions(links[-1])


def test_of_large_states_few_are_remembered() -> None:
    screen, links = Screen(), chain(100, size=600_000)
    sent(screen, *links)
    assert screen.states(-1)[0] is links[-1].revision
    assert len(screen.states(-1)) <= 12


def test_states_that_were_sent_may_be_shown_while_others_are_held_back_and_those_are_not_kept() -> None:
    screen, links = Screen(), chain(1000)
    sent(screen, *links[:3])
    screen.note_read(0)
    screen.note_held_back(keeps_all=True)
    screen.note_held_back(keeps_all=True)
    assert screen.states(0) == revisions(links[0], links[2], links[1])
    assert list(screen._links())[-1].next is None
    sent(screen, links[999])
    assert screen.states(1) == revisions(links[1], links[0], links[999], links[2])
    screen.note_read(2)
    assert screen.states(2) == revisions(links[2], links[999])
    screen.note_read(999)
    assert screen.states(999) == revisions(links[999])


def test_of_a_client_that_has_never_written_the_last_state_is_kept_while_others_are_held_back() -> None:
    screen, links = Screen(), chain(10)
    sent(screen, *links[:5])
    screen.note_read(0)
    screen.note_held_back(keeps_all=False)
    assert screen.states(0) == revisions(links[0], links[4])
    assert screen.has_forgotten(3, 4)
    screen.note_read(4)
    assert screen.states(4) == revisions(links[4])
    assert not screen.has_forgotten(4, 4)


def test_a_client_in_step_has_read_what_it_answered_for_or_a_state_before_the_ping_that_it_has_not_answered() -> None:
    screen, links = Screen(), chain(10)
    sent(screen, *links)
    screen.note_read(2)
    found, count = screen.states_in_step(2, 5)
    assert found[:count] == revisions(links[2], links[3], links[5], links[4])
    assert found[count:] == revisions(links[9], links[8], links[7], links[6])


def test_a_client_that_writes_on_and_on_before_it_has_read_a_state_keeps_no_long_line_of_them() -> None:
    screen, (a, *links) = Screen(), chain(200)
    sent(screen, a)
    for link in links:
        screen.note_written(link.revision, link, seen=-1)
    assert screen.states(-1) == revisions(links[-1])


def test_a_client_in_step_that_shows_a_state_which_was_one_of_too_many_is_known_to_do_so() -> None:
    screen, links = Screen(), chain(200)
    sent(screen, *links[:190])
    assert screen.has_forgotten(5, 6)
    screen.note_written(written(), links[189], seen=5)
    assert not screen.has_forgotten(5, 6)
    assert screen.has_forgotten(6, 7)
    sent(screen, links[199])
    screen.note_read(199)
    assert not screen.has_forgotten(199, 199)


def test_a_client_in_step_may_show_one_of_too_many_states_that_it_was_sent_after_the_last_it_has_read() -> None:
    screen, links = Screen(), chain(200)
    sent(screen, links[0])
    screen.note_read(0)
    sent(screen, *links[1:])
    assert not screen.has_forgotten(0, 0)
    assert screen.has_forgotten(0, 1)
