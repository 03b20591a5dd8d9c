"""The pages for readers who come from another project say that plait lacks only what it lacks."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.cases import each_case

DOCS: Final = Path(__file__).parents[1] / "docs"
PAGES: Final = tuple(re.findall(r"^\| \[.+?\]\((.+?\.md)\)", (DOCS / "coming-from.md").read_text(), re.MULTILINE))

_DENIALS: Final = re.compile(
    r"\bnone\b|\b(?:does|do) not (?:have|serve|support|offer)\b|\b(?:has|have|is|are) no\b|\bcannot\b|\blacks?\b"
    r"|\bnot (?:needed|supported|served|available|possible|implemented)\b|\bwithout (?:models|tools)\b",
)

# How each allowed one begins: it is true of plait, or of the other project.
_ALLOWED: Final = (
    "a thread sleeps when it has no socket and no turn",
    "A task runs in its thread, with the thread's own store, so there is no second service",
    "- **A thread that cannot be read is not reset.**",
    "The native protocol has more than Cloudflare's",
    "- **A run that raises stores none of its values**",
    "A client cannot name another user.",
    "- **There is no default secret**",
    "- A tool with `needs_approval` waits for a person; the specification has no such option.",
    "A path has no slash at its beginning",
)


def read_claims(page: str) -> Iterator[str]:
    """Yield the sentences of a page outside of code blocks, and of its tables the cells about plait."""
    text = re.sub(r"```.*?```", "", (DOCS / page).read_text(), flags=re.DOTALL)
    for line in text.splitlines():
        yield line.strip("| ").rpartition(" | ")[2] if line.startswith("|") else line.strip()


def find_denials(page: str) -> list[str]:
    return [claim for claim in read_claims(page) if _DENIALS.search(claim)]


@each_case("page", PAGES)
def test_a_page_denies_only_what_plait_lacks(page: str) -> None:
    assert [claim for claim in find_denials(page) if not claim.startswith(_ALLOWED)] == []


def test_each_allowed_denial_is_on_a_page() -> None:
    denials = [claim for page in PAGES for claim in find_denials(page)]
    assert [start for start in _ALLOWED if not any(claim.startswith(start) for claim in denials)] == []
