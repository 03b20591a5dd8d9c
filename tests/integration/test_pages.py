"""The demo's pages: they render, on a desk and on a phone."""

from typing import Literal

import pytest
from playwright.sync_api import Page, expect
from tests.integration.browser import Demo, find_end_of_loading
from tests.schedules import in_soak

DESK = 1440
PHONE = 360
SMALLEST = 320
# What each page shows when its thread is as it was made.
CONTENT = {
    "": (".tile", 8),
    "assistant/": ("#ideas button:visible", 4),
    "chat/": ("#ideas button:visible", 4),
    "desk/": ("#ideas button:visible", 3),
    "pad/": ("[data-document]:visible", 2),
    "board/": ("[data-card] .card-title:visible", 5),
    "tictactoe/": ("[data-cell][data-mark='']:visible", 9),
    "cards/": (".seat.free:visible", 1),
    "counter/": ("#count:text-is('0')", 1),
}
# Elements that end to the right of the window, other than those inside of something that scrolls by itself.
TOO_WIDE = """() => {
    const scrolls = (element) => element && (
        ["auto", "scroll"].includes(getComputedStyle(element).overflowX) || scrolls(element.parentElement)
    );
    const isOut = (element) => element.getBoundingClientRect().right > document.documentElement.clientWidth + 1;
    const out = [...document.body.querySelectorAll("*")].filter((element) => isOut(element) && !scrolls(element));
    return out.map((element) => element.outerHTML.slice(0, 100));
}"""

pages = pytest.mark.parametrize("path", CONTENT, ids=lambda path: path.strip("/") or "index")
# What is too wide is so in the smallest window first.
windows = pytest.mark.parametrize("width", [SMALLEST, *in_soak([DESK], [PHONE])])
# What can be pressed, and what it lies on.
CONTROLS = {
    "assistant/": [("#ideas button", "body"), (".box", "body")],
    "chat/": [("#ideas button", "body"), (".box", "body")],
    "desk/": [("#ideas button", "body"), (".box", "body"), ("#copy-link", "body")],
    "board/": [(".add-card input", ".column"), ("#add-column input", "body"), ("#open-history", "body")],
    "pad/": [("#add-document input", "body"), ("#write-story", "#sheet")],
    "tictactoe/": [("[data-cell]", "body"), (".player.empty", "body")],
    "cards/": [(".seat.free", ".felt"), ("#observe", "body")],
    "counter/": [("#decrement", "body")],
}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
# How much two colours differ, as the WCAG counts it: from 1 to 21.
CONTRAST = """([control, ground]) => {
    const style = (selector) => getComputedStyle(document.querySelector(selector));
    const brightness = (color) => {
        const parts = color.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
        const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const both = [style(control).borderTopColor, style(ground).backgroundColor].map(brightness);
    return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
}"""


@pytest.mark.parametrize("width", [PHONE, *in_soak([DESK], [SMALLEST])])
@pages
def test_a_page_renders_without_a_complaint_and_is_no_wider_than_its_window(demo: Demo, path: str, width: int) -> None:
    page = demo.open(path, width=width, touch=width <= PHONE)
    selector, count = CONTENT[path]
    expect(page.locator(selector)).to_have_count(count)
    expect(page.locator("h1")).to_be_visible()
    page.wait_for_load_state(find_end_of_loading(path))
    assert demo.troubles == []
    check_width(page, width)
    if path and width == PHONE:
        assert page.locator(".bar").bounding_box()["height"] < 110  # type: ignore[index]
    if page.get_by_label("You are").count():
        assert page.locator(".you span").bounding_box()["width"] > 20  # type: ignore[index]
    icon = page.evaluate("document.querySelector('link[rel=icon]').href")
    assert page.request.get(icon).headers["content-type"].startswith("image/svg+xml")


@pytest.mark.release
@windows
def test_long_words_do_not_make_a_board_wider_than_its_window(demo: Demo, width: int) -> None:
    page = demo.open("board/", width=width, touch=width <= PHONE, room=demo.room.replace("-", "").ljust(100, "r"))
    page.fill("#name", "N" * 40)
    page.press("#name", "Enter")
    page.fill('[data-column="todo"] .add-card input', "W" * 120)
    page.keyboard.press("Enter")
    expect(page.locator('[data-column="todo"] [data-card]')).to_have_count(4)
    page.locator('[data-column="todo"] .add-card input').blur()
    page.get_by_label("Edit column To do").click()
    page.fill("#column-dialog [name=title]", "C" * 120)
    page.click("#column-dialog [value=save]")
    expect(page.locator('[data-column="todo"] .column-title')).to_have_text("C" * 120)
    check_width(page, width)


