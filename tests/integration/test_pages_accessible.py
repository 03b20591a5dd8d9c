"""The demo's pages, checked by axe: wide and narrow, light and dark."""

from collections.abc import Sequence
from typing import Literal

import pytest
from playwright.sync_api import Page, expect
from tests.integration.browser import Demo, find_end_of_loading
from tests.integration.builds import CLIENT, Builds
from tests.schedules import in_soak

PATHS = (
    "board/",
    "chat/",
    *in_soak([""], ["assistant/"], ["desk/"], ["pad/"], ["tictactoe/"], ["cards/"], ["counter/"]),
)
WIDE = 1280
NARROW = 390
Look = tuple[int, Literal["light", "dark"]]
# Each width and each scheme once, and then with the other one.
LOOKS: tuple[Look, ...] = ((WIDE, "light"), (NARROW, "dark"))
OTHERS: tuple[Look, ...] = ((WIDE, "dark"), (NARROW, "light"))
FINDINGS = """async () => {
    const { violations } = await axe.run(document);
    return violations.flatMap(({ id, nodes }) => nodes.map(({ target, failureSummary }) =>
        `${id}: ${target.join(" ")}: ${failureSummary}`));
}"""


@pytest.mark.parametrize("looks", [LOOKS, *in_soak([OTHERS])], ids=["looks", "others"])
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.strip("/") or "index")
def test_axe_finds_no_fault_in_a_page(demo: Demo, builds: Builds, path: str, looks: Sequence[Look]) -> None:
    axe = builds.install(CLIENT) / "node_modules/axe-core/axe.min.js"
    for width, scheme in looks:
        page = demo.open(path, width=width, touch=width == NARROW)
        if path == "tictactoe/" and width == WIDE:
            demo.open(path, room=f"{demo.room}-other")
        if path in ("assistant/", "chat/") and width == WIDE:
            _talk(page, path)
        # Loaded again, as colours would fade from one scheme to the other.
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.reload(wait_until=find_end_of_loading(path))
        if path:
            expect(page.locator("#status")).to_have_attribute("data-status", "online")
        if path == "tictactoe/":
            expect(page.locator(".table-link")).to_have_count(1)
        if path == "chat/":
            expect(page.locator("#minutes .card.ready")).to_have_count(1)
        page.add_script_tag(path=axe)
        assert page.evaluate(FINDINGS) == [], f"{path} {width} {scheme}"


def _talk(page: Page, path: str) -> None:
    """Send a message, and wait for the answer."""
    page.fill("#message", "Count to 3")
    page.press("#message", "Enter")
    answer = ".bot .bubble" if path == "chat/" else ".answer-text"
    expect(page.locator(answer)).to_have_text("1, 2, 3. That is 3.")
    if path == "chat/":
        page.fill("#message", "Write the minutes")
        page.press("#message", "Enter")
        expect(page.locator("#minutes .card.ready")).to_have_count(1)
