"""The board's page: people with browsers of their own work on one board."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect
from tests.integration.browser import Brake, Demo, record, recorded
from tests.running import Process
from tests.schedules import in_soak

TODO = ["Drag me to Doing", "Open me to edit", "Copy the link and open it somewhere else"]
DOING = ["Doing takes two cards"]
DONE = ["Start the server"]
# Types letters one after the other, as fast as the page takes them.
TYPE = """async (letters) => {
    for (const letter of letters) {
        document.execCommand("insertText", false, letter);
        await new Promise((resolve) => setTimeout(resolve));
    }
}"""
# The titles in Doing, for `record`.
READ_DOING = """[...document.querySelectorAll('[data-column="doing"] .card-title')].map((title) => title.textContent)"""
# The column that a card is in, for `record`.
READ_PLACE = """document.querySelector('[data-card="drag"]')?.closest("[data-column]").dataset.column"""
# Whether the pointer of another is over a card.
IS_ON_CARD = """(card) => {
    const at = document.querySelector(".cursor").getBoundingClientRect();
    const { left, right, top, bottom } = document.querySelector(`[data-card="${card}"]`).getBoundingClientRect();
    return left < at.left && at.left < right && top < at.top && at.top < bottom;
}"""
# A server with boards as they were stored once.
OLD_STATE: Any = {
    "columns": [
        {"id": "done", "title": "Done", "cards": ["b", "a"], "limit": None},
        {"id": "next", "title": "Next", "cards": [], "limit": 3},
    ],
    "cards": {
        "a": {"title": "First", "note": "changed", "color": "plain"},
        "b": {"title": "Second", "note": "of two", "color": "red"},
    },
}

OLD_BOARD = """
from plait import Plait, Thread

class Board(Thread[dict]):
    initial_state = {"columns": [], "cards": {}}

