"""The todo list in React: built with Vite, served by `plait serve`, used in two browsers."""

import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.integration.browser import Brake, Pages, record, recorded
from tests.integration.builds import Builds, run_node
from tests.running import Process
from tests.schedules import in_soak

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "todo-react"

SHARE = "Open this list in a second window"
MOVE = "Drag a todo by its handle, or press the arrow keys on it"
OFFLINE = "Switch the network off, and go on"
START = "Start the server"
WELCOME = [SHARE, MOVE, OFFLINE, START]
# The titles, for `record`.
READ_TITLES = """[...document.querySelectorAll(".row .title")].map((title) => title.textContent)"""
# What ends to the right of the window.
TOO_WIDE = """() => [...document.body.querySelectorAll("*")]
    .filter((element) => element.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .map((element) => element.outerHTML.slice(0, 100))"""


class Lists(Pages):
    """One of the server's lists, and people who use it."""

    def __init__(self, server: Process, browser: Browser) -> None:
        super().__init__(server, browser)
        self._list = secrets.token_hex(4)

    def open(self, *, width: int = 1280, name: str | None = None, brake: Brake | None = None) -> Page:
        """Open the list in a browser context of its own, and wait until it is live."""
        page = self.new_page(width, 844, touch=width < 600, brake=brake)
        page.goto(f"http://{self._server.address}/?list={self._list}")
        expect_status(page, "Live")
        if name is not None:
            page.get_by_label("Your name").fill(name)
        return page

    def cut_off(self, page: Page) -> None:
        """Take the network from a page, and wait until it says so."""
        super().cut_off(page)
        expect_status(page, "Offline")

    def titles(self) -> list[str]:
        """Return the list as the server has it."""
        url = f"http://{self._server.address}/threads/todo-list/{self._list}"
        state: Any = httpx.get(url).raise_for_status().json()
        return [state["todos"][id]["title"] for id in state["order"]]


# Building


@pytest.fixture(scope="module")
def installed(builds: Builds) -> Path:
    """Install what the example and the client need and compile the client, where that has not been done."""
    builds.compile_client()
    return builds.install(EXAMPLE, "--ignore-scripts")


@pytest.fixture(scope="module")
def development(installed: Path, builds: Builds) -> Path:
    """Build with the React that makes StrictMode strict, and complains."""

    def make(folder: Path) -> None:
        arguments = ["vite/bin/vite.js", "build", "--mode", "development", "--outDir", str(folder)]
        run_node(installed, arguments, {"NODE_ENV": "development"})

    return builds.build("todo-development", make)


@pytest.fixture(scope="module")
def production(installed: Path, builds: Builds) -> Path:
    """Build as `npm run build` does."""
    return builds.build(
        "todo-production",
        lambda folder: run_node(installed, ["vite/bin/vite.js", "build", "--outDir", str(folder)]),
    )


