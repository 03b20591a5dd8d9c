"""A page with optimistic calls, looked at in each frame: no item is shown twice, and none vanishes."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser
from tests.integration.browser import Pages
from tests.running import Process

APP = """
from plait import Plait, Thread, rpc

class Basket(Thread[dict]):
    initial_state = {"items": [], "other": 0}

    @rpc
    def add(self, text: str) -> None:
        self.update("/items/-", {"id": str(self.version), "text": text})
        self.update("/other", self.state["other"] + 1)

app = Plait(Basket, static="pages")
"""
PAGE = """<!doctype html>
<title>Basket</title>
<link rel="icon" href="data:,">
<ul></ul>
<script type="module">
  import { ThreadClient } from "/plait/client.js";
  import { optimistic } from "/plait/optimistic.js";
  const list = document.querySelector("ul");
  window.room = new ThreadClient({ kind: "basket", name: "one", optimistic });
  room.subscribe(() => {
    list.replaceChildren(...(room.state?.items ?? []).map(({ text }) => {
      const item = document.createElement("li");
      item.textContent = text;
      return item;
    }));
  });
</script>
"""
# Adds items, two at a time, and looks at the list in each frame, and whenever it is changed. Returns the faults and
# the number of looks.
WATCH = """async (count) => {
    await room.ready;
    const faults = [], expected = new Set();
    let looks = 0, isOver = false;
    const look = () => {
        looks++;
        const shown = [...document.querySelectorAll("li")].map((item) => item.textContent);
        for (const text of expected) {
            const times = shown.filter((each) => each === text).length;
            if (times !== 1) faults.push(`${text}: ${times}`);
        }
    };
    const lookEachFrame = () => {
        look();
        if (!isOver) requestAnimationFrame(lookEachFrame);
    };
    requestAnimationFrame(lookEachFrame);
    const observer = new MutationObserver(look);
    observer.observe(document.querySelector("ul"), { childList: true });
    for (let number = 0; number < count; number += 2) {
        const calls = [number, number + 1].map((each) => {
            const text = `item ${each}`;
            const call = room.call("add", text, {
                optimistic: (draft) => void draft.items.push({ id: "local", text }),
            });
            expected.add(text);
            return call;
        });
        await Promise.all(calls);
        await new Promise(requestAnimationFrame);
    }
    isOver = true;
    observer.disconnect();
    return { faults, looks, state: room.state, confirmed: room.confirmed };
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("basket")
    (folder / "basket.py").write_text(APP)
    (folder / "pages").mkdir()
    (folder / "pages" / "index.html").write_text(PAGE)
    with Process("basket:app", cwd=folder, environment={"PLAIT_STORE": "memory://"}) as process:
        yield process


@pytest.fixture
def pages(server: Process, browser: Browser) -> Iterator[Pages]:
    pages = Pages(server, browser)
    try:
        yield pages
    finally:
        pages.close()
    assert pages.troubles == []


def test_items_of_optimistic_calls_are_painted_once_in_each_frame(server: Process, pages: Pages) -> None:
    page = pages.new_page(800, 600, touch=False, brake=None)
    page.goto(f"http://{server.address}/")
    page.wait_for_function("window.room?.status === 'online'")
    found: dict[str, Any] = page.evaluate(WATCH, 50)
    assert found["faults"] == []
    assert found["looks"] >= 50
    assert found["state"] == found["confirmed"]
    assert [item["text"] for item in found["state"]["items"]] == [f"item {number}" for number in range(50)]
