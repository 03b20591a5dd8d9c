"""The pad's page: people with browsers of their own type in one document, and the server with them."""

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.integration.browser import Demo

# Types letters one after the other, as fast as the page takes them.
TYPE = """async (letters) => {
    for (const letter of letters) {
        document.execCommand("insertText", false, letter);
        await new Promise((resolve) => setTimeout(resolve));
    }
}"""
ONE = "".join(chr(0x4E00 + number) for number in range(100))
OTHER = "".join(chr(0x5E00 + number) for number in range(100))
# The place of the caret that the page shows of another: on it, and at which letter.
CARET = """() => {
    const range = document.createRange();
    range.setStart(document.querySelector("#carets"), 0);
    range.setEndBefore(document.querySelector("#carets .caret"));
    return range.toString().length;
}"""
MARKUP = """# One *two*
<img src=x onerror=alert(1)> `<b>` **bold *both***
second line

- [safe](https://example.com/?a=1&b=2)
- [unsafe](javascript:alert(1))

1. one
2. two

> quoted

```
**no** <i>markup</i>
```
"""


# Typing


def test_two_who_type_at_once_in_one_document_lose_no_letter(demo: Demo) -> None:
    one, other = open_two(demo)
    for page, letters in ((one, ONE), (other, OTHER)):
        place_caret(page, 5)
        start(page, letters)
    for page in (one, other):
        page.evaluate("window.typing")
    expect_same(one, other, length=len(ONE) + len(OTHER) + len("start end"))
    text = area(one).input_value()
    for letters in (ONE, OTHER):
        assert "".join(letter for letter in text if letter in letters) == letters
    assert demo.state("pad")["documents"][opened(one)]["body"] == text


def test_what_one_types_offline_arrives_when_they_are_back(demo: Demo) -> None:
    one, other = open_two(demo)
    demo.cut_off(one)
    expect(one.locator("#status")).to_have_attribute("data-status", "offline")
    place_caret(one, 0)
    one.keyboard.type("offline ")
    place_caret(other, len("start end"))
    other.keyboard.type(" online")
    expect(area(other)).to_have_value("start end online")
    demo.connect(one)
    for page in (one, other):
        expect(area(page)).to_have_value("offline start end online")


def test_undo_and_redo_are_of_what_one_has_typed_oneself(demo: Demo) -> None:
    other, one = open_two(demo)
    place_caret(one, 0)
    one.keyboard.type("mine ")
    expect(area(other)).to_have_value("mine start end")
    place_caret(other, len("mine start end"))
    other.keyboard.type(" theirs")
    expect(area(one)).to_have_value("mine start end theirs")
    one.click("#undo")
    for page in (one, other):
        expect(area(page)).to_have_value("start end theirs")
    one.click("#redo")
    for page in (one, other):
        expect(area(page)).to_have_value("mine start end theirs")


@pytest.mark.release
def test_the_text_that_the_server_writes_arrives_whole_while_one_types(demo: Demo) -> None:
    one, other = open_two(demo)
    other.click("#write-story")
    expect(one.locator("#write-story")).to_be_disabled()
    place_caret(one, 5)
    start(one, ONE)
    one.evaluate("window.typing")
    for page in (one, other):
        expect(page.locator("#write-story")).to_be_enabled()
    expect_same(one, other)
    story = other.request.get(other.url.partition("?")[0] + "story.md").text()
    assert area(one).input_value() == f"start{ONE} end\n\n{story.rstrip()}"


# People


def test_the_caret_and_the_selection_of_another_are_where_they_are(demo: Demo) -> None:
    one, other = open_two(demo)
    rename(one, "Ada Lovelace")
    place_caret(one, 6)
    caret = other.locator("#carets .caret")
    expect(caret).to_have_attribute("data-name", "Ada Lovelace")
    other.wait_for_function(f"({CARET})() === 6")
    place_caret(other, 0)
    other.keyboard.type("x😀")
    other.wait_for_function(f"({CARET})() === 9")
    one.keyboard.type("abc")
    other.wait_for_function(f"({CARET})() === 12")
    area(one).evaluate("(area) => area.setSelectionRange(0, 8)")
    expect(other.locator("#carets mark")).to_have_text("x😀start")
    one.locator("#name").focus()
    expect(caret).to_have_count(0)


def test_who_wrote_what_names_both_also_when_one_has_left(demo: Demo) -> None:
    one, other = open_two(demo)
    rename(one, "Ada Lovelace")
    rename(other, "Charles Babbage")
    place_caret(one, 0)
    one.keyboard.type("Ada wrote 😀, ")
    expect(area(other)).to_have_value("Ada wrote 😀, start end")
    place_caret(other, 5)
    other.keyboard.type("Charles ")
    expect(area(one)).to_have_value("Ada wCharles rote 😀, start end")
    other.context.close()
    one.click(".views [data-view=authors]")
    expect(legend(one)).to_have_text(["Ada Lovelace (you)", "Charles Babbage"])
    for name, parts in {"Ada Lovelace (you)": ["Ada w", "rote 😀, start end"], "Charles Babbage": ["Charles "]}.items():
        expect(one.locator(f'#stretches .stretch[title="{name}"]')).to_have_text(parts)
    expect(one.locator("#people li[data-person]")).to_have_count(1)


