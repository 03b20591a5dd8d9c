"""The board's page: people with browsers of their own work on one board."""

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.integration.browser import Demo, record, recorded

TODO = ["Drag me to Doing", "Open me to edit", "Copy the link and open it somewhere else"]
DOING = ["Doing takes two cards"]
DONE = ["Start the server"]
# The titles in Doing, for `record`.
READ_DOING = """[...document.querySelectorAll('[data-column="doing"] .card-title')].map((title) => title.textContent)"""


# Edits


def test_a_card_that_one_adds_appears_in_the_other_browser(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    add_card(one, "done", "Ship it")
    expect_titles(one, "done", [*DONE, "Ship it"])
    expect_titles(other, "done", [*DONE, "Ship it"])


def test_cards_that_two_add_at_the_same_moment_are_both_there_in_one_order(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    for count in range(5):
        for page, who in ((one, "one"), (other, "other")):
            page.fill('[data-column="done"] .add-card input', f"{who} {count}")
        for page in (one, other):
            page.evaluate("document.querySelector('[data-column=done] .add-card').requestSubmit()")
    for page in (one, other):
        expect(titles(page, "done")).to_have_count(11)
    stored = demo.state("board")
    done = [stored["cards"][card]["title"] for card in stored["columns"][2]["cards"]]
    assert sorted(done) == sorted([*DONE, *(f"{who} {count}" for who in ("one", "other") for count in range(5))])
    expect_titles(one, "done", done)
    expect_titles(other, "done", done)


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


def test_a_card_that_one_deletes_disappears_and_comes_back_by_undo(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    one.click('[data-card="open"] .card-open')
    one.click("#card-dialog [value=delete]")
    expect_titles(other, "todo", [TODO[0], TODO[2]])
    one.get_by_role("button", name="Undo").click()
    expect_titles(other, "todo", TODO)


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


def test_markup_in_a_title_is_text(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    title = "<b>bold</b><img src=x onerror=alert(1)>"
    add_card(one, "done", title)
    expect_titles(other, "done", [*DONE, title])
    assert other.locator("[data-card] img").count() == 0


def test_a_board_is_not_touched_by_edits_in_another_room(demo: Demo) -> None:
    here, there = demo.open("board/"), demo.open("board/", room="room-2")
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
    expect(other.locator('[data-card="drag"] .card-people .avatar')).to_have_attribute("title", "Ada Lovelace")
    one.mouse.up()
    for page in (one, other):
        expect_titles(page, "todo", TODO[1:])
        expect_titles(page, "doing", [TODO[0], *DOING])
    expect(other.locator('[data-card="drag"] .card-people .avatar')).to_have_count(0)
    expect(one.locator("dialog[open]")).to_have_count(0)


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


def test_someone_who_leaves_is_not_here_any_longer(demo: Demo) -> None:
    one, other = demo.open_two("board/")
    rename(one, "Ada Lovelace")
    rename(other, "Charles Babbage")
    expect_people(one, {"Ada Lovelace (you)", "Charles Babbage"})
    other.context.close()
    expect_people(one, {"Ada Lovelace (you)"})


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


# Outages


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


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "network"])
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
    done = [*DONE, "Made offline"] if is_killed else [*DONE, "Made online", "Made offline"]
    for page in (one, other):
        expect_titles(page, "done", done)
        expect(page.locator("#status")).to_have_text("Live")


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


def people(page: Page) -> Locator:
    return page.locator("#people li[data-person] span:not(.avatar)")


def expect_people(page: Page, names: set[str]) -> None:
    """Wait until these people are here, and nobody else."""
    expect(people(page)).to_have_count(len(names))
    for name in names:
        expect(people(page).get_by_text(name, exact=True)).to_have_count(1)
