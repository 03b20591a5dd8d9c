"""A trace from a push in one browser over its change and its turn to the other browser."""

from collections.abc import AsyncIterator

import pytest
from examples.board import PAGES, Board, BoardState
from playwright.async_api import Page, async_playwright, expect
from tests.integration.chromium import OPTIONS, PROGRAM
from tests.running import running
from tests.server.instruments.test_otel import Traced

from plait import MemoryStore, Plait, Source


class Watched(Board):
    """A board that counts its changes in a turn of its own."""

    kind = "board"

    async def on_state_changed(self, state: BoardState, source: Source) -> None:
        self.emit("counted", len(state.cards))

    events = {**Board.events, "counted": int}  # noqa: RUF012


@pytest.fixture
def traced() -> Traced:
    return Traced()


@pytest.fixture
async def pages(traced: Traced) -> AsyncIterator[tuple[Page, Page]]:
    """Open a board in two browsers, of a server in this process."""
    app = Plait(Watched, store=MemoryStore(), static=PAGES, instruments=traced.instruments)
    async with running(app) as address, async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=PROGRAM, args=OPTIONS)
        opened = []
        for _ in range(2):
            page = await (await chromium.new_context()).new_page()
            await page.goto(f"http://{address}/board/?room=room-1")
            await expect(page.locator("#status")).to_have_attribute("data-status", "online")
            opened.append(page)
        yield opened[0], opened[1]
        await chromium.close()


async def test_a_push_in_a_browser_is_traced_to_the_other_browser(traced: Traced, pages: tuple[Page, Page]) -> None:
    one, other = pages
    await one.fill('[data-column="done"] .add-card input', "Ship it")
    await one.press('[data-column="done"] .add-card input', "Enter")
    await expect(other.locator('[data-column="done"] .card-title').last).to_have_text("Ship it")
    push = traced.find("push board")
    assert push.parent is None
    sent = traced.find("send")
    assert traced.path(sent) == ["send", "change board", "push board"]
    assert (sent.attributes or {})["plait.connections"] == 1
    assert traced.path(traced.find("on_state_changed board")) == [
        "on_state_changed board",
        "change board",
        "push board",
    ]


async def test_an_undo_in_a_browser_is_traced_over_its_turn_to_both(traced: Traced, pages: tuple[Page, Page]) -> None:
    one, other = pages
    await one.fill('[data-column="done"] .add-card input', "Ship it")
    await one.press('[data-column="done"] .add-card input', "Enter")
    titles = other.locator('[data-column="done"] .card-title')
    await expect(titles).to_have_count(2)
    await one.click("#undo")
    await expect(titles).to_have_count(1)
    sent = [span for span in traced.spans if span.name == "send"][1]
    assert traced.path(sent) == ["send", "change board", "rpc undo board", "call board"]
    assert (sent.attributes or {})["plait.connections"] == 2
    assert traced.path(traced.find("call board")) == ["call board"]
