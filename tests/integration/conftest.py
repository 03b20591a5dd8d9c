"""Fixtures for tests of the demo's pages."""

import threading
from collections.abc import Iterator

import pytest
from _pytest.runner import runtestprotocol
from playwright.sync_api import Browser
from tests.integration.browser import Demo
from tests.integration.builds import Builds
from tests.integration.chromium import open_chromium, run_in_thread
from tests.running import Process


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    """Share builds with the other workers of the run."""
    return Builds(tmp_path_factory)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A browser of this session, for tests that run in its thread."""
    with open_chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Serve the examples; each test has a room of its own."""
    folder = tmp_path_factory.mktemp("demo")
    # An answer that would take minutes does not keep a server from ending.
    environment = {"PLAIT_STORE": "sqlite:///plait.db", "PLAIT_SHUTDOWN_TIMEOUT": "1"}
    with Process("examples.demo:app", cwd=folder, environment=environment) as server:
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


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test that uses the browser in the thread of the browser."""
    if "browser" not in getattr(item, "fixturenames", ()):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    run_in_thread(lambda: runtestprotocol(item, nextitem=nextitem))
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    """Leave the signal of a time limit to the main thread, which cancels it at the end of the test."""
    return None if threading.current_thread() is threading.main_thread() else True
