"""The demo in a server process, and browser windows with its pages."""

import itertools
import json
import signal
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlparse

import httpx
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, WebSocket, WebSocketRoute, expect
from tests.running import Process

__all__ = ["Brake", "Demo", "Pages", "find_end_of_loading", "record", "recorded"]

ROOT = Path(__file__).parents[2]

# How a browser reports attempts to connect and to ask that fail.
_OUTAGES = ("WebSocket connection to", "Failed to load resource: net::ERR_")

_numbers = itertools.count(1)
RECORD = """(read) => {
    const look = new Function(`return ${read}`);
    window.recorded = [look()];
    const note = () => JSON.stringify(look()) === JSON.stringify(recorded.at(-1)) || recorded.push(look());
    const everything = { subtree: true, childList: true, attributes: true, characterData: true };
    new MutationObserver(note).observe(document.body, everything);
}"""


class Brake:
    """Keeps data of the server from a page, from `hold` to `release`."""

    def __init__(self) -> None:
        self._page: WebSocketRoute | None = None
        self._held: list[str | bytes] | None = None

    def route(self, page: WebSocketRoute) -> None:
        """Stand between a page's socket and the server."""
        server = page.connect_to_server()
        page.on_message(server.send)
        server.on_message(self._receive)
        self._page = page

    def hold(self) -> None:
        """Keep everything from here on."""
        self._held = []

    def release(self) -> None:
        """Pass the kept messages to the page, in order, and all later ones."""
        held, self._held = self._held, None
        for message in held or ():
            self._receive(message)

    def _receive(self, message: str | bytes) -> None:
        if self._held is not None:
            self._held.append(message)
        elif self._page is not None:
            self._page.send(message)


class Pages:
    """A server, and people who use its pages."""

    def __init__(self, server: Process, browser: Browser) -> None:
        self._server = server
        self._browser = browser
        # Whether the pages have been without their server: a browser reports each attempt to connect that fails.
        self._had_outage = False
        # What the pages complained of.
        self.troubles: list[str] = []

    def new_page(self, width: int, height: int, *, touch: bool, brake: Brake | None) -> Page:
        """Return an empty page in a browser context of its own, and collect its errors."""
        context = self._browser.new_context(
            viewport={"width": width, "height": height}, has_touch=touch, is_mobile=touch, locale="en-US"
        )
        page = context.new_page()
        page.on("console", self._read_console)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        if brake is not None:
            page.route_web_socket("**/threads/**", brake.route)
        return page

    def cut_off(self, page: Page) -> None:
        """Take the network from a page."""
        self._had_outage = True
        page.context.set_offline(True)

    def expect_outage(self) -> None:
        """Ignore what browsers report of attempts to connect that fail."""
        self._had_outage = True

    def close(self) -> None:
        """Close all pages."""
        for context in self._browser.contexts:
            context.close()

    def _read_console(self, message: ConsoleMessage) -> None:
        is_outage = self._had_outage and message.text.startswith(_OUTAGES)
        if message.type in ("error", "warning") and not is_outage:
            self.troubles.append(message.text)


class Demo(Pages):
    """A room of a server of the examples, and people who use its pages."""

    def __init__(self, server: Process, browser: Browser) -> None:
        super().__init__(server, browser)
        # A room that no other test uses.
        self.room = f"room-{next(_numbers)}"

    # The server

    @property
    def store(self) -> Path:
        """The file of the server's store."""
        return self._server.cwd / "plait.db"

    def kill(self, by: signal.Signals = signal.SIGKILL) -> None:
        """End the server with a signal."""
        self._had_outage = True
        self._server.end(by)

    def start(self) -> None:
        """Start the server again, on the same port and the same store."""
        self._server.start()

    def close(self) -> None:
        """Close all pages, and leave the server running for the next test."""
        super().close()
        if not self._server.is_running:
            self.start()

    def connect(self, page: Page) -> None:
        """Give the network back to a page."""
        page.context.set_offline(False)

    def keep_pages(self, page: Page) -> None:
        """Serve a page without a network, as a service worker would."""
        page.context.route("**/*", _answer_from_disk)
        # To the browser such a page is from nowhere, and the server is in a private network.
        page.context.grant_permissions(["local-network-access"])

    def state(self, kind: str) -> Any:
        """Return the state of the room, as the server says."""
        return httpx.get(f"http://{self._server.address}/threads/{kind}/{self.room}").raise_for_status().json()

    # Pages

    def open(
        self,
        path: str,
        *,
        room: str | None = None,
        width: int = 1200,
        height: int = 800,
        touch: bool = False,
        sent: list[Any] | None = None,
        brake: Brake | None = None,
    ) -> Page:
        """Open a page in a browser context of its own, and wait until it is live; `sent` gets the frames it sends."""
        room = room or self.room
        page = self.new_page(width, height, touch=touch, brake=brake)
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


def find_end_of_loading(path: str) -> Literal["load", "networkidle"]:
    """Return the event after which a page has loaded all; a live list is a request that does not end."""
    return "load" if path in ("tictactoe/", "desk/") else "networkidle"


def record(page: Page, read: str) -> None:
    """Write down every value that a JavaScript expression has from here on, as the page changes."""
    page.evaluate(RECORD, read)


def recorded(page: Page) -> list[Any]:
    """Return the recorded entries."""
    values: list[Any] = page.evaluate("recorded")
    return values


def _keep_sent(socket: WebSocket, sent: list[Any]) -> None:
    socket.on("framesent", lambda frame: sent.append(json.loads(frame)))


def _answer_from_disk(route: Route) -> None:
    path = urlparse(route.request.url).path
    is_client = path.startswith("/plait/")
    file = ROOT / (f"server/plait/web/{Path(path).name}" if is_client else f"examples/pages{path}")
    route.fulfill(path=file / "index.html" if file.is_dir() else file)
