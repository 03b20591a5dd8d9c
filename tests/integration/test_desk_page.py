"""The desk's page: a customer's conversations, and two agents that call tools, over a kill of the server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import urljoin

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.integration.browser import Demo
from tests.integration.builds import CLIENT, Builds
from tests.integration.test_pages_accessible import FINDINGS
from tests.running import Process
from tests.schedules import in_soak

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
WIDTHS = pytest.mark.parametrize("width", [390, *in_soak([1280])])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Serve the desk; each test has a room of its own."""
    folder = tmp_path_factory.mktemp("desk")
    with Process("examples.desk:app", cwd=folder, environment={"PLAIT_STORE": "sqlite:///plait.db"}) as process:
        yield process


@pytest.fixture
def desk(browser: Browser, server: Process) -> Iterator[Demo]:
    opened = Demo(server, browser)
    yield opened
    opened.close()
    assert opened.troubles == []


@WIDTHS
def test_an_order_is_paid_back_by_another_agent_after_a_kill_and_an_approval(desk: Demo, width: int) -> None:
    page = desk.open("desk/", width=width, touch=width == 390)
    ask(page, "Where is order 8?")
    expect(bubbles(page).last).to_have_text("Order 8: a drum, 49.00 €.")
    expect(page.locator("#orders li")).to_have_text(["7: a kite €25.00", "8: a drum €49.00", "9: a bell €12.00"])
    ask(page, "Refund order 8, please")
    expect(calls(page, "asked").locator(".call-title")).to_have_text("Pay back order 8")
    expect(calls(page, "success").last.locator(".call-title")).to_have_text("Hand over to billing")
    desk.kill()
    expect(page.locator("#status")).to_have_attribute("data-status", "offline")
    desk.start()
    expect(page.locator("#status")).to_have_attribute("data-status", "online")
    calls(page, "asked").get_by_role("button", name="Approve").click()
    expect(bubbles(page).last).to_have_text("49.00 € are on their way. The receipt is attached.")
    expect(page.locator("#orders li.paid-back")).to_have_text("8: a drum paid back")
    expect(calls(page, "asked")).to_have_count(0)
    assert page.locator('[data-agent="Billing"]').count() == 2
    with page.expect_download() as download:
        page.get_by_role("link", name="receipt-8.txt").click()
    assert "Paid back: 49.00 €" in Path(download.value.path()).read_text("utf-8")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ask(page, "Where is order 8?")
    expect(bubbles(page).last).to_have_text("Order 8: a drum, 49.00 €, paid back.")


def test_a_refused_call_is_not_done(desk: Demo) -> None:
    page = desk.open("desk/")
    ask(page, "Refund order 7, please")
    calls(page, "asked").get_by_role("button", name="Refuse").click()
    expect(bubbles(page).last).to_have_text("I have not paid it back.")
    expect(calls(page, "error")).to_contain_text("a person has refused the call")


@WIDTHS
def test_a_question_is_edited_and_answered_again_and_arrows_show_each_version(desk: Demo, width: int) -> None:
    page = desk.open("desk/", width=width, touch=width == 390)
    page.locator("#files").set_input_files({"name": "kite.txt", "mimeType": "text/plain", "buffer": b"It is red."})
    expect(page.locator(".attachment progress")).to_be_hidden()
    ask(page, "Where is order 7?")
    expect(bubbles(page).last).to_have_text("Order 7: a kite, 25.00 €.")
    edit(page, "Where is order 8?")
    expect(bubbles(page).last).to_have_text("Order 8: a drum, 49.00 €.")
    expect(page.locator(".mine .bubble")).to_have_text(["Where is order 8?"])
    expect(page.get_by_role("link", name="kite.txt")).to_have_count(1)
    question = page.get_by_role("group", name="Versions of the question")
    expect(question).to_contain_text("2/2")
    question.get_by_role("button", name="Previous version").press("Enter")
    expect(bubbles(page).last).to_have_text("Order 7: a kite, 25.00 €.")
    expect(question).to_contain_text("1/2")
    # At the first version, the other arrow has the focus.
    expect(question.get_by_role("button", name="Next version")).to_be_focused()
    page.keyboard.press("Enter")
    expect(bubbles(page).last).to_have_text("Order 8: a drum, 49.00 €.")
    edit(page, "Tell me a story")
    expect(question).to_contain_text("3/3")
    expect(bubbles(page).last).to_contain_text("“I only do the ringing.”")
    page.get_by_role("button", name="Again").click()
    expect(page.locator(".writing .bubble")).to_contain_text("A bell")
    expect(bubbles(page)).to_have_count(1)
    answer = page.get_by_role("group", name="Versions of the answer")
    expect(answer).to_contain_text("2/2")
    answer.get_by_role("button", name="Previous version").click()
    expect(answer).to_contain_text("1/2")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.reload()
    expect(answer).to_contain_text("1/2")
    expect(question).to_contain_text("3/3")


