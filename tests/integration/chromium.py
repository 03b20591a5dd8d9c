"""Chromium, once for all tests of a process.

Playwright leaves a loop running in the thread that uses it, where no other loop can run.
So all tests with a page run in a thread of their own, with their fixtures.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from playwright.sync_api import Browser, expect, sync_playwright

__all__ = ["OPTIONS", "PROGRAM", "open_chromium", "run_in_thread"]

T = TypeVar("T")

_SHELL: Final = Path("/usr/bin/chromium-headless-shell")
PROGRAM: Final = _SHELL if _SHELL.exists() else Path("/usr/bin/chromium")
"""Debian's Chromium; without its own windows, if that is installed, it takes less than half of the processor time."""

OPTIONS: Final = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]

_NAME: Final = "chromium"
_thread: Final = ThreadPoolExecutor(1, _NAME)


def run_in_thread(function: Callable[[], T]) -> T:
    """Call a function in the thread of Chromium, which may be the calling one."""
    if threading.current_thread().name.startswith(_NAME):
        return function()
    return _thread.submit(function).result()


@contextmanager
def open_chromium() -> Iterator[Browser]:
    """Run Debian's Chromium, from whatever thread."""
    playwright = run_in_thread(lambda: sync_playwright().start())
    browser = run_in_thread(lambda: playwright.chromium.launch(executable_path=PROGRAM, args=OPTIONS))
    expect.set_options(timeout=60_000)
    yield browser
    run_in_thread(browser.close)
    run_in_thread(playwright.stop)
