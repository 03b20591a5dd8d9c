"""The published client, AgentClient, in Chromium: it answers pings whatever the code of its page does."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page
from tests.running import Process
from tests.schedules import in_soak

pytest_plugins = ["tests.integration.agents_client.fixtures"]

Play = Callable[..., Any]

log = logging.getLogger(__name__)

# More for figures: CROSSINGS=200 pytest …
CROSSINGS: Final = int(os.environ.get("CROSSINGS") or 10)


@pytest.fixture
def pages(agents_package: Path, browser: Browser, tmp_path: Path) -> Iterator[Callable[[], Page]]:
    """Serve all kinds, and return what opens pages of that server."""
    environment = {"PLAIT_STATIC": str(agents_package), "PLAIT_STORE": f"sqlite:///{tmp_path}/plait.db"}
    with Process("tests.integration.agents_client.app:app", cwd=tmp_path, environment=environment) as server:
        context = browser.new_context()

        def open_page() -> Page:
            page = context.new_page()
            page.goto(f"http://{server.address}/browser.html")
            page.wait_for_function("window.scenarios")
            return page

        yield open_page
        context.close()


@pytest.fixture
def play(pages: Callable[[], Page]) -> Play:
    """Return what runs a scenario in a page."""
    page = pages()
    return lambda name, **options: page.evaluate(f"(options) => scenarios.{name}(options)", options)


def test_a_page_reads_writes_and_calls(play: Play) -> None:
    assert play("basics") == {"first": {"n": 0}, "result": 6, "state": {"n": 6}}


def test_a_page_that_wrote_offline_does_not_overwrite_a_newer_state(play: Play) -> None:
    newer = {"text": "newer"}
    assert play("offline", newer=newer) == {"state": newer, "errors": ["State update rejected"]}


def test_what_a_page_wrote_offline_is_kept_when_nobody_else_wrote(play: Play) -> None:
    assert play("offline") == {"state": {"text": "offline"}, "errors": []}


@pytest.mark.parametrize("busy", [300, *in_soak([0])], ids=["busy", "idle"])
def test_what_a_page_wrote_before_its_socket_was_open_is_what_it_shows(play: Play, busy: int) -> None:
    assert play("early", busy=busy) == {"state": {"text": "early"}, "errors": []}


def test_what_a_page_wrote_before_it_read_its_first_state_is_what_it_shows(play: Play) -> None:
    assert play("unread") == {"state": {"text": "unread"}, "errors": []}


def test_a_page_whose_write_crossed_another_one_shows_the_state_in_the_end(play: Play) -> None:
    result = play("crossing")
    assert result["state"] in ({"text": "mine"}, {"text": "theirs"})
    assert result["errors"] == []


ROWS: Final = [{"id": id, "title": f"row {id}"} for id in (1, 2, 3)]
CASES: Final = [
    [{"items": ["first"]}, {"items": ["second"]}],
    [{"count": 1, "items": ["first"]}, {"count": 2, "items": ["second"]}, {"count": 3, "items": ["third"]}],
    [{"text": "Hello big world"}, {"text": "Hello"}],
    [{"text": "Hello"}, {"text": "Hello big world"}],
    [{"rows": ROWS}, {"rows": ROWS[:1]}],
    [{"rows": ROWS}, {"rows": [ROWS[2], ROWS[0]]}],
    [{"items": [1, 2, 3]}, {"items": [1]}],
    [{"items": [1, 1, 1]}, {"items": [1]}, {"items": []}],
]


def test_what_a_page_writes_alone_is_the_state(play: Play) -> None:
    delays = range(0, 256, 8) if CROSSINGS > 100 else (0, 4, 200)
    result = play("plain", cases=CASES, delays=list(delays))
    log.warning("%d plain writes, %d wrong", result["count"], len(result["wrong"]))
    assert result["wrong"] == []


@pytest.mark.parametrize(("burst", "busy"), [(2, 0), (5, 40), *in_soak((1, 0), (1, 40), (2, 40), (5, 0))])
def test_pages_that_write_at_the_same_moment_double_nothing_and_end_alike(
    pages: Callable[[], Page], busy: int, burst: int
) -> None:
    left, right = pages(), pages()
    options = {"rounds": CROSSINGS, "busy": busy, "burst": burst}
    right.evaluate("(options) => { window.followed = scenarios.follow(options); }", options)
    result = left.evaluate("(options) => scenarios.lead(options)", options)
    log.warning(
        "%d crossings of two pages with %d writes each, busy for %d ms: %d writes lost, %d rounds doubled",
        CROSSINGS, burst, busy, result["lost"], len(result["doubled"]),
    )  # fmt: skip
    assert right.evaluate("window.followed") == []
    assert result["errors"] == []
    assert result["doubled"] == []
    assert result["lost"] <= CROSSINGS * (2 * burst - 1)
