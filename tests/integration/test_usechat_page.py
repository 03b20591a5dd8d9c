"""The page of the guide to `useChat`, as it is written there: in two tabs, over reloads and kills of the server."""

import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from tests.integration.browser import Pages
from tests.integration.builds import Builds, run_node
from tests.running import Process
from tests.schedules import in_soak
from tests.test_docs import SECRETS, find_code, programs

FOLDER = Path(__file__).parent / "usechat"
STORY = "Once upon a time, " + "and then, " * 40 + "the end."
HTML = '<!doctype html><meta charset="utf-8"><div id="chat"></div><script type="module" src="chat.js"></script>'

_rooms = count(1)


@pytest.fixture(scope="session")
def bundle(builds: Builds) -> Path:
    """Bundle the page of the guide, with the published packages."""
    package = builds.install(FOLDER, "--ignore-scripts")

    def make(folder: Path) -> None:
        (folder / "chat.jsx").write_text(find_code("usechat", "chat.jsx"))
        (folder / "index.html").write_text(HTML)
        (folder / "node_modules").symlink_to(package / "node_modules")
        options = ["--bundle", "--format=esm", "--jsx=automatic", "--outfile=chat.js"]
        run_node(folder, ["esbuild/bin/esbuild", "chat.jsx", *options])
        (folder / "node_modules").unlink()

    return builds.build("usechat-page", make)


@pytest.fixture(scope="module")
def server(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Serve the app of the guide; each test has a room of its own."""
    folder = tmp_path_factory.mktemp("usechat")
    (app,) = programs("usechat")
    (folder / app.title).write_text(app.code)
    (folder / "pages").symlink_to(bundle)
    environment = {**SECRETS, "PLAIT_STORE": "sqlite:///plait.db", "PLAIT_SHUTDOWN_TIMEOUT": "1"}
    with Process("support:app", cwd=folder, environment=environment) as process:
        yield process


class Chats(Pages):
    """A room of the server, and its tabs."""

    def __init__(self, server: Process, browser: Browser) -> None:
        super().__init__(server, browser)
        self.url = f"http://{server.address}/#room-{next(_rooms)}"

    def open(self) -> Page:
        """Open another tab."""
        page = self.new_page(800, 600, touch=False, brake=None)
        page.goto(self.url)
        expect(page.locator("output")).to_be_visible()
        return page

    def kill(self) -> None:
        """Kill the server, and start it again."""
        self.expect_outage()
        self._server.end(signal.SIGKILL)
        self._server.start()


@pytest.fixture
def chats(browser: Browser, server: Process) -> Iterator[Chats]:
    opened = Chats(server, browser)
    yield opened
    opened.close()
    assert opened.troubles == []


def say(page: Page, text: str) -> None:
    """Send a message."""
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def expect_ready(page: Page) -> None:
    """Expect that nothing is being answered."""
    expect(page.locator("output")).to_have_text("ready")


def read(page: Page) -> list[list[str]]:
    """Return the messages as the page shows them."""
    found: list[list[str]] = page.locator("section").evaluate_all(
        "all => all.map((each) => [each.id, each.dataset.role, each.innerText])"
    )
    return found


def test_an_answer_goes_on_over_a_reload_and_in_another_tab(chats: Chats) -> None:
    page = chats.open()
    say(page, "a story")
    expect(page.locator("section").last).to_contain_text("and then")
    page.reload()
    other = chats.open()
    for each in (page, other):
        expect(each.locator("section").last).to_have_text(STORY)
        expect_ready(each)
    assert read(page) == read(other)
    assert [role for _, role, _ in read(page)] == ["user", "assistant"]


def test_a_stop_in_another_tab_stops_both(chats: Chats) -> None:
    page = chats.open()
    say(page, "a story")
    expect(page.locator("section").last).to_contain_text("and then")
    other = chats.open()
    expect(other.locator("section").last).to_contain_text("and then")
    other.get_by_role("button", name="Stop").click()
    for each in (page, other):
        expect_ready(each)
        expect(each.locator("section").last).not_to_contain_text("the end.")
    shown = read(page)
    page.reload()
    expect(page.locator("section")).to_have_count(2)
    assert read(other) == shown == read(page)


def test_a_call_is_approved_in_another_tab_after_a_kill(chats: Chats) -> None:
    page = chats.open()
    say(page, "refund order 7")
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    other = chats.open()
    chats.kill()
    other.get_by_role("button", name="Approve").click()
    expect(other.locator("section").last).to_contain_text("Order 7 is paid back.")
    expect_ready(other)
    page.reload()
    expect(page.locator("section").last).to_contain_text("Order 7 is paid back.")
    assert read(other) == read(page)


def test_a_refused_call_is_not_carried_out(chats: Chats) -> None:
    page = chats.open()
    say(page, "refund order 7")
    page.get_by_role("button", name="Refuse").click()
    expect(page.locator('[data-state="output-denied"]')).to_have_count(1)
    expect(page.locator("section").last).to_contain_text("a person has refused the call")
    expect_ready(page)


def test_an_answer_is_made_again(chats: Chats) -> None:
    page = chats.open()
    say(page, "a story")
    expect_ready(page)
    page.get_by_role("button", name="Again").click()
    expect(page.locator("section").last).to_have_text(STORY)
    expect_ready(page)
    assert len(read(page)) == 2


@pytest.mark.parametrize("number", [*range(6), *in_soak(*([number] for number in range(6, 100)))])
def test_an_answer_is_whole_after_a_kill_in_its_middle(chats: Chats, number: int) -> None:
    page = chats.open()
    say(page, "a story")
    expect(page.locator("section").last).to_contain_text("and then, " * (1 + number % 30))
    chats.kill()
    expect(page.locator("section").last).to_have_text(STORY)
    expect_ready(page)
    shown = read(page)
    assert len(shown) == 2
    page.reload()
    expect(page.locator("section")).to_have_count(2)
    assert read(page) == shown
    api = chats.url.replace("/#", "/threads/support/") + "/chat"
    assert httpx.get(api).json()["status"] == "idle"


def test_a_question_that_the_server_has_not_got_is_sent_again(chats: Chats, server: Process) -> None:
    page = chats.open()
    chats.expect_outage()
    server.end(signal.SIGKILL)
    say(page, "a story")
    expect(page.locator("section")).to_have_count(1)
    server.start()
    expect(page.locator("section").last).to_have_text(STORY)
    expect_ready(page)
    assert len(read(page)) == 2
