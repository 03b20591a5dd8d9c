"""The pages of the guide to cursors: each shows where the pointers of others are, by presence or by messages."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.running import Process
from tests.test_docs import find_code, programs

PAGES = ("", "fast.html")


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    (app,) = programs("cursors")
    (tmp_path / app.title).write_text(app.code)
    (tmp_path / "pages").mkdir()
    for name in ("pages/index.html", "pages/fast.html"):
        (tmp_path / name).write_text(find_code("cursors", name))
    with Process("canvas:app", cwd=tmp_path) as server:
        yield server.address


@pytest.fixture
def windows(browser: Browser) -> Iterator[Browser]:
    yield browser
    for context in browser.contexts:
        context.close()


def open_page(windows: Browser, url: str, frames: list[str] | None = None) -> Page:
    """Open a page of a size of its own, and hear the frames that it gets."""
    page = windows.new_page(viewport={"width": 400 if frames is None else 800, "height": 400})
    if frames is not None:
        page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: frames.append(str(frame))))
    with page.expect_event("websocket") as socket:
        page.goto(url)
    socket.value.wait_for_event("framereceived")
    return page


def expect_place(page: Page, name: str, place: str) -> None:
    """Wait until a page shows a cursor at its place. The pages of others have one, too, if Chromium moves it."""
    expect(page.locator(".cursor", has_text=name)).to_have_attribute("style", f"translate: {place};")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_shows_the_cursors_of_others_until_they_leave(windows: Browser, address: str, path: str) -> None:
    ada, bob = (open_page(windows, f"http://{address}/{path}?name={name}") for name in ("Ada", "Bob"))
    ada.mouse.move(100, 200)
    expect_place(bob, "Ada", "100px 200px")
    ada.mouse.move(200, 100)
    expect_place(bob, "Ada", "200px 100px")
    # One who joins later sees it, at its place in a window of another size.
    late = open_page(windows, f"http://{address}/{path}?name=Eve", [])
    expect_place(late, "Ada", "400px 100px")
    expect(ada.locator(".cursor", has_text="Ada")).to_have_count(0)
    ada.close()
    expect(bob.locator(".cursor", has_text="Ada")).to_have_count(0)


def test_each_message_is_delivered_and_presence_leaves_places_out(windows: Browser, address: str) -> None:
    moves = "for (let n = 1; n <= 60; n++) { room.send([n, 0]); room.setPresence({ name: 'Ada', at: [n, 0] }); }"
    client = "const { ThreadClient } = await import('/plait/client.js');"
    ada = open_page(windows, f"http://{address}/fast.html?name=Ada")
    frames: list[str] = []
    bob = open_page(windows, f"http://{address}/fast.html?name=Bob", frames)
    ada.evaluate(f"async () => {{ {client} window.room = new ThreadClient({{ kind: 'canvas', name: 'one' }}); }}")
    ada.evaluate("room.ready")
    ada.evaluate(f"() => {{ {moves} }}")
    bob.wait_for_function("[...document.querySelectorAll('.cursor')].some(each => each.textContent === '➤ Ada')")
    received = [json.loads(frame) for frame in frames]
    # The page itself may send the place 0, 0.
    places = [frame["data"][1] for frame in received if frame["type"] == "message" and frame["data"][1] > 0]
    assert places == list(range(1, 61))
    assert len([frame for frame in received if frame["type"] == "presence"]) < 60