@pytest.mark.release
def test_who_wrote_what_names_the_server_and_follows_what_is_typed(demo: Demo) -> None:
    page, _ = open_two(demo)
    rename(page, "Ada Lovelace")
    page.click(".views [data-view=authors]")
    page.click("#write-story")
    expect(page.locator('#stretches .stretch[title="The server"]')).to_contain_text("I do not mind.")
    expect(legend(page)).to_have_text(["The server", "Ada Lovelace (you)"])


# Documents


@pytest.mark.release
def test_a_document_that_one_adds_is_there_for_the_other_and_apart_from_the_rest(demo: Demo) -> None:
    one, other = demo.open_two("pad/")
    before = area(other).input_value()
    add_document(one, "Minutes")
    area(one).press_sequentially("We met.")
    expect(documents(other)).to_have_text(["Minutes", "Shopping", "Welcome"])
    expect(area(other)).to_have_value(before)
    documents(other).get_by_text("Minutes").click()
    expect(area(other)).to_have_value("We met.")
    expect(one.locator("#documents .avatar")).to_have_count(1)
    one.reload()
    expect(one.locator("#title")).to_have_text("Minutes")
    expect(area(one)).to_have_value("We met.")


def test_a_document_that_one_deletes_closes_for_the_other_and_comes_back_by_undo(demo: Demo) -> None:
    one, other = open_two(demo)
    one.click("#delete")
    for page in (one, other):
        expect(documents(page)).to_have_text(["Shopping", "Welcome"])
        expect(page.locator("#title")).not_to_have_text("Together")
    one.locator(".notice").get_by_role("button", name="Undo").click()
    expect(one.locator("#title")).to_have_text("Together")
    documents(other).get_by_text("Together").click()
    for page in (one, other):
        expect(area(page)).to_have_value("start end")


# Preview


def test_the_preview_shows_markdown_and_no_markup_of_html(demo: Demo) -> None:
    page, _ = open_two(demo)
    area(page).fill(MARKUP)
    preview = page.locator("#preview")
    expect(preview.locator("h3")).to_have_text("One two")
    expect(preview.locator("h3 em")).to_have_text("two")
    expect(preview.locator("p").first).to_contain_text("<img src=x onerror=alert(1)> <b> bold both")
    expect(preview.locator("p > code")).to_have_text("<b>")
    expect(preview.locator("strong > em")).to_have_text("both")
    expect(preview.locator("ul > li")).to_have_text(["safe", "[unsafe](javascript:alert(1))"])
    expect(preview.locator("ol > li")).to_have_text(["one", "two"])
    expect(preview.locator("blockquote")).to_have_text("quoted")
    expect(preview.locator("pre")).to_have_text("**no** <i>markup</i>")
    assert preview.evaluate("(all) => [...all.querySelectorAll('a')].map(({ href }) => href)") == [
        "https://example.com/?a=1&b=2"
    ]
    expect(preview.locator("img, b, i")).to_have_count(0)


@pytest.mark.release
def test_a_phone_shows_the_text_or_its_preview_or_who_wrote_it(demo: Demo) -> None:
    phone = demo.open("pad/", width=390, height=844, touch=True)
    for view, shown in {"write": "#text", "preview": "#preview", "authors": "#authors"}.items():
        phone.tap(f".views [data-view={view}]")
        for each in ("#text", "#preview", "#authors"):
            expect(phone.locator(each)).to_be_visible(visible=each == shown)


# What people do and see


def open_two(demo: Demo) -> tuple[Page, Page]:
    """Open a new document with a text in two browsers."""
    one, other = demo.open_two("pad/")
    add_document(one, "Together")
    one.keyboard.type("start end")
    documents(other).get_by_text("Together").click()
    expect(area(other)).to_have_value("start end")
    return one, other


def add_document(page: Page, title: str) -> None:
    page.fill("#add-document input", title)
    page.press("#add-document input", "Enter")
    expect(page.locator("#title")).to_have_text(title)
    expect(area(page)).to_be_focused()


def rename(page: Page, name: str) -> None:
    page.fill("#name", name)
    page.press("#name", "Enter")


def opened(page: Page) -> str:
    """Return the id of the document that is open."""
    id = page.locator("[data-document][aria-current]").get_attribute("data-document")
    assert id is not None
    return id


def documents(page: Page) -> Locator:
    return page.locator("[data-document] .document-title")


def legend(page: Page) -> Locator:
    return page.locator("#legend .stretch")


def area(page: Page) -> Locator:
    return page.locator("#text")


def place_caret(page: Page, at: int) -> None:
    area(page).evaluate("(area, at) => { area.focus(); area.setSelectionRange(at, at) }", at)


def start(page: Page, letters: str) -> None:
    """Begin to type in the focused element, and return at once."""
    page.evaluate("([type, letters]) => { window.typing = eval(type)(letters) }", [TYPE, letters])


def expect_same(one: Page, other: Page, length: int | None = None) -> None:
    """Wait until two pages show the same text."""
    if length is not None:
        for page in (one, other):
            page.wait_for_function("(length) => document.querySelector('#text').value.length === length", arg=length)
    text: Any = area(one).input_value()
    expect(area(other)).to_have_value(text)
