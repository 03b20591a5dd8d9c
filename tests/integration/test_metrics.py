"""The metrics of a server, read while people use the board in Chromium."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect
from tests.integration.browser import Demo
from tests.integration.test_board_page import DOING, DONE, add_card, expect_titles
from tests.running import Process
from tests.server.instruments.test_prometheus import read


@pytest.fixture
def watched(browser: Browser, tmp_path: Path) -> Iterator[tuple[Demo, Process]]:
    """Serve the demo with its metrics."""
    environment = {"PLAIT_STORE": f"sqlite:///{tmp_path}/plait.db"}
    with Process("examples.demo:app", cwd=tmp_path, environment=environment, options=["--metrics"]) as server:
        demo = Demo(server, browser)
        try:
            yield demo, server
        finally:
            demo.close()


def test_what_two_people_do_on_the_board_is_counted(watched: tuple[Demo, Process]) -> None:
    demo, server = watched
    one, other = demo.open_two("board/")
    for title in ("Ship it", "Tell all"):
        add_card(one, "done", title)
        add_card(other, "todo", title)
    expect_titles(other, "done", [*DONE, "Ship it", "Tell all"])
    add_card(one, "doing", "Second")
    expect_titles(other, "doing", [*DOING, "Second"])
    add_card(other, "doing", "Third")
    expect(other.locator(".notice")).to_contain_text("limited to 2")
    one.click("#undo")
    expect_titles(other, "doing", DOING)
    version = int(
        httpx.get(f"http://{server.address}/threads/board/{demo.room}").headers["etag"].rpartition(":")[2][:-1]
    )
    assert version == 6

    answer = httpx.get(f"http://{server.address}/metrics").raise_for_status()
    found = read(answer.text)
    board = "board"
    dashboard = {
        "sockets": found["plait_sockets", "plait.v1"],
        "opened": found["plait_sockets_opened_total", "plait.v1"],
        "joins": found["plait_joins_total", board, "plait.v1", "snapshot"],
        "awake": found["plait_threads_awake", board],
        "woken": found["plait_wake_seconds_count", board],
        "pushes": sum(found.get(("plait_pushes_total", board, each), 0) for each in ("accepted", "rebased")),
        "refused": found["plait_pushes_total", board, "rejected"],
        "answered": found["plait_messages_total", board, "push", "ok"],
        "calls": found["plait_messages_total", board, "call", "ok"],
        "turns": found["plait_turns_total", board, "rpc undo", "ok"],
        "running": found["plait_turns_running", board],
        # `on_start`, the undo, and `on_state_changed` for each version.
        "waited": found["plait_turn_wait_seconds_count", board],
        "changes": found["plait_changes_total", board, "ok"],
        "commits": found["plait_commit_seconds_count", board],
        # A push is sent to the other; what the server changes for an undo, to both.
        "sent": found["plait_changes_sent_total", board],
        "requests": found["plait_requests_total", board, "GET", "200"],
    }
    assert dashboard == {
        "sockets": 2,
        "opened": 2,
        "joins": 2,
        "awake": 1,
        "woken": 1,
        "pushes": 5,
        "refused": 1,
        "answered": 5,
        "calls": 1,
        "turns": 1,
        "running": 0,
        "waited": 1 + 1 + 6,
        "changes": 6,
        "commits": 6,
        "sent": 5 + 2,
        "requests": 1,
    }
    assert 0 < found["plait_commit_seconds_sum", board] < found["plait_message_seconds_sum", board, "push"] * 10
    assert found["plait_change_bytes_sum", board] > 100
