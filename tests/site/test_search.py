"""A search on the site leads to the page that a reader looks for."""

import json
import subprocess
from pathlib import Path
from typing import Final

import pytest
from tests.test_docs import MOVED

SEARCHES: Final = {
    "approval": "approval",
    "cursors": "cursors",
    "liveblocks": "liveblocks",
    "lobby": "lobby",
    "logout": "login",
    "permissions": "permissions",
    "upload": "files",
    "useMessages": "react",
    "mypy": "calls",
}
"""What readers look for, and the page to be found first."""


@pytest.fixture(scope="session")
def found(site: Path) -> dict[str, list[str]]:
    """The pages that each search finds, in the order in which the site shows them."""
    command = ["node", Path(__file__).with_name("search.mjs"), site, *SEARCHES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    pages: dict[str, list[str]] = json.loads(done.stdout)
    return pages


@pytest.mark.parametrize("word", SEARCHES)
def test_a_search_leads_to_its_page(found: dict[str, list[str]], word: str) -> None:
    assert found[word][:1] == [f"{SEARCHES[word]}.html"]


def test_the_search_knows_every_page(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    pages = {path.name for path in site.glob("*.html")} - MOVED.keys() - {"404.html"}
    assert {doc["location"] for doc in index["docs"] if "#" not in doc["location"]} == pages
