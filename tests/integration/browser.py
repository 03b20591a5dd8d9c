"""The demo in a server process, and browser windows with its pages."""

import json
import signal
from typing import Any

import httpx
from playwright.sync_api import Browser, ConsoleMessage, Page, WebSocket, expect
from tests.running import Process

__all__ = ["Demo", "record", "recorded"]

ROOM = "room-1"
RECORD = """(read) => {
    const look = new Function(`return ${read}`);
    window.recorded = [look()];
    const note = () => JSON.stringify(look()) === JSON.stringify(recorded.at(-1)) || recorded.push(look());
    const everything = { subtree: true, childList: true, attributes: true, characterData: true };
    new MutationObserver(note).observe(document.body, everything);
}"""


class Demo:
    """A server of the examples, and people in front of its pages."""

    def __init__(self, server: Process, browser: Browser) -> None:
        self._server = server
        self._browser = browser
        # Whether the pages have been without their server: a browser reports each attempt to connect that fails.
        self._had_outage = False
        # What the pages complained of.
        self.troubles: list[str] = []

    # The server

    def kill(self) -> None:
        """End the server with SIGKILL."""
        self._had_outage = True
        self._server.end(signal.SIGKILL)

    def start(self) -> None:
        """Start the server again, on the same port and the same store."""
        self._server.start()

    def cut_off(self, page: Page) -> None:
        """Take the network from a page."""
        self._had_outage = True
        page.context.set_offline(True)

    def connect(self, page: Page) -> None:
        """Give the network back to a page."""
        page.context.set_offline(False)

    def state(self, kind: str) -> Any:
        """Return what the server says the state of the room is."""
        return httpx.get(f"http://{self._server.address}/threads/{kind}/{ROOM}").raise_for_status().json()

    # Pages

    def open(
        self,
        path: str,
        *,
        room: str = ROOM,
        width: int = 1200,
        height: int = 800,
        touch: bool = False,
        sent: list[Any] | None = None,
    ) -> Page:
        """Open a page in a browser context of its own, and wait until it is live; `sent` gets the frames it sends."""
        context = self._browser.new_context(
            viewport={"width": width, "height": height}, has_touch=touch, is_mobile=touch, locale="en-US"
        )
        page = context.new_page()
        page.on("console", self._read_console)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        if sent is not None:
            page.on("websocket", lambda socket: _keep_sent(socket, sent))
        with page.expect_response("**/*") as response:
            page.goto(f"http://{self._server.address}/{path}" + (f"?room={room}" if path else ""))
        assert response.value.ok
        if path:
            expect(page.locator("#status")).to_have_attribute("data-status", "online")
        return page

    def open_two(self, path: str) -> tuple[Page, Page]:
        """Open a page in two browser contexts."""
        return self.open(path), self.open(path)

    def close(self) -> None:
        """Close all pages."""
        for context in self._browser.contexts:
            context.close()

    def _read_console(self, message: ConsoleMessage) -> None:
        is_outage = self._had_outage and message.text.startswith("WebSocket connection to")
        if message.type in ("error", "warning") and not is_outage:
            self.troubles.append(message.text)


def record(page: Page, read: str) -> None:
    """Write down every value that a JavaScript expression has from here on, as the page changes."""
    page.evaluate(RECORD, read)


def recorded(page: Page) -> list[Any]:
    """Return what was written down."""
    values: list[Any] = page.evaluate("recorded")
    return values


def _keep_sent(socket: WebSocket, sent: list[Any]) -> None:
    socket.on("framesent", lambda frame: sent.append(json.loads(frame)))
