"""The cost of typing a letter in a long text: in a plain textarea, and in one that `bindText` binds.

`python -m benchmarks.textarea [MEGABYTES] [LETTERS]` prints milliseconds of a page's main thread for each letter, all
told: input, the client, the answer, layout. It needs Chromium and the built bundle.
"""

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Page, sync_playwright

APP: Final = """
from plait import Limits, Plait, Thread

LINE = "The quick brown fox jumps over the lazy dog, and typed on. "
SPECIAL = "Fünf Größen für 日本語 und 🔑 dazu. "

class Note(Thread[dict]):
    texts = ("/note",)
    initial_state = {{"note": ""}}

    async def on_start(self):
        part = (SPECIAL if self.name == "special" else LINE) * 10 + "\\n"
        if not self.state["note"]:
            await self.set_state({{"note": part * ({length} // len(part))}})

app = Plait(Note, static="pages", limits=Limits(state=2**24))
"""
PAGE: Final = """<!doctype html>
<link rel="icon" href="data:,">
<textarea rows="20" cols="80"></textarea>
<script type="module">
  import { ThreadClient, bindText } from "/plait/client.js";
  const area = document.querySelector("textarea");
  const [name, how] = location.hash.slice(1).split(",");
  window.room = new ThreadClient({ url: `/threads/note/${name}` });
  await room.ready;
  if (how === "bound") bindText(area, room, "/note");
  else { area.value = room.state.note; await room.close(); }
  area.focus();
  const middle = area.value.length >> 1;
  area.setSelectionRange(middle, middle);
  window.isReady = true;
</script>
"""
TYPE: Final = """async () => {
    document.execCommand("insertText", false, "x");
    const settled = () => globalThis.room.pending === 0;
    await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
    while (!settled()) await new Promise((resolve) => setTimeout(resolve, 2));
}"""


@contextmanager
def serve_app(folder: Path) -> Iterator[str]:
    """Serve the app of a folder; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("plait")), "serve", "letters_app:app", "--port", str(port)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stderr=log, env={**os.environ, "PYTHONPATH": str(folder)})
        try:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    if process.poll() is not None:
                        raise RuntimeError((folder / "log").read_text()) from None
                    time.sleep(0.05)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def measure(browser: Browser, url: str, letters: int) -> list[float]:
    """Return the milliseconds of the page's main thread for each letter."""
    page = browser.new_page()
    page.goto(url)
    page.wait_for_function("globalThis.isReady")
    times = [_cost(page) for _ in range(letters)]
    page.close()
    return times[3:]


def _cost(page: Page) -> float:
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy() -> float:
        metrics = client.send("Performance.getMetrics")["metrics"]
        return next(each["value"] for each in metrics if each["name"] == "TaskDuration")

    before = busy()
    page.evaluate(TYPE)
    spent = (busy() - before) * 1000
    client.detach()
    return spent


def main() -> None:
    """Print a table."""
    megabytes, letters = (float(sys.argv[1]) if sys.argv[1:] else 1.0), (int(sys.argv[2]) if sys.argv[2:] else 30)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        (Path(folder) / "pages").mkdir()
        (Path(folder) / "pages" / "index.html").write_text(PAGE)
        (Path(folder) / "letters_app.py").write_text(APP.format(length=int(megabytes * 1_000_000)))
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        with serve_app(Path(folder)) as address:
            for name in ("plain", "special"):
                costs = {
                    how: statistics.median(measure(browser, f"http://{address}/#{name},{how}", letters))
                    for how in ("plain", "bound")
                }
                print(f"{name:8} plain {costs['plain']:6.1f} ms  bound {costs['bound']:6.1f} ms", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