app = Plait(Board)
"""


# Edits


def test_a_card_that_one_adds_appears_in_the_other_browser(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    add_card(one, "done", "Ship it")
    expect_titles(one, "done", [*DONE, "Ship it"])
    expect_titles(other, "done", [*DONE, "Ship it"])


@pytest.mark.release
def test_cards_that_two_add_at_the_same_moment_are_both_there_in_one_order(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    for count in range(5):
        for page, who in ((one, "one"), (other, "other")):
            page.fill('[data-column="done"] .add-card input', f"{who} {count}")
        for page in (one, other):
            page.evaluate("document.querySelector('[data-column=done] .add-card').requestSubmit()")
    for page in (one, other):
        expect(titles(page, "done")).to_have_count(11)
    done = stored_titles(demo, "done")
    assert sorted(done) == sorted([*DONE, *(f"{who} {count}" for who in ("one", "other") for count in range(5))])
    expect_titles(one, "done", done)
    expect_titles(other, "done", done)


@pytest.mark.release
def test_two_fields_of_one_card_that_two_edit_at_once_are_both_kept(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    for page in (one, other):
        page.click('[data-card="open"] .card-open')
    one.fill("#card-dialog [name=title]", "A title by one")
    other.fill("#card-dialog [name=note]", "A note by the other")
    for page in (one, other):
        page.click("#card-dialog [value=save]")
    for page in (one, other):
        expect(page.locator('[data-card="open"] .card-title')).to_have_text("A title by one")
        expect(page.locator('[data-card="open"] .card-note')).to_have_text("A note by the other")


def test_a_note_in_which_two_type_at_once_has_what_both_typed(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    notes = [page.locator("#card-dialog [name=note]") for page in (one, other)]
    for page, note in zip((one, other), notes, strict=True):
        page.click('[data-card="open"] .card-open')
        note.focus()
        note.evaluate("(area) => area.setSelectionRange(4, 4)")
    texts = ["".join(chr(start + number) for number in range(60)) for start in (0x4E00, 0x5E00)]
    for page, text in zip((one, other), texts, strict=True):
        page.evaluate("([type, text]) => { window.typing = eval(type)(text) }", [TYPE, text])
    for page in (one, other):
        page.evaluate("window.typing")
    before = "Two people can edit two fields of one card at once."
    for page in (one, other):
        is_whole = "(length) => document.querySelector('#card-dialog [name=note]').value.length === length"
        page.wait_for_function(is_whole, arg=len(before) + 120)
    note = notes[0].input_value()
    assert notes[1].input_value() == note
    for text in texts:
        assert "".join(letter for letter in note if letter in text) == text
    one.click("#card-dialog [value=cancel]")
    expect(one.locator('[data-card="open"] .card-note')).to_have_text(note)
    assert demo.state("board")["cards"]["open"]["note"] == note


def test_a_card_that_one_deletes_disappears_and_comes_back_by_undo(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    one.click('[data-card="open"] .card-open')
    one.click("#card-dialog [value=delete]")
    expect_titles(other, "todo", [TODO[0], TODO[2]])
    one.locator(".notice").get_by_role("button", name="Undo").click()
    expect_titles(other, "todo", TODO)


@pytest.mark.release
def test_a_column_that_one_adds_renames_and_deletes_follows_in_the_other_browser(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    one.fill("#add-column input", "Later")
    one.press("#add-column input", "Enter")
    expect(other.locator(".column-title")).to_have_text(["To do", "Doing", "Done", "Later"])
    other.get_by_label("Edit column Later").click()
    other.fill("#column-dialog [name=title]", "Some day")
    other.fill("#column-dialog [name=limit]", "3")
    other.click("#column-dialog [value=save]")
    expect(one.locator(".column-title")).to_have_text(["To do", "Doing", "Done", "Some day"])
    expect(one.locator(".column-count").last).to_have_text("0/3")
    one.get_by_label("Edit column Some day").click()
    one.click("#column-dialog [value=delete]")
    expect(other.locator(".column-title")).to_have_text(["To do", "Doing", "Done"])


@pytest.mark.release
def test_a_column_is_edited_with_one_click_from_the_input_of_its_next_card(demo: Demo) -> None:
    page = demo.open("board/")
    page.click('[data-column="todo"] .add-card input')
    page.get_by_label("Edit column To do").click()
    expect(page.locator("#column-dialog")).to_be_visible()


def test_markup_in_a_title_is_text(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    title = "<b>bold</b><img src=x onerror=alert(1)>"
    add_card(one, "done", title)
    expect_titles(other, "done", [*DONE, title])
    assert other.locator("[data-card] img").count() == 0


@pytest.mark.release
def test_a_board_is_not_touched_by_edits_in_another_room(demo: Demo) -> None:
    here, there = demo.open("board/"), demo.open("board/", room=f"{demo.room}-2")
    record(there, READ_DOING)
    add_card(here, "doing", "Only here")
    expect_titles(here, "doing", [*DOING, "Only here"])
    here.reload()
    expect_titles(here, "doing", [*DOING, "Only here"])
    add_card(there, "doing", "Only there")
    expect_titles(there, "doing", [*DOING, "Only there"])
    assert recorded(there) == [DOING, [*DOING, "Only there"]]


# Moves


def test_a_card_that_one_drags_with_the_mouse_moves_in_the_other_browser(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    rename(one, "Ada Lovelace")
    drag(one, "drag", "doing")
    expect_tags(other, "drag", ["Ada Lovelace · moving"])
    one.mouse.up()
    for page in (one, other):
        expect_titles(page, "todo", TODO[1:])
        expect_titles(page, "doing", [TODO[0], *DOING])
    expect_tags(other, "drag", [])
    expect(one.locator("dialog[open]")).to_have_count(0)


@pytest.mark.release
def test_escape_puts_a_dragged_card_back(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    record(other, READ_DOING)
    drag(one, "drag", "doing")
    one.keyboard.press("Escape")
    one.mouse.up()
    expect_titles(one, "doing", DOING)
    expect_titles(one, "todo", TODO)
    add_card(one, "doing", "Afterwards")
    expect_titles(other, "doing", [*DOING, "Afterwards"])
    assert recorded(other) == [DOING, [*DOING, "Afterwards"]]


@pytest.mark.release
def test_a_card_that_one_drags_with_a_finger_on_a_phone_moves_in_the_other_browser(demo: Demo) -> None:
    desk, phone = demo.open("board/"), demo.open("board/", width=390, height=844, touch=True)
    first, last = (phone.locator(f'[data-card="{card}"]').bounding_box() for card in ("drag", "invite"))
    assert first is not None
    assert last is not None
    finger = phone.context.new_cdp_session(phone)

    def touch(what: str, *points: tuple[float, float]) -> None:
        finger.send("Input.dispatchTouchEvent", {"type": what, "touchPoints": [{"x": x, "y": y} for x, y in points]})

    x, y = first["x"] + 100, first["y"] + 20
    touch("touchStart", (x, y))
    expect(phone.locator("body.dragging")).to_have_count(1)
    for step in range(1, 9):
        touch("touchMove", (x, y + (last["y"] + 40 - first["y"]) * step / 8))
    expect_titles(phone, "todo", [TODO[1], TODO[2], TODO[0]])
    touch("touchEnd")
    expect_titles(desk, "todo", [TODO[1], TODO[2], TODO[0]])
    expect(phone.locator("dialog[open]")).to_have_count(0)


def test_a_card_that_one_moves_by_keyboard_moves_in_the_other_browser(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    one.locator('[data-card="drag"] .card-open').focus()
    for key in ("Space", "ArrowDown", "ArrowRight"):
        one.keyboard.press(key)
    expect(one.locator("#announcement")).to_have_text("Doing, 2 of 2")
    one.keyboard.press("Space")
    for page in (one, other):
        expect_titles(page, "doing", [*DOING, TODO[0]])
    expect(one.locator('[data-card="drag"] .card-open')).to_be_focused()


@pytest.mark.release
def test_a_card_that_is_moved_by_keyboard_says_how_and_has_one_ring(demo: Demo) -> None:
    page = demo.open("board/")
    page.locator('[data-card="drag"] .card-open').press("Space")
    held = page.locator('[data-card="drag"].held')
    expect(held).to_have_css("outline-style", "dashed")
    expect(held.locator(".card-open")).to_have_css("outline-style", "none")
    assert held.evaluate("(card) => getComputedStyle(card, '::after').content") == '"Arrows move · Space drops"'
    page.keyboard.press("Escape")
    expect(page.locator('[data-card="drag"] .card-open')).to_have_css("outline-style", "solid")


def test_a_drop_over_the_limit_is_refused_visibly_and_rolled_back(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    drag(one, "drag", "doing")
    one.mouse.up()
    full = [TODO[0], *DOING]
    expect_titles(other, "doing", full)
    expect(one.locator('[data-column="doing"] .column-count')).to_have_text("2/2")
    record(one, READ_DOING)
    record(other, READ_DOING)
    drag(other, "open", "doing")
    expect_titles(other, "doing", [TODO[1], *full])
    other.mouse.up()
    expect(other.locator(".notice.refused")).to_have_text("The server refused: “Doing” is limited to 2.")
    expect(other.locator(".notice.refused")).to_be_visible()
    expect_titles(other, "doing", full)
    expect_titles(other, "todo", TODO[1:])
    add_card(other, "todo", "Afterwards")
    expect_titles(one, "todo", [*TODO[1:], "Afterwards"])
    assert recorded(other) == [full, [TODO[1], *full], full]
    assert recorded(one) == [full]
    expect(one.locator(".notice.refused")).to_have_count(0)


# People


def test_everyone_sees_the_names_of_who_is_here(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    rename(one, "Ada Lovelace")
    rename(other, "Charles Babbage")
    expect_people(one, {"Ada Lovelace (you)", "Charles Babbage"})
    expect_people(other, {"Ada Lovelace", "Charles Babbage (you)"})
    other.click("#faces")
    expect(other.locator("#people").get_by_text("Ada Lovelace")).to_be_visible()


@pytest.mark.release
def test_someone_who_leaves_is_not_here_any_longer(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    rename(one, "Ada Lovelace")
    rename(other, "Charles Babbage")
    expect_people(one, {"Ada Lovelace (you)", "Charles Babbage"})
    other.context.close()
    expect_people(one, {"Ada Lovelace (you)"})


@pytest.mark.release
def test_someone_with_two_pages_is_one_person(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    rename(one, "Ada Lovelace")
    rename(other, "Charles Babbage")
    second = one.context.new_page()
    second.goto(one.url)
    expect_people(second, {"Ada Lovelace (you)", "Charles Babbage"})
    expect_people(other, {"Ada Lovelace", "Charles Babbage (you)"})
    one.close()
    expect_people(other, {"Ada Lovelace", "Charles Babbage (you)"})


def test_the_pointer_of_another_is_shown_at_the_same_place_and_goes(demo: Demo) -> None:
    one, other = demo.open("board/"), demo.open("board/", width=900)
    rename(one, "Ada Lovelace")
    for card in ("open", "limit"):
        one.locator(f'[data-card="{card}"]').hover(position={"x": 40, "y": 20})
        expect(cursors(other)).to_have_text(["Ada Lovelace"])
        other.wait_for_function(IS_ON_CARD, arg=card)
    expect(cursors(one)).to_have_count(0)
    one.mouse.move(600, 20)
    expect(cursors(other)).to_have_count(0)
    one.clock.install()
    one.mouse.move(300, 300)
    expect(cursors(other)).to_have_count(1)
    one.clock.fast_forward(5_000)
    expect(cursors(other)).to_have_count(0)
    one.mouse.move(310, 300)
    expect(cursors(other)).to_have_count(1)
    one.context.close()
    expect(cursors(other)).to_have_count(0)


@pytest.mark.release
def test_a_finger_is_no_pointer(demo: Demo) -> None:
    desk, phone = demo.open("board/"), demo.open("board/", width=390, height=844, touch=True)
    rename(phone, "Grace Hopper")
    phone.locator('[data-card="drag"] .card-open').tap()
    expect_tags(desk, "drag", ["Grace Hopper · editing"])
    expect(cursors(desk)).to_have_count(0)


@pytest.mark.release
def test_the_card_that_someone_is_at_edits_or_moves_is_outlined_until_they_leave_it(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    rename(one, "Ada Lovelace")
    one.locator('[data-card="open"] .card-open').focus()
    expect_tags(other, "open", ["Ada Lovelace"])
    one.keyboard.press("Enter")
    expect_tags(other, "open", ["Ada Lovelace · editing"])
    expect_tags(one, "open", [])
    one.click("#card-dialog [value=cancel]")
    expect_tags(other, "open", ["Ada Lovelace"])
    one.keyboard.press("Space")
    expect_tags(other, "open", ["Ada Lovelace · moving"])
    one.keyboard.press("Escape")
    one.locator("#name").focus()
    expect_tags(other, "open", [])
    one.locator('[data-card="start"] .card-open').focus()
    expect_tags(other, "start", ["Ada Lovelace"])
    one.context.close()
    expect_tags(other, "start", [])


# Undo


@pytest.mark.release
def test_undo_takes_back_what_one_has_done_and_nothing_of_what_others_did_since(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    add_card(one, "done", "Mine")
    expect_titles(other, "done", [*DONE, "Mine"])
    add_card(other, "done", "Theirs")
    expect_titles(one, "done", [*DONE, "Mine", "Theirs"])
    one.click("#undo")
    for page in (one, other):
        expect_titles(page, "done", [*DONE, "Theirs"])
    expect(one.locator("#undo")).to_be_disabled()
    other.locator('[data-card="start"] .card-open').press("Control+z")
    for page in (one, other):
        expect_titles(page, "done", DONE)


@pytest.mark.release
def test_undo_is_there_for_as_long_as_this_tab_has_something_to_take_back(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    expect(one.locator("#undo")).to_be_disabled()
    add_card(one, "done", "First")
    add_card(one, "done", "Second")
    expect_titles(other, "done", [*DONE, "First", "Second"])
    expect(other.locator("#undo")).to_be_disabled()
    one.reload()
    expect(one.locator("#undo")).to_be_enabled()
    one.click("#undo")
    expect_titles(one, "done", [*DONE, "First"])
    one.click("#undo")
    expect_titles(one, "done", DONE)
    expect(one.locator("#undo")).to_be_disabled()


@pytest.mark.release
def test_what_is_refused_or_changes_nothing_is_not_there_to_be_undone(demo: Demo) -> None:
    page = demo.open("board/")
    page.get_by_label("Edit column Doing").click()
    page.click("#column-dialog [value=save]")
    page.click('[data-card="open"] .card-open')
    page.click("#card-dialog [value=save]")
    expect(page.locator("#undo")).to_be_disabled()
    page.get_by_label("Edit column Doing").click()
    page.click("#column-dialog [value=delete]")
    expect(page.locator(".notice.refused")).to_have_text("The server refused: “Doing” still has cards.")
    expect(page.locator("#undo")).to_be_disabled()


@pytest.mark.release
def test_an_undo_that_finds_nothing_says_so(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    one.locator('[data-card="start"] .card-open').press("Control+z")
    expect(one.locator(".notice")).to_have_text("There is nothing of yours to undo.")
    one.get_by_label("Dismiss").click()
    for title in ("Mine", "Mine too"):
        add_card(one, "done", title)
        expect_titles(other, "done", [*DONE, title])
        titles(other, "done").last.click()
        other.click("#card-dialog [value=delete]")
        expect_titles(one, "done", DONE)
    one.click("#undo")
    expect(one.locator(".notice")).to_have_text("There is nothing of yours to undo.")
    expect(one.locator("#undo")).to_be_disabled()


@pytest.mark.release
def test_undo_steps_back_through_moves_edits_and_deletions(demo: Demo) -> None:
    page = demo.open("board/")
    drag(page, "drag", "done")
    page.mouse.up()
    expect_titles(page, "done", [TODO[0], *DONE])
    page.click('[data-card="open"] .card-open')
    page.fill("#card-dialog [name=title]", "Another title")
    page.click("#card-dialog [value=save]")
    page.click('[data-card="start"] .card-open')
    page.click("#card-dialog [value=delete]")
    expect_titles(page, "done", [TODO[0]])
    page.click("#undo")
    expect_titles(page, "done", [TODO[0], *DONE])
    page.click("#undo")
    expect_titles(page, "todo", [TODO[1], TODO[2]])
    page.click("#undo")
    expect_titles(page, "todo", TODO)
    expect_titles(page, "done", DONE)


@pytest.mark.release
def test_undo_takes_back_what_was_typed_in_a_note(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    expect(one.locator("#undo")).to_be_disabled()
    one.click('[data-card="start"] .card-open')
    one.locator("#card-dialog [name=note]").press_sequentially("Done at noon")
    expect(other.locator('[data-card="start"] .card-note')).to_have_text("Done at noon")
    one.click("#card-dialog [value=cancel]")
    one.click("#undo")
    for page in (one, other):
        expect(page.locator('[data-card="start"] .card-note')).to_have_text("")
    expect(one.locator("#undo")).to_be_disabled()


def test_undo_of_what_somebody_else_has_changed_since_is_told_and_does_nothing(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    for page, title in ((one, "By one"), (other, "By the other")):
        page.click('[data-card="start"] .card-open')
        page.fill("#card-dialog [name=title]", title)
        page.click("#card-dialog [value=save]")
        for each in (one, other):
            expect_titles(each, "done", [title])
    one.click("#undo")
    expect(one.locator(".notice")).to_have_text("That has been changed since, so it stays.")
    expect_titles(one, "done", ["By the other"])


@pytest.mark.release
def test_control_z_in_a_text_field_is_of_the_field(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    add_card(one, "done", "Mine")
    expect_titles(other, "done", [*DONE, "Mine"])
    record(one, "document.querySelectorAll('.card').length")
    one.locator('[data-column="done"] .add-card input').press_sequentially("typed")
    one.keyboard.press("Control+z")
    add_card(other, "done", "Theirs")
    expect_titles(one, "done", [*DONE, "Mine", "Theirs"])
    assert recorded(one) == [6, 7]


# History


def test_the_slider_shows_an_older_board_and_brings_it_back(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    rename(one, "Ada Lovelace")
    rename(other, "Charles Babbage")
    for title in ("A", "B", "C"):
        add_card(one, "done", title)
    expect_titles(other, "done", [*DONE, "A", "B", "C"])
    other.click("#open-history")
    expect(other.locator("#which")).to_have_text("This is the current board, version 3 of 3")
    expect(other.locator("#when")).to_contain_text("by Ada Lovelace")
    for version, titles_then in ((2, [*DONE, "A", "B"]), (1, [*DONE, "A"])):
        other.keyboard.press("ArrowLeft")
        expect(other.locator("#which")).to_have_text(f"You are looking at version {version} of 3")
        expect_titles(other, "done", titles_then)
    add_card(one, "todo", "Live")
    expect(other.locator("#which")).to_have_text("You are looking at version 1 of 4")
    expect_titles(other, "todo", TODO)
    other.click("#restore")
    expect(other.locator("#history")).to_be_hidden()
    for page in (one, other):
        expect_titles(page, "done", [*DONE, "A"])
        expect_titles(page, "todo", TODO)
    expect(one.locator(".notice")).to_have_text("Charles Babbage brought back version 1.")


@pytest.mark.release
def test_the_history_says_who_by_the_names_that_they_had_also_when_they_have_left(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    for name, title in (("Ada Byron", "A"), ("Ada Lovelace", "B")):
        rename(one, name)
        expect(people(other).get_by_text(name, exact=True)).to_have_count(1)
        add_card(one, "done", title)
        expect(titles(other, "done").last).to_have_text(title)
    one.click("#undo")
    expect_titles(other, "done", [*DONE, "A"])
    one.click("#open-history")
    expect(one.locator("#which")).to_have_text("This is the current board, version 3 of 3")
    one.locator("#version").press("ArrowLeft")
    one.click("#restore")
    expect_titles(other, "done", [*DONE, "A", "B"])
    rename(one, "The Countess")
    expect(people(other).get_by_text("The Countess", exact=True)).to_have_count(1)
    one.context.close()
    expect(people(other)).to_have_count(1)
    demo.kill()
    demo.start()
    expect(other.locator("#status")).to_have_attribute("data-status", "online")
    other.click("#open-history")
    for who in ("restored by", "undone by", "by"):
        expect(other.locator("#when")).to_have_text(re.compile(f" · {who} Ada Lovelace$"))
        other.locator("#version").press("ArrowLeft")
    expect(other.locator("#when")).to_have_text(re.compile(" · by Ada Byron$"))


@pytest.mark.release
def test_a_board_without_a_past_has_no_slider_until_somebody_changes_it(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    one.click("#open-history")
    expect(one.locator("#which")).to_have_text("There is no older board yet")
    for part in ("#version", "#older", "#restore"):
        expect(one.locator(part)).to_be_hidden()
    add_card(other, "done", "A")
    expect(one.locator("#which")).to_have_text("This is the current board, version 1 of 1")
    one.locator("#version").press("ArrowLeft")
    expect(one.locator("#when")).to_have_text("as it was made")
    expect_titles(one, "done", DONE)


@pytest.mark.release
def test_the_past_is_read_only_and_leaving_it_shows_what_has_happened_meanwhile(demo: Demo) -> None:
    phone, other = demo.open("board/", width=390, height=844, touch=True), demo.open("board/")
    add_card(other, "done", "A")
    expect_titles(phone, "done", [*DONE, "A"])
    phone.tap("#open-history")
    phone.tap("#older")
    expect(phone.locator("#which")).to_have_text("You are looking at version 0 of 1")
    expect(phone.locator("#older")).to_be_disabled()
    expect_titles(phone, "done", DONE)
    phone.locator('[data-card="start"] .card-open').tap()
    expect(phone.locator("dialog[open]")).to_have_count(0)
    phone.locator('[data-card="start"] .card-open').press("Space")
    expect(phone.locator(".card.held")).to_have_count(0)
    expect(phone.locator('[data-column="done"] .add-card')).to_be_hidden()
    add_card(other, "done", "B")
    expect(phone.locator("#which")).to_have_text("You are looking at version 0 of 2")
    expect_titles(phone, "done", DONE)
    phone.locator("#version").press("Escape")
    expect_titles(phone, "done", [*DONE, "A", "B"])
    expect(phone.locator('[data-column="done"] .add-card')).to_be_visible()


def test_a_board_that_was_stored_in_its_old_shape_is_brought_along(demo: Demo, tmp_path: Path) -> None:
    demo.kill()
    (tmp_path / "old.py").write_text(OLD_BOARD)
    with Process("old:app", cwd=tmp_path, environment={"PLAIT_STORE": f"sqlite:///{demo.store}"}) as server:
        url = f"http://{server.address}/threads/board/{demo.room}"
        httpx.put(url, json=OLD_STATE).raise_for_status()
        server.end()
    demo.start()
    page = demo.open("board/")
    expect(page.locator(".column-title")).to_have_text(["Done", "Next"])
    expect_titles(page, "done", ["Second", "First"])
    expect(page.locator('[data-card="a"] .card-note')).to_have_text("changed")
    page.click("#open-history")
    expect(page.locator("#older")).to_be_disabled()


# Notices and names


@pytest.mark.release
def test_a_notice_can_be_dismissed_and_is_not_there_twice(demo: Demo) -> None:
    page = demo.open("board/")
    for _ in range(2):
        page.locator('[data-card="start"] .card-open').press("Control+z")
        expect(page.locator(".notice")).to_have_count(1)
    page.get_by_label("Dismiss").click()
    expect(page.locator(".notice")).to_have_count(0)


@pytest.mark.release
def test_a_notice_stays_for_as_long_as_it_is_pointed_at(demo: Demo) -> None:
    page = demo.open("board/")
    page.clock.install()
    page.locator('[data-card="start"] .card-open').press("Control+z")
    page.locator(".notice").hover()
    page.clock.run_for(20_000)
    expect(page.locator(".notice")).to_be_visible()
    page.mouse.move(300, 700)
    page.clock.run_for(20_000)
    expect(page.locator(".notice")).to_have_count(0)


@pytest.mark.release
def test_a_phone_shows_one_notice_at_a_time(demo: Demo) -> None:
    phone = demo.open("board/", width=390, height=844, touch=True)
    # A notice is taken away after 6 seconds, which a loaded machine may need for these steps.
    phone.clock.install(time=0)
    phone.clock.pause_at(1000)
    phone.locator('[data-card="open"] .card-open').tap()
    phone.tap("#card-dialog [value=delete]")
    visible = phone.locator(".notice:visible")
    # A tap has its effect later, and a page with an open dialog heeds no keys.
    expect(visible).to_have_text(["Deleted “Open me to edit”.Undo"])
    phone.locator('[data-card="start"] .card-open').press("Control+z")
    phone.locator('[data-card="start"] .card-open').press("Control+z")
    expect(visible).to_have_text(["There is nothing of yours to undo."])
    visible.get_by_label("Dismiss").tap()
    expect(visible).to_have_text(["Deleted “Open me to edit”.Undo"])


@pytest.mark.release
def test_what_can_be_done_has_one_name_however_it_looks(demo: Demo) -> None:
    page = demo.open("board/")
    for width in (1600, 1200, 800, 390):
        page.set_viewport_size({"width": width, "height": 900})
        for name, description in {
            "Undo": "Take back my last change (Ctrl+Z)",
            "History": "Look at the board as it was",
            "Copy link": "Copy the link to this board",
            "New room": "Open an unused board",
        }.items():
            button = page.get_by_role("button", name=name, exact=True)
            expect(button, f"{width}").to_be_visible()
            expect(button, f"{width}").to_have_accessible_description(description)
        expect(page.locator("#faces"), f"{width}").to_have_accessible_name("1 person is here")
        expect(page.locator(".cards").first, f"{width}").to_have_accessible_name("")


# Outages


@pytest.mark.release
def test_a_reload_keeps_the_board_and_the_name(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    rename(one, "Ada Lovelace")
    add_card(one, "done", "Ship it")
    drag(one, "drag", "doing")
    one.mouse.up()
    expect_titles(other, "doing", [TODO[0], *DOING])
    one.reload()
    expect_titles(one, "todo", TODO[1:])
    expect_titles(one, "doing", [TODO[0], *DOING])
    expect_titles(one, "done", [*DONE, "Ship it"])
    expect(one.locator("#name")).to_have_value("Ada Lovelace")
    expect(people(other).get_by_text("Ada Lovelace", exact=True)).to_have_count(1)


@pytest.mark.release
def test_a_killed_server_keeps_the_board_and_both_pages_come_back(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    rename(one, "Ada Lovelace")
    rename(other, "Charles Babbage")
    drag(one, "drag", "doing")
    one.mouse.up()
    add_card(one, "done", "Ship it")
    expect_titles(other, "done", [*DONE, "Ship it"])
    before = demo.state("board")
    demo.kill()
    for page in (one, other):
        expect(page.locator("#status")).to_have_attribute("data-status", "offline")
    demo.start()
    for page in (one, other):
        expect(page.locator("#status")).to_have_attribute("data-status", "online")
    assert demo.state("board") == before
    expect_people(one, {"Ada Lovelace (you)", "Charles Babbage"})
    for page in (one, other, demo.open("board/")):
        expect_titles(page, "todo", TODO[1:])
        expect_titles(page, "doing", [TODO[0], *DOING])
        expect_titles(page, "done", [*DONE, "Ship it"])
    add_card(other, "todo", "After the restart")
    expect_titles(one, "todo", [*TODO[1:], "After the restart"])


@pytest.mark.release
@pytest.mark.parametrize("is_killed", [False, *in_soak([True])], ids=["network", "killed"])
def test_an_edit_made_during_an_outage_is_shown_and_arrives_afterwards(demo: Demo, is_killed: bool) -> None:
    one, other = demo.open_two("board/")
    if is_killed:
        demo.kill()
    else:
        demo.cut_off(one)
    expect(one.locator("#status")).to_have_attribute("data-status", "offline")
    add_card(one, "done", "Made offline")
    expect_titles(one, "done", [*DONE, "Made offline"])
    expect(one.locator("#status")).to_contain_text("1 edit waiting")
    if is_killed:
        demo.start()
    else:
        add_card(other, "done", "Made online")
        expect_titles(other, "done", [*DONE, "Made online"])
        demo.connect(one)
    for page in (one, other):
        expect(page.locator("#status")).to_have_text("Live")
        expect(titles(page, "done")).to_have_count(2 if is_killed else 3)
    # Both were put at the end: which of them is the last is for the server to say, and the same for everybody.
    done = stored_titles(demo, "done")
    assert set(done) == {*DONE, "Made offline"} | (set() if is_killed else {"Made online"})
    for page in (one, other):
        expect_titles(page, "done", done)


@pytest.mark.release
def test_a_card_that_two_drag_while_one_of_them_is_offline_ends_in_one_place(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    demo.cut_off(one)
    expect(one.locator("#status")).to_have_attribute("data-status", "offline")
    drag(one, "drag", "done")
    record(one, READ_PLACE)
    one.mouse.up()
    expect(one.locator("#status")).to_have_text("Offline: 1 edit waiting")
    drag(other, "drag", "doing")
    record(other, READ_PLACE)
    other.mouse.up()
    # A third sees it, so that the server has it before the one who is offline comes back.
    expect_titles(demo.open("board/"), "doing", [TODO[0], *DOING])
    demo.connect(one)
    for page in (one, other):
        expect(page.locator("#status")).to_have_text("Live")
        expect_titles(page, "todo", TODO[1:])
        expect_titles(page, "doing", DOING)
        expect_titles(page, "done", [TODO[0], *DONE])
    assert demo.state("board")["cards"]["drag"]["column"] == "done"
    # The page whose drop reached the server last never showed the card anywhere else.
    assert recorded(one) == ["done"]
    assert recorded(other) == ["doing", "done"]


@pytest.mark.release
def test_an_edit_made_offline_of_a_card_that_is_gone_is_refused_visibly(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    demo.cut_off(one)
    expect(one.locator("#status")).to_have_attribute("data-status", "offline")
    one.click('[data-card="open"] .card-open')
    one.fill("#card-dialog [name=title]", "Too late")
    one.click("#card-dialog [value=save]")
    expect_titles(one, "todo", [TODO[0], "Too late", TODO[2]])
    other.click('[data-card="open"] .card-open')
    other.click("#card-dialog [value=delete]")
    # A third sees it: what its own page shows may not be on the server yet, and the edit could come before it.
    expect_titles(demo.open("board/"), "todo", [TODO[0], TODO[2]])
    demo.connect(one)
    expect(one.locator(".notice.refused")).to_have_text("The server refused: someone else has deleted that.")
    for page in (one, other):
        expect_titles(page, "todo", [TODO[0], TODO[2]])
        expect(page.locator("#status")).to_have_text("Live")


def test_an_edit_that_is_accepted_never_flickers_back(demo: Demo) -> None:
    brake = Brake()
    one, other = demo.open("board/", brake=brake), demo.open("board/")
    drag(one, "drag", "doing")
    record(one, READ_PLACE)
    brake.hold()
    add_card(other, "done", "Before")
    expect_titles(other, "done", [*DONE, "Before"])
    one.mouse.up()
    expect_titles(other, "doing", [TODO[0], *DOING])
    add_card(other, "doing", "Refused")
    add_card(other, "todo", "Afterwards")
    expect_titles(other, "todo", [*TODO[1:], "Afterwards"])
    brake.release()
    expect_titles(one, "todo", [*TODO[1:], "Afterwards"])
    expect_titles(one, "done", [*DONE, "Before"])
    assert recorded(one) == ["doing"]


@pytest.mark.parametrize("is_killed", [True, *in_soak([False])], ids=["killed", "network"])
def test_a_reload_while_offline_keeps_an_edit_which_arrives_once(demo: Demo, is_killed: bool) -> None:
    one, other = demo.open_two("board/")
    demo.keep_pages(one)
    if is_killed:
        demo.kill()
    else:
        demo.cut_off(one)
    expect(one.locator("#status")).to_have_attribute("data-status", "offline")
    add_card(one, "done", "Made offline")
    drag(one, "drag", "doing")
    one.mouse.up()
    for _ in range(2):
        one.reload()
        expect(one.locator("#status")).to_have_text("Offline: 2 edits waiting")
        expect_titles(one, "done", [*DONE, "Made offline"])
        expect_titles(one, "doing", [TODO[0], *DOING])
    record(one, READ_PLACE)
    if is_killed:
        demo.start()
    else:
        demo.connect(one)
    for page in (one, other):
        expect(page.locator("#status")).to_have_text("Live")
        expect_titles(page, "done", [*DONE, "Made offline"])
        expect_titles(page, "doing", [TODO[0], *DOING])
    one.reload()
    expect(one.locator("#status")).to_have_text("Live")
    expect_titles(one, "done", [*DONE, "Made offline"])
    assert len(demo.state("board")["cards"]) == 6


# What people do and see


def add_card(page: Page, column: str, title: str) -> None:
    page.fill(f'[data-column="{column}"] .add-card input', title)
    page.press(f'[data-column="{column}"] .add-card input', "Enter")


def rename(page: Page, name: str) -> None:
    page.fill("#name", name)
    page.press("#name", "Enter")


def drag(page: Page, card: str, column: str) -> None:
    """Take a card with the mouse to the top of a column, and hold it there."""
    page.wait_for_function("document.getAnimations().length === 0")
    start = page.locator(f'[data-card="{card}"]').bounding_box()
    end = page.locator(f'[data-column="{column}"] .cards').bounding_box()
    assert start is not None
    assert end is not None
    page.mouse.move(start["x"] + 60, start["y"] + 15)
    page.mouse.down()
    page.mouse.move(end["x"] + 60, end["y"] + 10, steps=12)
    expect(page.locator(f'[data-column="{column}"] [data-card="{card}"].held')).to_have_count(1)


def titles(page: Page, column: str) -> Locator:
    return page.locator(f'[data-column="{column}"] [data-card] .card-title')


def expect_titles(page: Page, column: str, expected: list[str]) -> None:
    """Wait until a column has these cards, from top to bottom."""
    expect(titles(page, column)).to_have_text(expected)


def stored_titles(demo: Demo, column: str) -> list[str]:
    """Return the titles in a column, from top to bottom, as the server has them."""
    cards = [
        (card["order"], id, card["title"])
        for id, card in demo.state("board")["cards"].items()
        if card["column"] == column
    ]
    return [title for _, _, title in sorted(cards)]


def expect_tags(page: Page, card: str, tags: list[str]) -> None:
    """Wait until a card is outlined for these people and no others."""
    expect(page.locator(f'[data-card="{card}"] .tag')).to_have_text(tags)
    expect(page.locator(f'[data-card="{card}"].selected')).to_have_count(1 if tags else 0)


def cursors(page: Page) -> Locator:
    return page.locator(".cursor:visible .cursor-name")


def people(page: Page) -> Locator:
    return page.locator("#people li[data-person] span:not(.avatar)")


def expect_people(page: Page, names: set[str]) -> None:
    """Wait until these people are here and no others."""
    expect(people(page)).to_have_count(len(names))
    for name in names:
        expect(people(page).get_by_text(name, exact=True)).to_have_count(1)
