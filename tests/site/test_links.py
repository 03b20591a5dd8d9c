"""Old links lead to what is there, and each page to those above and under it."""

import re
from pathlib import Path

from tests.test_docs import MOVED, UNDER


def test_a_page_that_has_moved_leads_to_a_section_that_is_there(site: Path) -> None:
    assert MOVED
    for name, target in MOVED.items():
        page, _, anchor = target.partition("#")
        assert f'url={target}"' in (site / name).read_text()
        assert f'id="{anchor}"' in (site / page).read_text()


def test_a_page_links_to_those_under_it_and_they_link_back(site: Path) -> None:
    for above, pages in UNDER.items():
        for each in pages:
            assert each in find_links(site, above)
            assert above in find_links(site, each)


def find_links(site: Path, page: str) -> list[str]:
    """Return the pages to which the line below the beginning of a page links."""
    (line,) = re.findall(r"<p><em>Under .*?</em></p>", (site / page.replace(".md", ".html")).read_text())
    return [link.replace(".html", ".md") for link in re.findall(r'href="([^"#]+)"', line)]