@pytest.mark.release
@windows
def test_long_words_do_not_make_a_pad_wider_than_its_window(demo: Demo, width: int) -> None:
    page = demo.open("pad/", width=width, touch=width <= PHONE, room=demo.room.replace("-", "").ljust(100, "r"))
    page.fill("#name", "N" * 40)
    page.press("#name", "Enter")
    page.fill("#add-document input", "D" * 60)
    page.press("#add-document input", "Enter")
    expect(page.locator("#title")).to_have_text("D" * 60)
    page.keyboard.insert_text("W" * 300)
    for view in ("write", "preview", "authors"):
        button = page.locator(f".views [data-view={view}]")
        if button.is_visible():
            button.click()
        check_width(page, width)
    expect(page.locator("#legend .stretch")).to_have_text("N" * 40 + " (you)")


@pytest.mark.release
@windows
def test_long_words_do_not_make_a_game_wider_than_its_window(demo: Demo, width: int) -> None:
    page = demo.open("tictactoe/", width=width, touch=width <= PHONE, room=demo.room.replace("-", "").ljust(100, "r"))
    page.fill("#name", "N" * 40)
    page.click("#join button")
    expect(page.locator(".player-name").first).to_have_text("N" * 40 + " (you)")
    page.click("#cheats summary")
    check_width(page, width)


@pytest.mark.release
@windows
def test_long_words_do_not_make_a_conversation_wider_than_its_window(demo: Demo, width: int) -> None:
    page = demo.open("assistant/", width=width, touch=width <= PHONE, room=demo.room.replace("-", "").ljust(100, "r"))
    page.fill("#name", "N" * 40)
    page.press("#name", "Enter")
    page.fill("#message", "Count to 1000 " + "W" * 300)
    page.click("#send")
    page.fill("#message", "M" * 300)
    expect(page.locator(".turn[data-status=answering] .answer-text")).to_contain_text("3,")
    check_width(page, width)
    page.click("#send")
    expect(page.locator(".turn[data-status=waiting]")).to_have_count(1)
    page.click("#stop")
    expect(page.locator(".turn[data-status=stopped] .end")).to_contain_text(f"Stopped by {'N' * 40}")
    check_width(page, width)


@windows
def test_long_words_do_not_make_a_chat_wider_than_its_window(demo: Demo, width: int) -> None:
    page = demo.open("chat/", width=width, touch=width <= PHONE, room=demo.room.replace("-", "").ljust(100, "r"))
    page.fill("#name", "N" * 40)
    page.press("#name", "Enter")
    page.fill("#message", "Remind me in 1 second to " + "W" * 300)
    page.click("#send")
    page.fill("#message", "M" * 300)
    expect(page.locator(".reminder .bubble")).to_have_text(f"{'N' * 40}, your reminder: {'W' * 300}")
    expect(page.locator(".mine .who")).to_have_text("N" * 40 + " (you)")
    check_width(page, width)


@pytest.mark.release
@windows
def test_a_long_number_does_not_make_a_counter_wider_than_its_window(demo: Demo, width: int) -> None:
    page = demo.open("counter/", width=width, touch=width <= PHONE)
    page.fill("#value", "9007199254740991")
    page.press("#value", "Enter")
    expect(page.locator("#count")).to_have_text("9,007,199,254,740,991")
    check_width(page, width)


@pytest.mark.release
@pytest.mark.parametrize("path", CONTROLS)
def test_the_edge_of_what_can_be_pressed_is_seen(demo: Demo, path: str) -> None:
    page = demo.open(path)
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        for control, ground in CONTROLS[path]:
            expect(page.locator(control).first).to_be_visible()
            page.wait_for_function("document.getAnimations().length === 0")
            assert page.evaluate(CONTRAST, [control, ground]) >= 3, (scheme, control)


def test_the_index_leads_to_every_example_and_back(demo: Demo) -> None:
    page = demo.open("")
    for title in ("Assistant", "Chat", "Desk", "Pad", "Board", "Tic-tac-toe", "Cards", "Counter"):
        page.get_by_role("link", name=title).click()
        expect(page.locator("#status"), title).to_have_attribute("data-status", "online")
        expect(page.locator("#room"), title).to_have_text("New conversation" if title == "Desk" else "lobby")
        page.click(".home")
        expect(page.locator(".tile"), title).to_have_count(8)


def check_width(page: Page, width: int) -> None:
    assert page.evaluate("document.documentElement.clientWidth") == width
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(TOO_WIDE) == []
