"""Texts that were written anew, and what of them stays."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.schemas.test_text import TEXTS

from plait_schemas.align import Keys
from plait_schemas.codec import decode_json, encode_json
from plait_schemas.diff import diff
from plait_schemas.patch import Op, apply, splice
from plait_schemas.rebase import rebase
from plait_schemas.text import Region, spliced, transform
from plait_schemas.text_diff import diff_texts
from plait_schemas.text_patch import TextDiff

PARTS = st.sampled_from(["one word. ", "Another sentence! ", "a line\n", "🔑 e\u0301\n", "x", "the ", "\n", "。", "  "])
LONG = st.lists(PARTS | TEXTS, max_size=30).map("".join)


@given(LONG, LONG)
def test_the_difference_leads_from_the_one_text_to_the_other(old: str, new: str) -> None:
    regions = diff_texts(old, new)
    assert spliced(old, regions) == new
    assert all(remove or insert for _, remove, insert in regions)
    ends = [(at, at + remove) for at, remove, _ in regions]
    assert all(end < at for (_, end), (at, _) in pairwise(ends))


def test_the_same_text_has_no_difference() -> None:
    assert diff_texts("🔑", "🔑") == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "abc", [(0, 0, "abc")]),
        ("abc", "", [(0, 3, "")]),
        ("aaa", "aaaa", [(3, 0, "a")]),
        ("one two", "one big two", [(4, 0, "big ")]),
        ("a 🔑 b", "a 🔒 b", [(2, 1, "🔒")]),
        ("cafe\u0301", "cafe", [(4, 1, "")]),
    ],
)
def test_one_edit_is_one_region(old: str, new: str, expected: list[Region]) -> None:
    assert diff_texts(old, new) == expected


PARAGRAPHS = [f"The paragraph with number {n} says this. It has two sentences, and {n} words." for n in range(6)]


@pytest.mark.parametrize("separator", ["\n\n", " "])
def test_two_who_rewrite_different_paragraphs_of_one_text_both_keep_what_they_wrote(separator: str) -> None:
    def join(changed: dict[int, str]) -> str:
        return separator.join(changed.get(at, each) for at, each in enumerate(PARAGRAPHS))

    mine = {0: "My first paragraph is new.", 4: "And I have added to the fifth. " + PARAGRAPHS[4]}
    theirs = {2: "Theirs is the third, written anew! Wholly.", 5: "They end it."}
    old = join({})
    ours, over = diff_texts(old, join(mine)), diff_texts(old, join(theirs))
    assert spliced(join(theirs), transform(ours, over, yields=True)) == join({**mine, **theirs})


def test_the_words_that_stay_in_a_sentence_stay() -> None:
    old, new = "I think that the quick brown fox jumped.", "We think that no quick brown dog has jumped."
    regions = diff_texts(old, new)
    assert [old[at : at + remove] for at, remove, _ in regions] == ["I", "the", "fox"]
    assert [insert for _, _, insert in regions] == ["We", "no", "dog has"]


def test_lines_that_are_there_twice_hold_nothing_in_its_place() -> None:
    old, new = "one thing\n---\ntwo things\n", "zero\n---\none thong\n---\ntwo thangs\n"
    assert [old[at : at + remove] for at, remove, _ in diff_texts(old, new)] == ["", "i", "i"]


def test_the_lines_of_a_long_text_stay_where_there_are_no_sentences() -> None:
    lines = [f"- line {at} of the list" for at in range(2000)]
    changed = {10: "- another", 1900: "- one more"}
    regions = diff_texts("\n".join(lines), "\n".join(changed.get(at, line) for at, line in enumerate(lines)))
    assert sum(remove for _, remove, _ in regions) < 50


# In a state


TEXT_KEYS = Keys({}, ["/note", "/cards/*/body"])
OLD = {
    "note": "one two",
    "status": "doing",
    "cards": [{"id": "a", "body": "ab", "title": "ab"}, {"id": "b", "body": ""}],
}
NEW = {
    "note": "one big two",
    "status": "done",
    "cards": [{"id": "b", "body": "x"}, {"id": "a", "body": "a", "title": "a"}],
}


def test_only_texts_are_spliced_and_all_other_strings_change_whole() -> None:
    ops = diff(OLD, NEW, TEXT_KEYS)
    assert [op.op for op in ops if op.path in ("/note", "/cards/0/body", "/cards/1/body")] == ["splice"] * 3
    assert [(op.path, op.value) for op in ops if op.op == "replace"] == [("/status", "done"), ("/cards/1/title", "a")]
    assert apply(OLD, ops) == NEW


def test_the_difference_of_json_texts_is_that_of_the_states() -> None:
    found = TextDiff(TEXT_KEYS).diff(encode_json(OLD), encode_json(NEW), lambda text, _: decode_json(text))
    assert found == diff(OLD, NEW, TEXT_KEYS)


def test_a_whole_state_may_be_a_text() -> None:
    keys = Keys({}, [""])
    assert diff("ab", "axb", keys) == [splice("", 1, 0, "x")]
    assert apply("ab", [splice("", 1, 0, "x")]) == "axb"
    assert TextDiff(keys).diff(b'"ab"', b'"axb"', lambda text, _: decode_json(text)) == [splice("", 1, 0, "x")]


@pytest.mark.parametrize(("old", "new"), [(None, "abc"), ("abc", None), ("abc", 3), ("abc", {"a": "b"})])
def test_what_is_no_string_on_one_side_is_replaced(old: object, new: object) -> None:
    ops = diff({"note": old}, {"note": new}, TEXT_KEYS)
    assert ops == [Op("replace", "/note", new)]


def test_an_escaped_text_is_the_same_text() -> None:
    assert TextDiff(TEXT_KEYS).diff(b'{"note":"\\u0061"}', b'{"note":"a"}', lambda text, _: decode_json(text)) == []


def test_each_region_counts_as_an_operation() -> None:
    old, new = "\n".join(PARAGRAPHS), "\n".join(each.replace("paragraph", "part") for each in PARAGRAPHS)
    assert len(diff_texts(old, new)) == 6
    assert len(diff({"note": old}, {"note": new}, TEXT_KEYS, most=6)) == 6
    assert diff({"note": old}, {"note": new}, TEXT_KEYS, most=5) == [Op("replace", "", {"note": new})]
    read = TextDiff(TEXT_KEYS).diff(
        encode_json({"note": old}), encode_json({"note": new}), lambda text, _: decode_json(text), most=5
    )
    assert read == [Op("replace", "", {"note": new})]


def test_two_states_that_were_compared_whole_merge_inside_a_text() -> None:
    base, mine, theirs = ({"note": text} for text in ("one two", "one big two", "one two three"))
    found = rebase(diff(base, mine, TEXT_KEYS), diff(base, theirs, TEXT_KEYS), theirs)
    assert apply(theirs, found.ops) == {"note": "one big two three"}


@pytest.mark.parametrize(
    ("patterns", "path", "is_text"),
    [
        (["/note"], "/note", True),
        (["/note"], "/note/0", False),
        (["/cards/*/body"], "/cards/7/body", True),
        (["/cards/*/body"], "/cards/body", False),
        ([""], "", True),
        ([""], "/note", False),
        (["/a~1b"], "/a~1b", True),
        ([], "/note", False),
    ],
)
def test_a_pattern_says_which_strings_are_texts(patterns: list[str], path: str, is_text: bool) -> None:
    assert Keys({}, patterns).has_text(path) is is_text
