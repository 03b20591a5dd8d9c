"""The program of the page about React, built with esbuild: rooms, calls, presence and undo in two windows."""

import os
import subprocess
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.integration.browser import Pages
from tests.integration.builds import CLIENT, Builds
from tests.running import Process
from tests.test_docs import find_code, programs

SOURCES = CLIENT / "src"
PAGE = """<!doctype html>
<meta charset="utf-8">
<title>Board</title>
<main></main>
<script type="module" src="board.js"></script>
"""


@pytest.fixture(scope="module")
def address(builds: Builds, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Serve the program, built with the React that complains."""
    builds.install(CLIENT)
    folder = tmp_path_factory.mktemp("board")
    (app,) = programs("react")
    (folder / app.title).write_text(app.code)
    (folder / "board.tsx").write_text(find_code("react", "board.tsx"))
    pages = folder / "pages"
    pages.mkdir()
    (pages / "index.html").write_text(PAGE)
    aliases = {"plait-client/react": SOURCES / "react.ts", "plait-client": SOURCES / "index.ts"}
    command = [
        str(CLIENT / "node_modules/.bin/esbuild"),
        str(folder / "board.tsx"),
        f"--outfile={pages / 'board.js'}",
        *(f"--alias:{name}={file}" for name, file in aliases.items()),
        *("--bundle", "--format=esm", "--jsx=automatic"),
    ]
    subprocess.run(command, env=os.environ | {"NODE_PATH": str(CLIENT / "node_modules")}, check=True)
    with Process("board:app", cwd=folder) as server:
        yield server


@pytest.fixture
def windows(browser: Browser, address: Process) -> Iterator[Pages]:
    """Have windows of the test's own; no page may complain of anything."""
    opened = Pages(address, browser)
    try:
        yield opened
    finally:
        opened.close()
    assert opened.troubles == []


def open_board(windows: Pages, server: Process) -> Page:
    """Open the page, whose room has no name at first, and then the board."""
    page = windows.new_page(800, 600, touch=False, brake=None)
    page.goto(f"http://{server.address}/")
    expect(page.locator("#waiting")).to_have_text("No board yet")
    page.get_by_role("button", name="Open").click()
    expect(page.locator("#status")).to_have_text("online")
    return page


def test_two_windows_show_one_board_and_the_cursors_of_each_other(windows: Pages, address: Process) -> None:
    one, other = open_board(windows, address), open_board(windows, address)
    one.get_by_role("button", name="Add").click()
    for page in (one, other):
        expect(page.locator(".item")).to_have_text(["milk"])
    other.locator(".item").click()
    expect(one.locator(".item")).to_have_text(["milk!"])
    expect(one.get_by_role("button", name="Undo")).to_be_disabled()
    other.get_by_role("button", name="Undo").click()
    expect(one.locator(".item")).to_have_text(["milk"])
    one.mouse.move(100, 100)
    one.mouse.move(321, 100)
    expect(other.locator(".cursor")).to_have_count(1)
    expect(other.locator(".cursor")).to_have_css("left", "321px")
    one.close()
    expect(other.locator(".cursor")).to_have_count(0)


def test_a_room_stays_while_it_is_offline(windows: Pages, address: Process) -> None:
    page = open_board(windows, address)
    windows.cut_off(page)
    expect(page.locator("#status")).to_have_text("offline")
    expect(page.locator("#waiting")).to_have_count(0)
    page.context.set_offline(False)
    expect(page.locator("#status")).to_have_text("online")
