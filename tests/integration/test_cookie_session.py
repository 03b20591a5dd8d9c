"""A page whose session is a cookie, with the app of the guide: it stays as long as the cookie is renewed."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from tests.integration.socket_client import http
from tests.running import Process
from tests.test_docs import blocks

from plait_client import Closed, connect

# Seconds that a cookie is valid, and that a loaded machine may take.
SECONDS = 4
PATIENCE = 60_000

OPEN = """async () => {
    const credentials = JSON.stringify({ user: "ada", password: "lovelace" });
    const answer = await fetch("/session/log-in", { method: "POST", body: credentials });
    if (!answer.ok) throw new Error(answer.status);
    const { ThreadClient } = await import("/plait/client.js");
    window.room = new ThreadClient({ kind: "journal", name: "ada" });
    window.statuses = [];
    room.subscribe(() => statuses.at(-1) === room.status || statuses.push(room.status));
    await room.ready;
}"""


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    (app,) = [block for block in blocks("identity") if block.title == "journal.py"]
    (tmp_path / app.title).write_text(app.code)
    environment = {"JOURNAL_SECRET": "a secret", "JOURNAL_SECONDS": str(SECONDS)}
    with Process("journal:app", cwd=tmp_path, environment=environment) as server, browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        # Any document of the origin will do.
        page.goto(f"http://{server.address}/healthz")
        yield page


def test_a_page_whose_cookie_is_renewed_stays_and_one_whose_cookie_expires_is_told(page: Page) -> None:
    page.evaluate(OPEN)
    page.evaluate("() => { window.renewing = setInterval(() => fetch('/session/renew', { method: 'POST' }), 1000); }")
    page.wait_for_function("statuses.join().endsWith('online,offline,online')")
    page.evaluate("room.update('/text', 'after the first cookie had expired')")
    assert page.evaluate("room.error") is None
    page.evaluate("clearInterval(window.renewing)")
    page.wait_for_function("room.status === 'closed'")
    assert page.evaluate("room.error.code") == "unauthenticated"


def test_a_cookie_that_was_not_signed_by_the_app_lets_nobody_in(page: Page) -> None:
    forged = (
        # The algorithm "none", and another secret.
        "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEiLCJleHAiOjQwMDAwMDAwMDB9.",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZGEiLCJleHAiOjQwMDAwMDAwMDB9.c2lnbmVk",
        "x",
    )
    for token in forged:
        answer = page.request.get(
            page.url.replace("/healthz", "/threads/journal/ada"), headers={"Cookie": f"session={token}"}
        )
        assert answer.status == 401


async def test_a_user_who_logs_out_is_disconnected_everywhere_until_the_next_log_in(tmp_path: Path) -> None:
    (app,) = [block for block in blocks("identity") if block.title == "journal.py"]
    (recipe,) = [block for block in blocks("identity") if "app.disconnect" in block.code and not block.title]
    before, begin, after = app.code.partition("app = Plait(")
    functions, mount, rest = recipe.code.partition("app.mount(")
    (tmp_path / "journal.py").write_text("".join((before, functions, begin, after, mount, rest)))
    server = Process("journal:app", cwd=tmp_path, environment={"JOURNAL_SECRET": "a secret"})
    await asyncio.to_thread(server.__enter__)
    try:
        url = f"ws://{server.address}/threads/journal/ada"
        async with http(server.address) as web:
            credentials = {"user": "ada", "password": "lovelace"}
            await web.post("/session/log-in", json=credentials)
            cookie = {"Cookie": f"session={web.cookies['session']}"}
            async with connect(url, headers=cookie) as one, connect(url, headers=cookie) as other:
                assert (await web.post("/log-out/")).status_code == 204
                for journal in (one, other):
                    with pytest.raises(Closed) as closed:
                        await journal.wait_for(lambda _: False)
                    assert closed.value.code == 4401
            assert (await web.get("/threads/journal/ada")).status_code == 401
            await web.post("/session/log-in", json=credentials)
            assert (await web.get("/threads/journal/ada")).status_code == 200
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)
