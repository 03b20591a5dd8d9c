"""Each word of the docs has one meaning, and each thing one word."""

import re
from typing import Final

import pytest
from tests.test_docs import PAGES, ROOT

# These pages speak of other projects too, or of the code, in their words.
OTHERS: Final = {"adapters", "agentscope", "agentuity", "architecture", "cloudflare", "colyseus", "glossary"}
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


@pytest.mark.parametrize(("word", "term"), [(word, row[1]) for row in ROWS for word in row[3].split(", ") if word])
def test_no_page_has_another_word_for_a_thing_of_the_glossary(word: str, term: str) -> None:
    assert find_word(word, set(PAGES) - OTHERS) == [], f"say {term}"


@pytest.mark.parametrize(("section", "term"), [(row[0], term) for row in ROWS for term in row[1].split(", ")])
def test_a_word_of_the_glossary_is_used(section: str, term: str) -> None:
    if section == "Inside plait":
        assert re.search(rf"\b{term}\b", CODE, re.IGNORECASE) is not None
    else:
        assert find_word(term, set(PAGES) - {"glossary"}) != []
