"""The app and the page of the guide to logins: who is logged in stays, and who is logged out is gone everywhere."""

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from playwright.sync_api import Browser, Page, expect
from tests.running import Process
from tests.test_docs import SECRETS, find_code, programs

from plait_client import Closed, SyncRoom, connect_sync

# Seconds for which a cookie is valid.
SECONDS = 4
PASSWORDS = {"ada": "lovelace", "grace": "hopper"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    (app,) = [block for block in programs("login") if block.is_app]
    (tmp_path / app.title).write_text(app.code)
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.html").write_text(find_code("login", "pages/index.html"))
    environment = {**SECRETS, "DIARY_SECONDS": str(SECONDS), "PLAIT_METRICS": "1"}
    with Process("diary:app", cwd=tmp_path, environment=environment) as server:
        yield server


@pytest.fixture
def pages(browser: Browser) -> Iterator[Browser]:
    yield browser
    for context in browser.contexts:
        context.close()


def log_in(server: Process, page: Page, user: str, password: str) -> None:
    """Open the page, and fill in its form."""
    page.goto(f"http://{server.address}/")
    page.get_by_label("Name").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def fetch(server: Process, path: str, token: str = "", data: Any = None) -> httpx.Response:
    """Send a POST as a program does."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.post(f"http://{server.address}{path}", headers=headers, json=data)


def fetch_token(server: Process, user: str) -> str:
    """Return a token of a user."""
    token: str = fetch(server, "/token", data={"user": user, "password": PASSWORDS[user]}).json()["token"]
    return token


def read_status(server: Process, token: str) -> int:
    """Return the status of a request for the diary of ada."""
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.get(f"http://{server.address}/threads/diary/ada", headers=headers).status_code


def make_token(secret: str, algorithm: str = "HS256", **claims: Any) -> str:
    """Return a token that was not made by the app."""
    full = {"sub": "ada", "auth_time": time.time(), "exp": int(time.time()) + 60} | claims
    return jwt.encode({name: value for name, value in full.items() if value}, secret, algorithm=algorithm)


def open_diary(server: Process, token: Any) -> SyncRoom[Any]:
    """Open the diary of ada."""
    return connect_sync(f"ws://{server.address}/threads/diary/ada", token=token)


def test_a_page_stays_logged_in_while_its_cookie_is_renewed(pages: Browser, server: Process) -> None:
    page = pages.new_page()
    sockets: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    log_in(server, page, "ada", "wrong")
    expect(page.locator("#news")).to_have_text("Wrong name or password.")
    log_in(server, page, "ada", PASSWORDS["ada"])
    expect(page.get_by_label("Diary")).to_be_editable()
    page.get_by_label("Diary").fill("before")
    with page.expect_event("websocket", timeout=60_000):
        pass  # The first cookie has expired.
    page.get_by_label("Diary").fill("after")
    with open_diary(server, fetch_token(server, "ada")) as diary:
        # What a page has not sent yet is lost when it is loaded again.
        diary.wait_for(lambda state: state["text"] == "after", timeout=60)
    page.reload()
    expect(page.get_by_label("Diary")).to_have_value("after")
    assert len(sockets) >= 3
    page.route("**/renew", lambda route: route.abort())
    expect(page.locator("#news")).to_have_text("You are logged out.")
    expect(page.get_by_label("Name")).to_be_visible()
    expect(page.get_by_label("Diary")).to_be_hidden()


def test_a_user_who_logs_out_is_logged_out_everywhere(pages: Browser, server: Process) -> None:
    one, other = (pages.new_context().new_page() for _ in range(2))
    for page in (one, other):
        log_in(server, page, "ada", PASSWORDS["ada"])
        expect(page.get_by_label("Diary")).to_be_editable()
    token = fetch_token(server, "ada")
    with open_diary(server, token) as diary:
        one.get_by_role("button", name="Log out").click()
        for page in (one, other):
            expect(page.locator("#news")).to_have_text("You are logged out.")
        assert wait_until_closed(diary) == 4401
    assert read_status(server, token) == 401
    log_in(server, other, "ada", PASSWORDS["ada"])
    expect(other.get_by_label("Diary")).to_be_editable()


def wait_until_closed(diary: SyncRoom[Any]) -> int | None:
    """Return the code with which a diary is closed."""
    with pytest.raises(Closed) as closed:
        diary.wait_for(lambda _: False, timeout=30)
    return closed.value.code


def test_an_admin_kicks_a_user_and_others_do_not(server: Process) -> None:
    ada, grace = fetch_token(server, "ada"), fetch_token(server, "grace")
    with open_diary(server, ada) as diary:
        assert fetch(server, "/kick/grace", ada).status_code == 403
        assert fetch(server, "/kick/ada", grace).json() == {"closed": 1}
        assert wait_until_closed(diary) == 4401
    assert read_status(server, ada) == 401
    assert fetch(server, "/kick/ada", ada).status_code == 401
    assert read_status(server, fetch_token(server, "ada")) in (200, 404)


def test_a_token_that_was_renewed_during_a_logout_is_refused(server: Process) -> None:
    token = fetch_token(server, "ada")
    auth_time = jwt.decode(token, options={"verify_signature": False})["auth_time"]
    fetch(server, "/logout", token)
    renewed = make_token(SECRETS["DIARY_SECRET"], auth_time=auth_time)
    assert read_status(server, renewed) == fetch(server, "/renew", renewed).status_code == 401


def test_a_token_that_the_app_has_not_made_is_refused(server: Process) -> None:
    secret = SECRETS["DIARY_SECRET"]
    assert read_status(server, make_token(secret)) == 404
    forged = (
        make_token(secret[::-1]),
        make_token("", "none"),
        make_token(secret, exp=int(time.time()) - 1),
        make_token(secret, exp=None),
        make_token(secret, auth_time=None),
        "x",
    )
    assert [read_status(server, token) for token in forged] == [401] * len(forged)
    assert fetch(server, "/login", data={"user": "eve", "password": ""}).status_code == 401


def test_a_program_that_fetches_its_tokens_keeps_its_socket(server: Process) -> None:
    fetched = threading.Semaphore(0)

    def fetch_another() -> str:
        fetched.release()
        return fetch_token(server, "ada")

    with open_diary(server, fetch_another) as diary:
        # Each is asked for after half of the time, so the first has expired when the fourth is.
        for _ in range(4):
            assert fetched.acquire(timeout=60)
        diary.update("/text", "still here")
    opened = re.findall(r"^plait_sockets_opened_total\{.*\} (.*)$", read_metrics(server), re.MULTILINE)
    assert sum(map(float, opened)) == 1


def read_metrics(server: Process) -> str:
    """Return the metrics of a server."""
    return httpx.get(f"http://{server.address}/metrics").raise_for_status().text