@pytest.fixture(scope="module")
def server(development: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Serve the example from a store file."""
    with serving(development, tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture
def lists(browser: Browser, server: Process) -> Iterator[Lists]:
    """Have a list of the test's own; no page may complain of anything."""
    opened = Lists(server, browser)
    try:
        yield opened
    finally:
        opened.close()
    assert opened.troubles == []


def serving(pages: Path, folder: Path) -> Process:
    environment = {
        "PYTHONPATH": str(EXAMPLE),
        "PLAIT_STORE": f"sqlite:///{folder}/todos.db",
        "PLAIT_STATIC": str(pages),
    }
    return Process("app:app", cwd=folder, environment=environment)


@pytest.mark.release
def test_the_example_has_no_type_errors(installed: Path) -> None:
    run_node(installed, ["typescript/bin/tsc", "--noEmit"])


def test_the_types_are_those_of_the_app() -> None:
    command = [sys.executable, "-m", "plait.cli", "types", "app:app", "--out", "src", "--check"]
    done = subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_are_short_and_export_by_name() -> None:
    for file in (EXAMPLE / "src").glob("*.ts*"):
        text = file.read_text()
        assert len(text.splitlines()) <= 150, file
        assert "export default" not in text, file
    assert len((EXAMPLE / "app.py").read_text().splitlines()) <= 80


# The other tests show the same pages as they are served while they are written.
@pytest.mark.release
def test_a_build_for_production_works(browser: Browser, production: Path, tmp_path: Path) -> None:
    with serving(production, tmp_path) as server:
        opened = Lists(server, browser)
        page = opened.open()
        add(page, "Ship it")
        expect_titles(page, ["Ship it", *WELCOME])
        opened.close()
    assert opened.troubles == []


# Changes


def test_what_one_types_appears_in_the_other(lists: Lists) -> None:
    one, other = lists.open(name="Ada"), lists.open()
    composer(one).press_sequentially("Buy mil")
    expect(other.locator(".ghost")).to_have_text("AdaBuy mil")
    composer(one).press_sequentially("k")
    composer(one).press("Enter")
    expect_titles(other, ["Buy milk", *WELCOME])
    expect(other.locator(".ghost")).to_have_count(0)
    expect(composer(one)).to_have_value("")


@pytest.mark.release
def test_a_tick_and_a_deletion_appear_in_the_other(lists: Lists) -> None:
    one, other = lists.open(), lists.open()
    tick(one, SHARE)
    expect(other.get_by_label(f"{SHARE} is done")).to_be_checked()
    expect(other.locator(".open-count")).to_have_text("2 to do")
    row(one, MOVE).hover()
    one.get_by_label(f"Delete {MOVE}").click()
    expect_titles(other, [SHARE, OFFLINE, START])


def test_a_refused_change_is_shown_rolled_back_and_explained(lists: Lists) -> None:
    brake = Brake()
    one, other = lists.open(brake=brake), lists.open()
    record(other, READ_TITLES)
    brake.hold()
    add(one, SHARE)
    expect_titles(one, [SHARE, *WELCOME])
    expect(composer(one)).to_have_value("")
    brake.release()
    expect(one.get_by_role("alert")).to_have_text(f"“{SHARE}” is on the list already")
    expect_titles(one, WELCOME)
    # It is back in the composer, to be changed, and no other page has shown it.
    expect(composer(one)).to_have_value(SHARE)
    add(one, "Another")
    expect_titles(other, ["Another", *WELCOME])
    assert recorded(other) == [WELCOME, ["Another", *WELCOME]]


def test_undo_takes_back_what_is_ones_own(lists: Lists) -> None:
    one, other = lists.open(), lists.open()
    rename(one, SHARE, "Open it on a phone")
    expect_titles(other, ["Open it on a phone", MOVE, OFFLINE, START])
    tick(other, MOVE)
    expect(one.get_by_label(f"{MOVE} is done")).to_be_checked()
    undo(one)
    for page in (one, other):
        expect_titles(page, WELCOME)
        expect(page.get_by_label(f"{MOVE} is done")).to_be_checked()
    undo(one)
    expect(one.get_by_role("status").last).to_contain_text("There is nothing of yours to undo")
    other.locator("h1").click()
    other.keyboard.press("Control+z")
    expect(one.get_by_label(f"{MOVE} is done")).not_to_be_checked()


def test_an_undo_that_would_undo_the_work_of_others_is_refused(lists: Lists) -> None:
    one, other = lists.open(), lists.open()
    rename(one, SHARE, "Mine")
    expect_titles(other, ["Mine", MOVE, OFFLINE, START])
    rename(other, "Mine", "Ours")
    expect_titles(one, ["Ours", MOVE, OFFLINE, START])
    undo(one)
    expect(one.get_by_role("alert")).to_have_text("Someone else has changed that first")
    expect_titles(one, ["Ours", MOVE, OFFLINE, START])


@pytest.mark.release
def test_clearing_is_told_to_all_and_can_be_brought_back(lists: Lists) -> None:
    one, other = lists.open(), lists.open()
    one.get_by_role("button", name="Clear done").click()
    expect_titles(other, WELCOME[:3])
    expect(one.get_by_role("button", name="Clear done")).to_be_disabled()
    other.get_by_role("button", name="Bring back").click()
    expect_titles(one, WELCOME)


@pytest.mark.release
def test_undo_takes_back_a_clearing_that_was_the_last_thing_one_did(lists: Lists) -> None:
    one, other = lists.open(), lists.open()
    rename(one, SHARE, "Open it on a phone")
    one.get_by_role("button", name="Clear done").click()
    expect_titles(other, ["Open it on a phone", MOVE, OFFLINE])
    undo(other)
    expect(other.locator(".notice")).to_contain_text("There is nothing of yours to undo")
    undo(one)
    expect_titles(other, ["Open it on a phone", MOVE, OFFLINE, START])
    expect(one.locator(".notice")).to_have_count(0)
    undo(one)
    expect_titles(other, WELCOME)


@pytest.mark.release
def test_undo_takes_back_what_one_did_after_a_clearing_first(lists: Lists) -> None:
    page = lists.open()
    page.get_by_role("button", name="Clear done").click()
    expect_titles(page, WELCOME[:3])
    rename(page, SHARE, "Open it on a phone")
    expect_titles(page, ["Open it on a phone", MOVE, OFFLINE])
    undo(page)
    expect_titles(page, WELCOME[:3])


@pytest.mark.release
def test_a_filter_is_this_pages_own(lists: Lists) -> None:
    one, other = lists.open(), lists.open()
    one.get_by_role("button", name="Open", exact=True).click()
    expect_titles(one, WELCOME[:3])
    tick(one, MOVE)
    expect_titles(one, [SHARE, OFFLINE])
    one.get_by_role("button", name="Done", exact=True).click()
    expect_titles(one, [MOVE, START])
    expect_titles(other, WELCOME)


# Order


@pytest.mark.release
def test_dragging_moves_a_todo_for_everybody(lists: Lists) -> None:
    one, other = lists.open(), lists.open()
    record(other, READ_TITLES)
    drag(one, START, above=MOVE)
    expect_titles(one, [SHARE, START, MOVE, OFFLINE])
    expect_titles(other, [SHARE, START, MOVE, OFFLINE])
    assert recorded(other) == [WELCOME, [SHARE, START, MOVE, OFFLINE]]


def test_arrow_keys_move_a_todo_and_keep_its_handle(lists: Lists) -> None:
    page = lists.open()
    handle(page, SHARE).press("ArrowDown")
    expect_titles(page, [MOVE, SHARE, OFFLINE, START])
    expect(handle(page, SHARE)).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect_titles(page, [MOVE, OFFLINE, START, SHARE])
    page.keyboard.press("ArrowUp")
    expect_titles(page, [MOVE, OFFLINE, SHARE, START])


def test_a_move_made_offline_is_merged_with_what_others_did(lists: Lists) -> None:
    one, other = lists.open(), lists.open()
    lists.cut_off(one)
    handle(one, START).press("ArrowUp")
    expect_status(one, "Offline · 1 waiting")
    add(other, "First")
    rename(other, START, "Start it")
    expect_titles(other, ["First", SHARE, MOVE, OFFLINE, "Start it"])
    one.context.set_offline(False)
    for page in (one, other):
        expect_titles(page, ["First", SHARE, MOVE, "Start it", OFFLINE])
    assert lists.titles() == ["First", SHARE, MOVE, "Start it", OFFLINE]


# Presence and connection


def test_everybody_sees_who_is_here_and_what_they_edit(lists: Lists) -> None:
    one, other = lists.open(name="Ada"), lists.open(name="Grace")
    people = other.get_by_role("list", name="Who is here").get_by_role("listitem")
    expect(people).to_have_text(["you", "Ada"])
    one.get_by_label(f"Edit {SHARE}").click()
    expect(row(other, SHARE).locator(".tag")).to_have_text("Ada")
    one.get_by_label("Title").fill("Open it on")
    expect(row(other, SHARE).locator(".title")).to_have_text("Open it on")
    assert lists.titles() == WELCOME
    one.keyboard.press("Escape")
    expect(other.locator(".row .tag")).to_have_count(0)
    expect_titles(other, WELCOME)
    one.get_by_label(f"Edit {SHARE}").click()
    expect(people.last).to_have_text("Adatyping…")
    other.get_by_label(f"Delete {SHARE}").click(force=True)
    expect(people).to_have_text(["you", "Ada"])
    one.context.close()
    expect(people).to_have_text(["you"])


@pytest.mark.release
def test_nobody_is_without_a_name(lists: Lists) -> None:
    one, other = lists.open(name="Ada"), lists.open(name="Grace")
    one.get_by_label("Your name").fill(" ")
    one.get_by_label("Your name").press("Enter")
    expect(one.get_by_label("Your name")).to_have_value("Ada")
    expect(one.get_by_label("Your name")).not_to_be_focused()
    expect(other.get_by_role("list", name="Who is here").get_by_role("listitem")).to_have_text(["you", "Ada"])


@pytest.mark.release
def test_a_page_says_what_can_be_done_offline(lists: Lists) -> None:
    page = lists.open()
    note = page.locator(".offline-note")
    expect(note).to_have_count(0)
    lists.cut_off(page)
    expect(note).to_have_text(
        "You can go on: what you change is kept here and sent later. Undo and Clear done need the server."
    )
    page.context.set_offline(False)
    expect(note).to_have_count(0)


@pytest.mark.release
def test_a_page_that_cannot_reach_the_server_says_so(lists: Lists) -> None:
    page = lists.open()
    page.route_web_socket("**/threads/**", lambda socket: socket.close())
    page.goto(page.url.replace("?list=", "?list=x"))
    expect(page.locator(".empty")).to_have_text("The server cannot be reached. The list opens as soon as it can.")


def test_changes_made_offline_are_marked_and_arrive_later(lists: Lists) -> None:
    one, other = lists.open(), lists.open()
    lists.cut_off(one)
    tick(one, SHARE)
    expect_status(one, "Offline · 1 waiting")
    expect(row(one, SHARE).locator("[data-icon=clock]")).to_be_visible()
    expect(one.locator("[data-icon=clock]")).to_have_count(1)
    expect(one.get_by_role("button", name="Undo")).to_be_disabled()
    one.context.set_offline(False)
    expect_status(one, "Live")
    expect(other.get_by_label(f"{SHARE} is done")).to_be_checked()
    expect(one.locator("[data-icon=clock]")).to_have_count(0)


def test_a_reload_keeps_the_list_and_whose_its_changes_are(lists: Lists) -> None:
    page = lists.open(name="Ada")
    add(page, "Stay")
    expect_titles(page, ["Stay", *WELCOME])
    page.reload()
    expect_titles(page, ["Stay", *WELCOME])
    expect(page.get_by_label("Your name")).to_have_value("Ada")
    expect_status(page, "Live")
    undo(page)
    expect_titles(page, WELCOME)


# Rendering


def test_a_row_does_not_render_when_another_changes(lists: Lists) -> None:
    one, other = lists.open(), lists.open()
    # StrictMode runs the effect of the first render twice.
    before = {SHARE: 2, MOVE: 2, OFFLINE: 2, START: 2}
    expect_titles(other, WELCOME)
    assert renders(other) == before
    tick(one, MOVE)
    expect(other.get_by_label(f"{MOVE} is done")).to_be_checked()
    assert renders(other) == {**before, MOVE: 3}
    add(one, "Another")
    expect_titles(other, ["Another", *WELCOME])
    drag(one, START, above=SHARE)
    expect_titles(other, ["Another", START, SHARE, MOVE, OFFLINE])
    one.get_by_label(f"Edit {SHARE}").click()
    expect(row(other, SHARE).locator(".tag")).to_be_visible()
    # One render shows the editor; moving is none.
    assert renders(other) == {**before, "Another": 2, MOVE: 3, SHARE: 3}


@pytest.mark.release
def test_whatever_has_the_focus_has_a_ring_and_what_can_be_pressed_is_seen(lists: Lists) -> None:
    page = lists.open()
    for field, ring in (
        (composer(page), page.locator(".composer")),
        (page.get_by_label("Your name"), page.locator(".person").first),
        (page.get_by_label(f"Delete {SHARE}"), page.get_by_label(f"Delete {SHARE}")),
    ):
        field.focus()
        page.keyboard.press("Shift")
        expect(ring).to_have_css("outline-style", "solid")
        expect(ring).to_have_css("outline-width", "3px")
    page.get_by_label(f"Edit {SHARE}").click()
    expect(page.get_by_label("Title")).to_have_css("outline-style", "solid")
    for title in WELCOME:
        expect(page.get_by_label(f"Delete {title}")).to_have_css("opacity", "1")


@pytest.mark.release
@pytest.mark.parametrize("width", [320, *in_soak([1280], [390])])
def test_the_page_is_no_wider_than_its_window(lists: Lists, width: int) -> None:
    page, other = lists.open(width=width, name="N" * 24), lists.open(name="M" * 24)
    add(page, "W" * 120)
    # By key: the rows move when what is being written above them comes and goes, and a click would miss them.
    other.get_by_label(f"Edit {SHARE}").press("Enter")
    expect(row(page, SHARE).locator(".tag")).to_be_visible()
    composer(other).fill("V" * 120)
    expect(page.locator(".ghost")).to_be_visible()
    page.get_by_label(f"Edit {MOVE}").press("Enter")
    expect(row(other, MOVE).locator(".tag")).to_be_visible()
    expect(page.locator(".row")).to_have_count(5)
    assert page.evaluate(TOO_WIDE) == []


# The page


def composer(page: Page) -> Locator:
    return page.get_by_label("What is to be done?")


def row(page: Page, title: str) -> Locator:
    return page.locator(".row", has=page.get_by_label(f"Edit {title}"))


def handle(page: Page, title: str) -> Locator:
    return page.get_by_label(f"Move {title}")


def add(page: Page, title: str) -> None:
    composer(page).fill(title)
    composer(page).press("Enter")


def tick(page: Page, title: str) -> None:
    page.get_by_label(f"{title} is done").click()


def rename(page: Page, title: str, to: str) -> None:
    page.get_by_label(f"Edit {title}").click()
    page.get_by_label("Title").fill(to)
    page.keyboard.press("Enter")


def undo(page: Page) -> None:
    page.get_by_role("button", name="Undo").click()


def drag(page: Page, title: str, *, above: str) -> None:
    handle(page, title).hover()
    page.mouse.down()
    row(page, above).hover(position={"x": 10, "y": 5}, force=True)
    page.mouse.up()


def renders(page: Page) -> dict[str, int]:
    rows: list[list[str]] = page.locator(".row").evaluate_all(
        """(rows) => rows.map((row) => [row.querySelector(".title").textContent, row.dataset.renders])"""
    )
    return {title: int(count) for title, count in rows}


def expect_titles(page: Page, titles: Sequence[str]) -> None:
    expect(page.locator(".row .title")).to_have_text(titles)


def expect_status(page: Page, text: str) -> None:
    expect(page.locator(".status")).to_have_text(text)
