"""Two people use the examples, served by two workers, while these are killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.integration.browser import Demo
from tests.workers.group import Group

DONE = ["Start the server"]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with Group("examples.demo:app", cwd=tmp_path, environment={"PLAIT_STORE": "sqlite:///plait.db"}) as group:
        yield group


def add_card(page: Page, title: str) -> None:
    """Add a card to the last column of a board."""
    page.fill('[data-column="done"] .add-card input', title)
    page.press('[data-column="done"] .add-card input', "Enter")


def expect_cards(page: Page, *titles: str) -> None:
    """Wait until the last column has these cards, and the page says that it is online."""
    expect(page.locator('[data-column="done"] .card-title')).to_have_text([*DONE, *titles])
    expect(page.locator("#status")).to_have_attribute("data-status", "online")


def test_two_browsers_continue_while_each_worker_is_killed(group: Group, browser: Browser) -> None:
    demo = Demo(group, browser)
    demo.expect_outage()
    try:
        one, other = demo.open_two("board/")
        titles: list[str] = []
        for number in range(4):
            starts = group.starts(number % 2)
            group.hurt(number % 2)
            # One is made while the worker is away, and one after that.
            for page in (one, other):
                titles.append(f"card {len(titles)}")
                add_card(page, titles[-1])
                expect_cards(one, *titles)
                expect_cards(other, *titles)
            group.until(lambda number=number, starts=starts: group.starts(number % 2) > starts)  # type: ignore[misc]
        assert demo.troubles == []
    finally:
        demo.close()
