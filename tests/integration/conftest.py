"""Fixtures for tests of the demo's pages."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright
from tests.integration.browser import Demo
from tests.integration.builds import Builds
from tests.running import Process

OPTIONS = """
    --headless --no-sandbox --disable-gpu --disable-background-networking
    --disable-component-update --disable-sync --no-first-run
"""


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    """Share what is built with the other workers of the run."""
    return Builds(tmp_path_factory)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Run Debian's Chromium."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=OPTIONS.split())
        expect.set_options(timeout=60_000)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Serve the examples; each test has a room of its own."""
    folder = tmp_path_factory.mktemp("demo")
    with Process("examples.demo:app", cwd=folder, environment={"PLAIT_STORE": "sqlite:///plait.db"}) as server:
        yield server


@pytest.fixture
def demo(browser: Browser, examples: Process) -> Iterator[Demo]:
    """Have a room of the test's own; no page may complain of anything."""
    opened = Demo(examples, browser)
    try:
        yield opened
    finally:
        opened.close()
    assert opened.troubles == []
