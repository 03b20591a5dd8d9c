"""Fixtures for tests of the demo's pages."""

from collections.abc import Iterator
from pathlib import Path

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
        expect.set_options(timeout=20_000)
        yield chromium
        chromium.close()


@pytest.fixture
def demo(browser: Browser, tmp_path: Path) -> Iterator[Demo]:
    """Serve the examples from a store of the test's own; no page may complain of anything."""
    environment = {"PLAIT_STORE": f"sqlite:///{tmp_path}/plait.db"}
    with Process("examples.demo:app", cwd=tmp_path, environment=environment) as server:
        opened = Demo(server, browser)
        try:
            yield opened
        finally:
            opened.close()
    assert opened.troubles == []
