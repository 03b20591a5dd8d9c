"""The page of the tutorial, as it is written there, and each step of it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from tests.integration.browser import Brake
from tests.running import Process
from tests.test_docs import PAGES, programs, run


@pytest.fixture
def windows(browser: Browser) -> Iterator[Browser]:
    yield browser
    for context in browser.contexts:
        context.close()


def tutorial(language: str) -> list[str]:
    """Return the tutorial's blocks of a language."""
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```$", PAGES["tutorial"].read_text(), re.M | re.S)


def write_todos(folder: Path, app: str, page: str) -> None:
    """Write the app and the page of a step of the tutorial."""
    (folder / "pages").mkdir()
    (folder / "todos.py").write_text(app)
    (folder / "pages" / "index.html").write_text(page)


def test_what_the_tutorial_adds_to_its_first_page_and_its_script_work_one_after_the_other(
    windows: Browser, tmp_path: Path
) -> None:
    (first, button, _), (lines,) = tutorial("html"), tutorial("js")
    app = [block for block in programs("tutorial") if block.is_app][1]
    (script,) = (block for block in programs("tutorial") if not block.is_app)
    text = first.replace("</ul>\n", f"</ul>\n{button}").replace("</script>", f"{lines}</script>")
    write_todos(tmp_path, app.code, text)
    with Process("todos:app", cwd=tmp_path) as server:
        page = windows.new_page()
        failed: list[str] = []
        page.on("response", lambda response: failed.append(response.url) if response.status >= 400 else None)
        page.on("pageerror", lambda error: failed.append(error.message))
        brake = Brake()
        page.route_web_socket("**/threads/**", brake.route)
        # The first one is written before the thread has sent its state.
        brake.hold()
        page.goto(f"http://{server.address}/")
        for number in range(1, 6):
            page.locator("form input").fill(f"todo {number}")
            page.locator("form button").click()
            if number == 1:
                brake.release()
        expect(page.locator("output")).to_have_text("online, version 5, 0 on the way")
        expect(page.locator("li").first).to_have_text("todo 1")
        page.locator("form input").fill("one too many")
        with page.expect_event("dialog") as dialog:
            page.once("dialog", lambda each: each.accept())
            page.locator("form button").click()
        assert dialog.value.message == "finish something first: at most 5 todos may be open"
        (tmp_path / script.title).write_text(script.code.replace("localhost:8000", server.address))
        assert "Refused: finish something first" in run([script], tmp_path).stderr
        page.get_by_label("todo 3").check()
        expect(page.locator("output")).to_have_text("online, version 6, 0 on the way")
        done = run([script], tmp_path)
        assert done.returncode == 0, done.stderr
        expect(page.locator("li")).to_have_count(4)
        page.get_by_label("todo 4").check()
        page.locator("#clear").click()
        expect(page.locator("li")).to_have_count(3)
        assert failed == []


def test_the_tutorials_page_does_what_the_tutorial_says(windows: Browser, tmp_path: Path) -> None:
    apps = [block for block in programs("tutorial") if block.is_app]
    write_todos(tmp_path, apps[-1].code, tutorial("html")[-1])
    with Process("todos:app", cwd=tmp_path) as server:
        ada, grace = (windows.new_page() for _ in range(2))
        for page, name in ((ada, "Ada"), (grace, "Grace")):
            page.goto(f"http://{server.address}/?name={name}")
        expect(ada.locator("#here")).to_have_text(re.compile("Ada, Grace|Grace, Ada"))
        for number in range(1, 6):
            ada.locator("form input").fill(f"todo {number}")
            ada.locator("form button").click()
        expect(grace.locator("li")).to_have_count(5)
        grace.locator("form input").fill("one too many")
        grace.locator("form button").click()
        expect(grace.locator("#news")).to_have_text("finish something first: at most 5 todos may be open")
        expect(grace.locator("li")).to_have_count(5)
        grace.get_by_label("todo 3").check()
        expect(ada.get_by_label("todo 3")).to_be_checked()
        grace.locator("#undo").click()
        for page in (ada, grace):
            expect(page.get_by_label("todo 3")).not_to_be_checked()
        grace.get_by_label("todo 3").check()
        expect(ada.get_by_label("todo 3")).to_be_checked()
        ada.locator("#clear").click()
        expect(grace.locator("#news")).to_have_text("1 cleared")
        expect(grace.locator("li")).to_have_count(4)
        grace.locator("#past").fill("2")
        expect(grace.locator("#then")).to_have_text("todo 1, todo 2")
        server.end()
        ada.get_by_label("todo 1").check()
        server.start()
        expect(grace.get_by_label("todo 1")).to_be_checked(timeout=30_000)
