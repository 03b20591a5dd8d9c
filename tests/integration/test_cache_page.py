"""A page in Chromium that shows the state which the page before has kept in IndexedDB."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from tests.running import Process

APP = """
from plait import Plait, Thread

class Note(Thread[dict]):
    initial_state = {"text": "", "big": 2**60}
    clients_may_emit = ("wave",)

app = Plait(Note, store="memory://")
"""

# Opens a client as `room`; with `never`, by a socket that does not open.
OPEN = """async ({ key, never }) => {
  const { ThreadClient } = await import("/plait/client.js");
  const { cache } = await import("/plait/cache.js");
  class Never {
    addEventListener() {}
    close() {}
  }
  const socket = never ? { WebSocket: Never } : {};
  window.room = new ThreadClient({ kind: "note", name: "a", cache, cacheKey: key, ...socket });
}"""
# Resolves to the shown state, or to null if there is none in a second.
SHOWN = """() => Promise.race([
  room.waitFor(() => true).then((state) => [state.text, String(state.big)]),
  new Promise((resolve) => setTimeout(resolve, 1_000, null)),
])"""


@pytest.fixture
def page(tmp_path: Path, browser: Browser) -> Iterator[Page]:
    (tmp_path / "notes.py").write_text(APP)
    with Process("notes:app", cwd=tmp_path) as server:
        page = browser.new_context().new_page()
        page.goto(f"http://{server.address}/plait/client.js")
        yield page
        page.context.close()


def show(page: Page, *, key: str, never: bool) -> Any:
    page.reload()
    page.evaluate(OPEN, {"key": key, "never": never})
    return page.evaluate(SHOWN)


def test_the_state_of_the_page_before_is_shown_to_its_user_alone(page: Page) -> None:
    assert show(page, key="ada", never=True) is None
    assert show(page, key="ada", never=False) == ["", str(2**60)]
    page.evaluate("room.update('/text', 'hello').then(() => room.close())")
    page.wait_for_function("room.savedAt > 0")
    assert show(page, key="ada", never=True) == ["hello", str(2**60)]
    assert page.evaluate("Date.now() - room.savedAt < 60_000 && room.status") == "connecting"
    assert show(page, key="grace", never=True) is None
    # The server sends nothing that the page has.
    frames: list[str] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: frames.append(str(frame))))
    assert show(page, key="ada", never=False) == ["hello", str(2**60)]
    page.evaluate("room.ready")
    assert '"have":' in frames[0]


def test_two_pages_emit_events_to_each_other(page: Page) -> None:
    page.evaluate(OPEN, {"key": "ada", "never": False})
    other = page.context.new_page()
    other.goto(page.url)
    other.evaluate(OPEN, {"key": "ada", "never": False})
    for each in (page, other):
        each.evaluate("room.ready")
    other.evaluate("() => { window.heard = new Promise((resolve) => room.onEvent('wave', (...all) => resolve(all))) }")
    page.evaluate("room.emit('wave', { hand: 'left' })")
    assert other.evaluate("heard") == [{"hand": "left"}, page.evaluate("room.connection")]