def test_escape_leaves_a_question_as_it_is_and_the_answer_goes_on(desk: Demo) -> None:
    page = desk.open("desk/")
    ask(page, "Tell me a story")
    expect(page.locator(".writing .bubble")).to_contain_text("A bell")
    page.get_by_role("button", name="Edit").click()
    page.keyboard.type("Where is order 8?")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Edit")).to_be_focused()
    expect(bubbles(page).last).to_contain_text("“I only do the ringing.”")
    expect(page.locator(".mine .bubble")).to_have_text(["Tell me a story"])


def test_the_box_and_the_list_stay_in_sight_in_a_long_conversation(desk: Demo) -> None:
    page = desk.open("desk/", height=400)
    ask(page, "Where is order 7?")
    expect(bubbles(page).last).to_have_text("Order 7: a kite, 25.00 €.")
    ask(page, "Tell me a story")
    expect(bubbles(page).last).to_contain_text("“I only do the ringing.”")
    for end in ("0", "document.body.scrollHeight"):
        page.evaluate(f"scrollTo(0, {end})")
        for each in ("#message", "#new-room", "#status"):
            expect(page.locator(each)).to_be_in_viewport(ratio=1)


def test_thoughts_are_folded_and_stay_open_when_they_are_opened(desk: Demo) -> None:
    page = desk.open("desk/")
    ask(page, "Where is order 8?")
    thoughts = page.locator(".thoughts:visible")
    expect(thoughts.get_by_text("Thinking")).to_be_visible()
    expect(thoughts.locator("p")).to_be_hidden()
    thoughts.locator("summary").click()
    expect(thoughts.locator("p")).to_contain_text("I look it up before I say anything about it.")
    expect(bubbles(page).last).to_have_text("Order 8: a drum, 49.00 €.")
    expect(thoughts.locator("p")).to_be_visible()


@WIDTHS
def test_the_conversations_of_a_customer_tell_on_all_tabs_what_is_not_read(desk: Demo, width: int) -> None:
    page = desk.open("desk/", width=width, touch=width == 390)
    stranger = desk.open("desk/", room=f"{desk.room}-of-another")
    ask(page, "Tell me a story")
    expect(page.locator("#room")).to_have_text("Tell me a story")
    expect(page.locator(".writing .bubble")).to_contain_text("A bell")
    first = page.url
    open_list(page)
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator("#room")).to_have_text("New conversation")
    second = page.context.new_page()
    second.goto(page.url)
    ask(page, "Refund order 8, please")
    for tab in (page, second):
        expect(row(tab, "Refund order 8, please")).to_contain_text("Waiting for approval")
        expect(row(tab, "Tell me a story").locator(".count")).to_have_text("1 unread")
        expect(row(tab, "Tell me a story").locator(".last")).to_contain_text("A bell hung in a tower")
        expect(tab).to_have_title("(1) Refund order 8, please · Desk · plait")
    expect(stranger.locator("#conversations .title")).to_have_text(["New conversation"])
    assert stranger.request.get(urljoin(first, "/threads/desk")).json()["threads"] == []
    open_list(page)
    page.get_by_role("link", name="Tell me a story").click()
    expect(page).to_have_url(first)
    expect(bubbles(page).last).to_contain_text("“I only do the ringing.”")
    for tab in (page, second):
        expect(tab.locator("#conversations .unread")).to_have_count(0)
    calls(second, "asked").get_by_role("button", name="Approve").click()
    paid = row(page, "Refund order 8, please")
    expect(paid).to_contain_text("49.00 € are on their way.")
    expect(paid.locator(".count")).to_be_hidden()


