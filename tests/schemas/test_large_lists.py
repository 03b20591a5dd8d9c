"""Lists that are too large to be aligned are changed in few places, or replaced whole; `patch.test.ts` is the twin."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from plait_schemas.align import Budget, edits
from plait_schemas.codec import decode_json, encode_json, nests_deeper
from plait_schemas.diff import diff
from plait_schemas.patch import Op, apply
from plait_schemas.text_patch import TextDiff


def read(data: bytes, path: str) -> Any:
    return decode_json(data)


def both(old: Any, new: Any) -> list[Op]:
    """Return how two states differ, which is the same for their texts."""
    ops = diff(old, new)
    assert encode_json(TextDiff().diff(encode_json(old), encode_json(new), read)) == encode_json(ops)
    return ops


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": id, "n": 0} for id in ids]


# Without an id an element counts as three.


@pytest.mark.parametrize(
    ("make", "most"), [(lambda count: rows(*range(count)), 12_000), (lambda count: list(range(count)), 4_000)]
)
def test_a_list_is_aligned_up_to_a_number_of_elements(make: Any, most: int) -> None:
    for count, is_aligned in ((most, True), (most + 1, False)):
        old = make(count)
        new = [*old[1:], old[0]]
        ops = both(old, new)
        assert (ops[0].path != "") == is_aligned
        assert apply(old, ops) == new


def test_all_lists_of_a_state_share_what_may_be_compared() -> None:
    lists = {name: [*range(index * 1000, index * 1000 + 1500)] for index, name in enumerate("abcd")}
    moved = {name: [*each[1:], each[0], -1] for name, each in lists.items()}
    ops = both(lists, moved)
    assert apply(lists, ops) == moved
    whole = [op.path for op in ops if op.path.count("/") == 1]
    assert whole == ["/c", "/d"]


def test_what_is_beside_a_large_list_is_told_apart_from_it() -> None:
    old = {"title": "a", "numbers": [*range(20_000)], "rows": rows(1, 2)}
    new = {"title": "b", "numbers": [*range(20_000, 0, -1)], "rows": rows(2)}
    assert both(old, new) == [
        Op("replace", "/title", "b"),
        Op("replace", "/numbers", new["numbers"]),
        Op("remove", "/rows/0"),
    ]


def test_a_large_list_is_changed_in_few_places() -> None:
    old = rows(*range(30_000))
    new = [{**each} for each in old]
    new[0]["n"] = new[-1]["n"] = 1
    assert both(old, new) == [Op("replace", "/0/n", 1), Op("replace", "/29999/n", 1)]
    for at in range(63):
        new[at * 100]["n"] = 2
    assert len(both(old, new)) == 64
    new[9_999]["n"] = 2
    assert both(old, new) == [Op("replace", "", new)]


def test_a_large_list_in_which_another_element_is_in_a_place_is_replaced() -> None:
    old = rows(*range(30_000))
    new = [*old]
    new[0], new[-1] = old[-1], old[0]
    assert both(old, new) == [Op("replace", "", new)]


@each_case("element", [1, "a", [1, 2], {"a": 1}, None])
def test_a_large_list_without_ids_is_changed_in_few_places(element: Any) -> None:
    old: list[Any] = [*range(30_000)]
    new = [*old]
    new[0] = new[-1] = element
    assert both(old, new) == [Op("replace", "/0", element), Op("replace", "/29999", element)]


def test_one_element_that_is_put_in_or_taken_out_is_found_in_any_list() -> None:
    numbers = [*range(90_000)]
    assert both(numbers, [*numbers[:5], -1, *numbers[5:]]) == [Op("add", "/5", -1)]
    assert both(numbers, [*numbers[:5], *numbers[6:]]) == [Op("remove", "/5")]


def test_lists_of_more_elements_are_not_compared() -> None:
    old, new = [*range(100_000)], [*range(100_000), 5]
    assert diff(old, new) == [Op("replace", "", new)]


# Texts


@pytest.mark.parametrize("crowded", [[0] * 100_002, [[]] * 100_002, [[1, 2]] * 60_000])
def test_a_text_of_many_small_elements_is_read_once_and_not_taken_apart(crowded: list[Any]) -> None:
    for old, new in ((crowded, [*crowded, 1]), (crowded, [1]), ([1], crowded)):
        read_at: list[str] = []

        def note(data: bytes, path: str, read_at: list[str] = read_at) -> Any:
            read_at.append(path)
            return decode_json(data)

        before, after = ({"list": each, "n": 1} for each in (old, new))
        ops = TextDiff().diff(encode_json(before), encode_json(after), note)
        assert ops == [Op("replace", "/list", new)]
        assert read_at == ["/list"]


def test_a_text_of_many_large_elements_is_compared() -> None:
    old = [{"id": at, "text": "x" * 50} for at in range(11_000)]
    new = [*old, {"id": -1}]
    assert both(old, new) == [Op("add", "/11000", {"id": -1})]


def test_long_integers_are_told_apart_without_being_computed_with() -> None:
    old, new = ([10**4_000 + n + at for at in range(3)] for n in range(2))
    found = TextDiff().diff(encode_json(old), encode_json(new), read)
    assert apply(old, found) == new


# What is spent


class Counted:
    """Two lists of numbers, which count how often they are asked for what costs time."""

    def __init__(self, old: list[int], new: list[int]) -> None:
        self.old, self.new = old, new
        self.named = 0

    @property
    def sizes(self) -> tuple[int, int]:
        return len(self.old), len(self.new)

    @property
    def ids(self) -> tuple[list[None], list[None]]:
        self.named += len(self.old) + len(self.new)
        return [None] * len(self.old), [None] * len(self.new)

    def id_at(self, place: int) -> tuple[None, None]:
        self.named += 2
        return None, None

    def find_different(self, most: int) -> list[int] | None:
        found = [at for at, (old, new) in enumerate(zip(self.old, self.new, strict=True)) if old != new]
        return found if len(found) <= most else None

    def old_name(self, index: int) -> bytes:
        self.named += 1
        return encode_json(self.old[index])

    def new_name(self, index: int) -> bytes:
        self.named += 1
        return encode_json(self.new[index])

    def find_changed(self, pairs: Any) -> set[int]:
        return {old for old, new in pairs if self.old[old] != self.new[new]}

    def is_same(self, old: int, new: int) -> bool:
        self.named += 1
        return False

    def outlines(self, old: Any, new: Any) -> tuple[list[None], list[None]]:
        return [None] * len(old), [None] * len(new)

    def shares_ids(self, old: int, new: int) -> bool:
        return False

    def repeats(self) -> bool:
        return False


def test_elements_of_a_list_that_is_too_large_are_not_named() -> None:
    budget = Budget()
    lists = Counted([*range(30_000)], [*range(30_000, 0, -1)])
    assert edits(lists, 0, budget) is None
    assert lists.named == 0
    small = Counted([1, 2, 3], [3, 1, 2])
    assert edits(small, 0, budget)
    assert budget.left == 24_000 - 18


# How deep a text is


@given(st.recursive(st.none() | st.text(max_size=2), lambda inner: st.lists(inner, max_size=3), max_leaves=30))
def test_levels_beyond_those_that_are_peeled_off_are_counted(value: Any) -> None:
    deep = value
    for _ in range(9):
        deep = [[], deep, []]

    def depth(each: Any) -> int:
        return 1 + max(map(depth, each), default=0) if isinstance(each, list) else 0

    for limit in range(depth(deep) - 2, depth(deep) + 2):
        assert nests_deeper(encode_json(deep), limit) == (depth(deep) > limit)


def test_an_object_with_too_many_differences_is_read_once_and_replaced() -> None:
    read_at: list[str] = []

    def note(data: bytes, path: str) -> Any:
        read_at.append(path)
        return decode_json(data)

    old, new = ({f"k{at}": at + n for at in range(11)} for n in range(2))
    assert TextDiff().diff(encode_json(old), encode_json(new), note, most=10) == [Op("replace", "", new)]
    assert read_at == [""]
    assert len(TextDiff().diff(encode_json(old), encode_json(new), read, most=11)) == 11


def test_what_is_only_spelled_with_other_spaces_does_not_count_as_a_difference() -> None:
    old = {"cards": {str(at): {"n": [at], "text": "x" * 100} for at in range(100)}}
    new = decode_json(encode_json(old))
    new["cards"]["7"]["n"] = [8]
    for before, after in ((json.dumps(old), encode_json(new)), (encode_json(old), json.dumps(new))):
        texts = [text.encode() if isinstance(text, str) else text for text in (before, after)]
        assert TextDiff().diff(texts[0], texts[1], read, most=2) == [Op("replace", "/cards/7/n/0", 8)]


@pytest.mark.parametrize(("count", "is_whole"), [(1_999, False), (2_000, True)])
def test_the_differences_on_the_way_to_an_operation_are_bounded(count: int, *, is_whole: bool) -> None:
    old, new = ({f"k{at}": {"a": {"b": {"c": {"d": n}}}} for at in range(count)} for n in range(2))
    expected = [Op("replace", "", new)] if is_whole else diff(old, new)
    assert diff(old, new, most=5_000) == expected
    assert TextDiff().diff(encode_json(old), encode_json(new), read, most=5_000) == expected
    assert len(diff(old, new)) == count


def test_what_differs_in_many_rows_is_found() -> None:
    old, new = ([{"id": at, "n": n, "text": "x"} for at in range(4_900)] for n in range(2))
    assert diff(old, new, most=5_000) == TextDiff().diff(encode_json(old), encode_json(new), read, most=5_000)
    assert len(diff(old, new, most=5_000)) == 4_900
