"""The desk's page: two agents that call tools, in a browser, over a kill of the server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

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
    ask(page, "Refund order 8, please")
    expect(calls(page, "asked").locator(".call-title")).to_have_text("Pay back order 8")
    expect(calls(page, "success").last.locator(".call-title")).to_have_text("Hand over to billing")
    desk.kill()
    expect(page.locator("#status")).to_have_attribute("data-status", "offline")
    desk.start()
    expect(page.locator("#status")).to_have_attribute("data-status", "online")
    calls(page, "asked").get_by_role("button", name="Approve").click()
    expect(bubbles(page).last).to_have_text("49.00 € are on their way. The receipt is attached.")
    expect(calls(page, "asked")).to_have_count(0)
    assert page.locator('[data-agent="billing"]').count() == 2
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
        ask(page, "Refund order 8, please")
        expect(calls(page, "asked")).to_have_count(1)
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            page.reload(wait_until="networkidle")
            expect(calls(page, "asked")).to_have_count(1)
            page.add_script_tag(path=axe)
            assert page.evaluate(FINDINGS) == [], f"{width} {scheme}"
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def ask(page: Page, text: str) -> None:
    page.fill("#message", text)
    page.click("#send")


def bubbles(page: Page) -> Locator:
    return page.locator(".bot .bubble")


def calls(page: Page, status: str) -> Locator:
    return page.locator(f'.call[data-status="{status}"]')