@WIDTHS
def test_an_answer_is_stopped_and_continued(desk: Demo, width: int) -> None:
    page = desk.open("desk/", width=width, touch=width == 390)
    ask(page, "Tell me a story")
    expect(page.locator(".writing .bubble")).to_contain_text("A bell hung")
    page.click("#stop")
    expect(page.locator('.message[data-status="failed"] .note')).to_have_text("Cut off in the middle")
    expect(page.locator("#stop")).to_be_hidden()
    desk.kill()
    expect(page.locator("#status")).to_have_attribute("data-status", "offline")
    desk.start()
    expect(page.locator("#status")).to_have_attribute("data-status", "online")
    page.click("#continue")
    expect(bubbles(page).last).to_contain_text("“I only do the ringing.”")
    expect(page.locator("#stopped")).to_be_hidden()
    expect(page.locator('.message[data-status="failed"]')).to_have_count(1)


def test_everybody_may_approve_at_the_desk_of_the_demo(demo: Demo) -> None:
    page, other = demo.open_two("desk/")
    ask(page, "Refund order 9, please")
    calls(other, "asked").get_by_role("button", name="Approve").click()
    expect(bubbles(page).last).to_have_text("12.00 € are on their way. The receipt is attached.")


@pytest.mark.release
def test_an_answer_goes_on_after_a_kill(desk: Demo) -> None:
    page = desk.open("desk/")
    ask(page, "Tell me a story")
    expect(page.locator(".writing .bubble")).to_contain_text("A bell hung")
    expect(page.locator(".writing .who")).to_have_text("Desk")
    desk.kill()
    desk.start()
    expect(bubbles(page).last).to_contain_text("“I only do the ringing.”")
    expect(page.locator(".bot .who")).to_have_text(["Desk", "Desk"])
    expect(page.locator(".mine .bubble")).to_have_text(["Tell me a story"])


@pytest.mark.release
def test_axe_finds_no_fault_in_the_desk(desk: Demo, builds: Builds) -> None:
    axe = builds.install(CLIENT) / "node_modules/axe-core/axe.min.js"
    for width in (1280, 390):
        page = desk.open("desk/", room=f"axe-{width}", width=width, touch=width == 390)
        ask(page, "Where is order 7?")
        expect(bubbles(page).last).to_have_text("Order 7: a kite, 25.00 €.")
        edit(page, "Refund order 8, please")
        expect(calls(page, "asked")).to_have_count(1)
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            page.reload()
            expect(calls(page, "asked")).to_have_count(1)
            expect(page.get_by_role("group", name="Versions of the question")).to_contain_text("2/2")
            page.add_script_tag(path=axe)
            assert page.evaluate(FINDINGS) == [], f"{width} {scheme}"
            page.get_by_role("button", name="Edit").click()
            open_list(page)
            assert page.evaluate(FINDINGS) == [], f"{width} {scheme}, with an open question and the list"
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def ask(page: Page, text: str) -> None:
    page.fill("#message", text)
    page.click("#send")


def edit(page: Page, text: str) -> None:
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Your question in other words").fill(text)
    page.get_by_role("button", name="Ask", exact=True).click()


def open_list(page: Page) -> None:
    """Open the list of conversations, which a wide page shows always."""
    button = page.locator("#open-sidebar")
    if button.is_visible():
        button.click()


def row(page: Page, title: str) -> Locator:
    return page.locator("#conversations li", has_text=title)


def bubbles(page: Page) -> Locator:
    return page.locator(".bot .bubble:visible")


def calls(page: Page, status: str) -> Locator:
    return page.locator(f'.call[data-status="{status}"]')
