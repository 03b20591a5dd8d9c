"""Texts that were rewritten, and the parts that stay."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case
from tests.schemas.test_text import TEXTS

from plait_schemas.codec import decode_json, encode_json
from plait_schemas.diff import diff
from plait_schemas.elements import Keys
from plait_schemas.patch import Op, apply, splice
from plait_schemas.rebase import rebase
from plait_schemas.text import Region, spliced, transform
from plait_schemas.text_diff import TextComparison
from plait_schemas.text_patch import TextDiff

PARTS = st.sampled_from(["one word. ", "Another sentence! ", "a line\n", "🔑 e\u0301\n", "x", "the ", "\n", "。", "  "])
LONG = st.lists(PARTS | TEXTS, max_size=30).map("".join)


def diff_texts(old: str, new: str) -> list[Region]:
    return TextComparison().compare(old, new)


@given(LONG, LONG)
def test_the_difference_leads_from_the_one_text_to_the_other(old: str, new: str) -> None:
    regions = diff_texts(old, new)
    assert spliced(old, regions) == new
    assert all(remove or insert for _, remove, insert in regions)
    ends = [(at, at + remove) for at, remove, _ in regions]
    assert all(end < at for (_, end), (at, _) in pairwise(ends))


def test_the_same_text_has_no_difference() -> None:
    assert diff_texts("🔑", "🔑") == []


@each_case(
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


@each_case(
    ("old", "new", "removed", "inserted"),
    [
        ("我们今天去北京看长城然后回家吃饭", "我们昨天去北京看长城然后在家吃饭", ["今", "回"], ["昨", "在"]),
        ("the cat sat on it", "the car cat sits on it", ["", "at"], ["car ", "its"]),
        ("id=abcdefghijklmnopqrstuvwxyz;", "id=abcdefgXijklmnopqrstuvwYyz;", ["h", "x"], ["X", "Y"]),
        ("f(a, b) + c[0]", "f(a; b) + d[0]", [",", "c"], [";", "d"]),
        ("x = 'it was so'", "x = 'he had been there so'", ["it was"], ["he had been there"]),
    ],
)
def test_what_stays_between_two_edits_stays(old: str, new: str, removed: list[str], inserted: list[str]) -> None:
    regions = diff_texts(old, new)
    assert [old[at : at + remove] for at, remove, _ in regions] == removed
    assert [insert for _, _, insert in regions] == inserted


def test_what_others_have_deleted_does_not_come_back_with_two_edits() -> None:
    old = "我们今天去北京看长城然后回家吃饭"
    document = {"note": old.replace("看长城", "")}
    ops = diff({"note": old}, {"note": "我们昨天去北京看长城然后在家吃饭"}, TEXT_KEYS)
    found = rebase(ops, [splice("/note", old.index("看长城"), 3)], document)
    assert apply(document, found.ops) == {"note": "我们昨天去北京然后在家吃饭"}


@each_case(
    ("part", "separator", "count"),
    [
        ("line {} of a text with some words", "\n", 25_000),
        ("{}", "\n", 140_000),
        ("This is sentence {} of it", ". ", 33_000),
        ("第{}句话是这样的", "。", 90_000),
        ("{}", " ", 140_000),
    ],
)
def test_two_edits_of_a_text_of_1_mb_change_little_of_it(part: str, separator: str, count: int) -> None:
    parts = [part.replace("{}", str(at)) for at in range(count)]
    new = [*parts[:9], "one more", *parts[9 : count - 9], parts[count - 9] + "x", *parts[count - 8 :]]
    regions = diff_texts(separator.join(parts), separator.join(new))
    assert sum(remove + len(insert) for _, remove, insert in regions) < 50


def test_a_text_without_lines_that_are_there_once_is_compared_all_the_same() -> None:
    old = "".join(f"{'abcdefgh'[at % 7]}\n" for at in range(4000))
    new = "x\n" + old[2:4000] + "y\n" + old[4000:]
    assert diff_texts(old, new) == [(0, 1, "x"), (3999, 0, "\ny")]


def test_what_many_texts_cost_is_bounded_for_all_of_them_together() -> None:
    texts = {str(at): " ".join(f"w{(at * word) % 977}" for word in range(1500)) for at in range(60)}
    changed = {name: f"a {text.replace('w7', 'v7')} b" for name, text in texts.items()}
    ops = diff(texts, changed, Keys({}, ["/*"]))
    assert apply(texts, ops) == changed
    count = {name: sum(op.path == f"/{name}" for op in ops) for name in texts}
    assert count["0"] > 1 or count["1"] > 10
    assert count["59"] == 1


def test_what_one_text_costs_is_bounded_and_the_rest_of_it_is_replaced_whole() -> None:
    lines = [f"{at} {'abcde'[at % 5]} {at * at}" for at in range(8_000)]
    new = [line.replace(" ", " x ", 1) if at % 2 else line for at, line in enumerate(lines)]
    old, text = "\n".join(lines), "\n".join(new)
    regions = diff_texts(old, text)
    assert spliced(old, regions) == text
    assert 100 < len(regions) < 3_000
    assert regions[-1][1] > 50_000


def test_the_changes_of_a_long_text_are_no_more_than_can_be_carried_out_and_the_nearest_are_one() -> None:
    parts = [f"{at} words in a line, and {at * 7} more\n" for at in range(25_000)]
    places = [*range(100, 10_000, 66), *range(10_000, 10_400, 2), *range(11_000, 24_000, 70)]
    new = list(parts)
    for at in places:
        new[at] = parts[at].replace("words", "letters")
    regions = diff_texts("".join(parts), "".join(new))
    assert spliced("".join(parts), regions) == "".join(new)
    assert len(regions) == 400_000_000 // (len("".join(parts)) + 1)
    assert sum(remove for _, remove, _ in regions) < 40_000


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


@each_case(("old", "new"), [(None, "abc"), ("abc", None), ("abc", 3), ("abc", {"a": "b"})])
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


@each_case(
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
