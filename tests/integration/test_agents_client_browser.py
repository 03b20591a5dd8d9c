"""The published client, AgentClient, in Chromium: it answers pings whatever the code of its page does."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from tests.running import Process

pytest_plugins = ["tests.integration.agents_client.fixtures"]

Play = Callable[..., Any]


@pytest.fixture
def play(agents_package: Path, browser: Browser, tmp_path: Path) -> Iterator[Play]:
    """Serve all kinds, and return what runs a scenario in a page of that server."""
    environment = {"PLAIT_STATIC": str(agents_package), "PLAIT_STORE": f"sqlite:///{tmp_path}/plait.db"}
    with Process("tests.integration.agents_client.app:app", cwd=tmp_path, environment=environment) as server:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://{server.address}/browser.html")
        page.wait_for_function("window.scenarios")
        yield lambda name, **options: page.evaluate(f"(options) => scenarios.{name}(options)", options)
        context.close()


def test_a_page_reads_writes_and_calls(play: Play) -> None:
    assert play("basics") == {"first": {"n": 0}, "result": 6, "state": {"n": 6}}


def test_a_page_that_wrote_offline_does_not_overwrite_a_newer_state(play: Play) -> None:
    newer = {"text": "newer"}
    assert play("offline", newer=newer) == {"state": newer, "errors": ["State update rejected"]}


def test_what_a_page_wrote_offline_is_kept_when_nobody_else_wrote(play: Play) -> None:
    assert play("offline") == {"state": {"text": "offline"}, "errors": []}


@pytest.mark.parametrize("busy", [0, 300], ids=["idle", "busy"])
def test_what_a_page_wrote_before_its_socket_was_open_is_what_it_shows(play: Play, busy: int) -> None:
    assert play("early", busy=busy) == {"state": {"text": "early"}, "errors": []}


def test_what_a_page_wrote_before_it_read_its_first_state_is_what_it_shows(play: Play) -> None:
    assert play("unread") == {"state": {"text": "unread"}, "errors": []}


def test_a_page_whose_write_crossed_another_one_shows_the_state_in_the_end(play: Play) -> None:
    result = play("crossing")
    assert result["state"] in ({"text": "mine"}, {"text": "theirs"})
    assert result["errors"] == []
