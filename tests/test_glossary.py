"""Each word of the docs has one meaning, and each thing one word."""

import re
from typing import Final

from tests.test_docs import PAGES, ROOT

# These pages speak of other projects too, or of the code, in their words.
OTHERS: Final = {
    "adapters",
    "agentscope",
    "agentuity",
    "architecture",
    "boardgame",
    "cloudflare",
    "colyseus",
    "glossary",
    "langgraph",
    "liveblocks",
}
SECTIONS: Final = re.split(r"^## ", PAGES["glossary"].read_text(), flags=re.MULTILINE)[1:]
ROWS: Final = [
    (section.partition("\n")[0], *(cell.strip() for cell in row))
    for section in SECTIONS
    for row in re.findall(r"^\| ([^|]+) \| ([^|]+) \|([^|]*)\|$", section, re.MULTILINE)
    if row[0] not in ("word", "---")
]
TERMS: Final = [term for _, terms, *_ in ROWS for term in terms.split(", ")]
PROSE: Final = {
    name: re.sub(r"^```.*?^```$|`[^`\n]*`|\]\([^)]*\)", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for name, path in PAGES.items()
}
CODE: Final = "\n".join(path.read_text() for path in (ROOT / "server" / "plait").rglob("*.py"))


def find_word(word: str, pages: set[str]) -> list[str]:
    """Return the lines of pages with a word, in the singular or the plural; one of capitals is looked for as it is."""
    pattern = re.compile(rf"\b{re.escape(word)}s?\b", 0 if word.isupper() else re.IGNORECASE)
    return [f"{name}: {line}" for name in sorted(pages) for line in PROSE[name].splitlines() if pattern.search(line)]


def test_each_word_is_defined_once() -> None:
    assert len(TERMS) > 50
    assert sorted(set(TERMS)) == sorted(TERMS)


def test_no_page_has_another_word_for_a_thing_of_the_glossary() -> None:
    others = [(word, term) for _, term, _, words in ROWS for word in words.split(", ") if word]
    assert others
    lines = [f"say {term}: {line}" for word, term in others for line in find_word(word, set(PAGES) - OTHERS)]
    assert lines == []


def test_each_word_of_the_glossary_is_used() -> None:
    assert [term for section, terms, *_ in ROWS for term in terms.split(", ") if not is_used(section, term)] == []


def is_used(section: str, term: str) -> bool:
    """Return whether a term is used in the code, or on a page beside the glossary if it is for users."""
    if section == "Inside plait":
        return re.search(rf"\b{term}\b", CODE, re.IGNORECASE) is not None
    return find_word(term, set(PAGES) - {"glossary"}) != []
