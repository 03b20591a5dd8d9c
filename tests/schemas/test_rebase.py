"""Operations rebased over those of others, branch by branch."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.cases import each_case
from tests.schemas.test_patch import text

from plait_schemas.inverse import taking_back
from plait_schemas.patch import Op, PatchError, apply
from plait_schemas.rebase import Rebased, rebase

UNSET = msgspec.UNSET
Given = tuple[Any, ...]


def rebased(document: Any, mine: Sequence[Given], over: Sequence[Given]) -> Rebased:
    """Rebase operations on `document` over others on it."""
    others = [Op(*op) for op in over]
    return rebase([Op(*op) for op in mine], others, apply(document, others))


def result(document: Any, mine: Sequence[Given], over: Sequence[Given]) -> Any:
    """Return the document with both."""
    return apply(apply(document, [Op(*op) for op in over]), rebased(document, mine, over).ops)


DOCUMENT: Any = {"list": ["a", "b", "c"], "rows": [{"n": 0}, {"n": 1}], "object": {"x": {"y": 1}}, "7": {"8": 0}}

# What was pushed, what others did before, and what there is to do then.
FREE: dict[str, tuple[Given, Given, Given]] = {
    "another key": (("replace", "/object", 1), ("replace", "/rows", 2), ("replace", "/object", 1)),
    "a key with the same beginning": (("add", "/rowsx", 1), ("replace", "/rows", 2), ("add", "/rowsx", 1)),
    "another key of the same object": (("add", "/object/a", 1), ("remove", "/object/x"), ("add", "/object/a", 1)),
    "an element, after an insertion before it": (
        ("replace", "/list/1", 1),
        ("add", "/list/0", 2),
        ("replace", "/list/2", 1),
    ),
    "an element, after an insertion at it": (
        ("replace", "/list/1", 1),
        ("add", "/list/1", 2),
        ("replace", "/list/2", 1),
    ),
    "an element, after an insertion after it": (
        ("replace", "/list/1", 1),
        ("add", "/list/2", 2),
        ("replace", "/list/1", 1),
    ),
    "an element, after an append": (("remove", "/list/2"), ("add", "/list/-", 2), ("remove", "/list/2")),
    "an element, after a removal before it": (
        ("replace", "/list/1", 1),
        ("remove", "/list/0"),
        ("replace", "/list/0", 1),
    ),
    "an element, after a removal after it": (
        ("replace", "/list/1", 1),
        ("remove", "/list/2"),
        ("replace", "/list/1", 1),
    ),
    "what is in an element": (("replace", "/rows/1/n", 1), ("remove", "/rows/0"), ("replace", "/rows/0/n", 1)),
    "an insertion, after one before it": (("add", "/list/1", 1), ("add", "/list/0", 2), ("add", "/list/2", 1)),
    "an insertion, after one at the same index": (("add", "/list/1", 1), ("add", "/list/1", 2), ("add", "/list/2", 1)),
    "an insertion, after one after it": (("add", "/list/1", 1), ("add", "/list/2", 2), ("add", "/list/1", 1)),
    "an insertion, after a removal before it": (("add", "/list/2", 1), ("remove", "/list/0"), ("add", "/list/1", 1)),
    "an insertion before what was removed": (("add", "/list/1", 1), ("remove", "/list/1"), ("add", "/list/1", 1)),
    "an append stays one": (("add", "/list/-", 1), ("add", "/list/-", 2), ("add", "/list/-", 1)),
    "an append, after a removal": (("add", "/list/-", 1), ("remove", "/list/0"), ("add", "/list/-", 1)),
    "a removal, after one before it": (("remove", "/list/2"), ("remove", "/list/0"), ("remove", "/list/1")),
    "a removal, after what happened in another element": (
        ("remove", "/rows/0"),
        ("replace", "/rows/1/n", 2),
        ("remove", "/rows/0"),
    ),
    "an insertion, after what happened in an element": (
        ("add", "/rows/0", 1),
        ("replace", "/rows/0/n", 2),
        ("add", "/rows/0", 1),
    ),
    "numbers that are keys": (("add", "/7/9", 1), ("add", "/7/0", 2), ("add", "/7/9", 1)),
    "a number that is a key, after its neighbour's removal": (
        ("replace", "/7", 1),
        ("remove", "/object"),
        ("replace", "/7", 1),
    ),
}

# The same, where both are at one place: the last writer's stays.
CONTESTED: dict[str, tuple[Given, ...]] = {
    "the same key": (("replace", "/object", 1), ("replace", "/object", 2), ("replace", "/object", 1)),
    "the same key, which others have added": (("add", "/new", 1), ("add", "/new", 2), ("add", "/new", 1)),
    "the same key, which others have removed": (
        ("replace", "/object", 1),
        ("remove", "/object"),
        ("add", "/object", 1),
    ),
    "the removal of what others have replaced": (
        ("remove", "/object"),
        ("replace", "/object", 2),
        ("remove", "/object"),
    ),
    "around what others have changed": (
        ("replace", "/object", 1),
        ("remove", "/object/x/y"),
        ("replace", "/object", 1),
    ),
    "in what others have replaced": (
        ("replace", "/object/x/y", 1),
        ("replace", "/object", {"x": {"y": 2}}),
        ("replace", "/object/x/y", 1),
    ),
    "what others have left out of what they replaced": (
        ("replace", "/object/x/y", 1),
        ("replace", "/object", {"x": {}}),
        ("add", "/object/x/y", 1),
    ),
    "the end of a list that others have replaced": (
        ("add", "/list/-", 1),
        ("replace", "/list", ["A"]),
        ("add", "/list/-", 1),
    ),
    "a key that looks like an index, in an object that others have replaced": (
        ("replace", "/7/8", 1),
        ("replace", "/7", {"8": 2}),
        ("replace", "/7/8", 1),
    ),
    "the whole document": (("replace", "", 1), ("add", "/new", 2), ("replace", "", 1)),
    "in a document that others have replaced": (("add", "/new", 1), ("replace", "", {}), ("add", "/new", 1)),
    "the same element": (("replace", "/list/1", 1), ("replace", "/list/1", 2), ("replace", "/list/1", 1)),
    "a cell that is cleared": (("replace", "/rows/1", {"n": 1}), ("replace", "/rows/1", None)),
    "a cell that was cleared": (("replace", "/rows/1", None), ("replace", "/rows/1", {"n": 1})),
    "an element of one id": (("replace", "/rows/1", {"id": 7, "n": 1}), ("replace", "/rows/1", {"id": 7, "n": 2})),
    "an object": (("replace", "/object", {"n": 1}), ("replace", "/object", {"n": 2})),
    "a key that looks like an index": (("replace", "/7", {"n": 1}), ("replace", "/7", {"n": 2})),
    "the removal of an element that others have changed": (
        ("remove", "/rows/1"),
        ("replace", "/rows/1/n", 2),
        ("remove", "/rows/1"),
    ),
    "an array that others have added to": (("replace", "/list", []), ("add", "/list/0", 2), ("replace", "/list", [])),
}

LOST: dict[str, tuple[Given, Given]] = {
    "in a key that is gone": (("replace", "/object/x/y", 1), ("remove", "/object")),
    "a removal in a key that is gone": (("remove", "/object/x"), ("remove", "/object")),
    "an element that is gone": (("replace", "/list/1", 1), ("remove", "/list/1")),
    "in an element that is gone": (("replace", "/rows/1/n", 1), ("remove", "/rows/1")),
    "an insertion into an array that is gone": (("add", "/list/0", 1), ("remove", "/list")),
    "in an object that others have left out": (("replace", "/object/x/y", 1), ("replace", "/object", {"z": 1})),
    "a removal in an object that others have left out": (("remove", "/object/x/y"), ("replace", "/object", {})),
    "an element of a list that others have replaced": (("replace", "/list/1", 1), ("replace", "/list", ["A", "b"])),
    "an insertion into a list that others have replaced": (("add", "/list/1", 1), ("replace", "/list", ["A"])),
    "in an element of a list that others have replaced": (
        ("replace", "/rows/1/n", 2),
        ("replace", "/rows", [{"n": 5}, {"n": 6}]),
    ),
    "in an element that others have replaced": (("replace", "/rows/1/n", 2), ("replace", "/rows/1", {"n": 6})),
    "an element in the place of one that others have put there": (
        ("replace", "/rows/1", {"n": 1}),
        ("replace", "/rows/1", {"n": 2}),
    ),
    "a list in the place of one that others have put there": (("replace", "/rows/1", [1]), ("replace", "/rows/1", [2])),
    "an element of one id in the place of another": (
        ("replace", "/rows/1", {"id": 7}),
        ("replace", "/rows/1", {"id": 8}),
    ),
    "the removal of an element that others have replaced": (("remove", "/list/1"), ("replace", "/list/1", 2)),
    "in a list of a document that others have replaced": (
        ("replace", "/rows/0/n", 2),
        ("replace", "", {"rows": [{"n": 5}]}),
    ),
    "an element that others have left out": (("replace", "/list/2", 1), ("replace", "/list", ["A"])),
    "an insertion after the end of what others have left": (("add", "/list/3", 1), ("add", "/list", ["A"])),
    "in what others have replaced by a number": (("add", "/object/a", 1), ("replace", "/object", 5)),
    "in a document that is a number": (("add", "/a", 1), ("replace", "", 5)),
}


@each_case("case", FREE)
def test_operations_at_other_places_are_carried_out_in_theirs(case: str) -> None:
    mine, over, expected = FREE[case]
    found = rebased(DOCUMENT, [mine], [over])
    assert (found.ops, found.conflicts, found.is_lost) == ([Op(*expected)], [], False)
    apply(apply(DOCUMENT, [Op(*over)]), found.ops)


@each_case("case", CONTESTED)
def test_operations_at_the_same_place_say_so(case: str) -> None:
    mine, over, *changed = CONTESTED[case]
    expected = changed[0] if changed else mine
    found = rebased(DOCUMENT, [mine], [over])
    assert (found.ops, found.conflicts, found.is_lost) == ([Op(*expected)], [expected[1]], False)


@each_case("case", LOST)
def test_operations_into_what_is_gone_are_lost(case: str) -> None:
    mine, over = LOST[case]
    found = rebased(DOCUMENT, [mine], [over])
    assert found.is_lost
    assert len(found.conflicts) == 1
    assert found.over[-1] == Op(*over)


@pytest.mark.parametrize("place", ["/object", "/list/1", "/rows/0"])
def test_what_both_have_removed_is_done(place: str) -> None:
    found = rebased(DOCUMENT, [("remove", place), ("add", "/new", 1)], [("remove", place)])
    assert found == Rebased([Op("add", "/new", 1)], [], False, [], [])


def test_what_others_have_left_out_of_what_they_replaced_need_not_be_removed() -> None:
    found = rebased(DOCUMENT, [("remove", "/object/x/y"), ("add", "/new", 1)], [("replace", "/object", {"x": {}})])
    assert (found.ops, found.is_lost) == ([Op("add", "/new", 1)], False)


def test_what_leads_into_what_was_put_into_others_value_is_there() -> None:
    value: dict[str, Any] = {"b": {}}
    mine: list[Given] = [("add", "/object/c", {}), ("add", "/object/c/d", 1), ("add", "/object/c/e", 2)]
    found = rebased(DOCUMENT, mine, [("replace", "/object", value)])
    assert (found.ops, found.is_lost) == ([Op(*op) for op in mine], False)
    assert found.over == [Op("replace", "/object", {"b": {}, "c": {"d": 1, "e": 2}})]
    assert (value, mine[0][2]) == ({"b": {}}, {})


@pytest.mark.parametrize("place", ["/object", "/rows/0", ""])
def test_what_leads_into_what_is_taken_back_is_lost_and_not_done_to_what_was_there_before(place: str) -> None:
    document = {"object": {"n": 0}, "rows": [{"n": 0}], "n": 0}
    back = taking_back([Op("replace", place, {"n": 1})], document)
    assert rebase([Op("replace", f"{place}/n", 2)], back, document).is_lost
    again = rebase([Op("replace", place, {"n": 3})], back, document)
    assert (again.ops, again.is_lost) == ([Op("replace", place, {"n": 3})], False)


def test_over_nothing_operations_stay_as_they_are() -> None:
    mine: list[Given] = [("add", "/list/-", 1), ("remove", "/rows/0"), ("replace", "", 1), ("add", "/~0~1", 2)]
    assert rebased(DOCUMENT, mine, []) == Rebased([Op(*op) for op in mine], [], False, [], [])
    assert rebased(DOCUMENT, [], [("remove", "/list")]) == Rebased([], [], False, [Op("remove", "/list")], [0])


def test_conflicts_are_named_by_their_places_in_the_newer_state() -> None:
    found = rebased(DOCUMENT, [("replace", "/rows/1/n", 5)], [("replace", "/rows/1/n", 6), ("add", "/rows/0", {})])
    assert (found.ops, found.conflicts) == ([Op("replace", "/rows/2/n", 5)], ["/rows/2/n"])


def test_one_lost_operation_among_others_says_so() -> None:
    found = rebased(DOCUMENT, [("add", "/new", 1), ("replace", "/object/x", 1)], [("remove", "/object")])
    assert found.is_lost
    assert found.conflicts == ["/object/x"]


def test_later_operations_follow_earlier_ones_of_their_own() -> None:
    mine: list[Given] = [("remove", "/list/0"), ("add", "/list/0", "A"), ("replace", "/list/2", "C")]
    assert result(DOCUMENT, mine, [("add", "/list/2", "x")])["list"] == ["A", "b", "x", "C"]
    assert result(DOCUMENT, mine, [("remove", "/list/1")])["list"] == ["A", "C"]


def test_what_was_put_in_is_found_again_after_others() -> None:
    mine: list[Given] = [("add", "/rows/2", {}), ("add", "/rows/2/n", 5)]
    assert result(DOCUMENT, mine, [("add", "/rows/2", "x"), ("add", "/rows/0", "y")])["rows"] == [
        "y",
        {"n": 0},
        {"n": 1},
        "x",
        {"n": 5},
    ]


def test_what_was_appended_is_found_again_after_what_others_have() -> None:
    mine: list[Given] = [("add", "/list/-", "mine"), ("replace", "/list/3", "MINE")]
    assert result(DOCUMENT, mine, [("add", "/list/-", "x"), ("replace", "/list/3", "X")])["list"] == [
        *"abc",
        "X",
        "MINE",
    ]


def test_what_others_have_appended_and_taken_away_again_is_as_if_it_had_not_been() -> None:
    over: list[Given] = [("add", "/list/-", "x"), ("add", "/list/-", "y"), ("remove", "/list/3"), ("remove", "/list/0")]
    assert result(DOCUMENT, [("add", "/list/2", "mine")], over)["list"] == ["b", "mine", "c", "y"]
    assert result(DOCUMENT, [("add", "/list/3", "mine")], over)["list"] == ["b", "c", "y", "mine"]


def test_an_operation_that_overwrites_leaves_nothing_of_theirs() -> None:
    found = rebased(DOCUMENT, [("replace", "/object", 1)], [("add", "/object/a", 1), ("add", "/new", 2)])
    assert (found.over, found.indices) == ([Op("add", "/new", 2)], [1])


def test_theirs_are_given_as_they_are_after_mine() -> None:
    found = rebased(DOCUMENT, [("add", "/list/0", 1)], [("replace", "/list/1", 2), ("add", "/list/-", 3)])
    assert [op.path for op in found.over] == ["/list/2", "/list/4"]


def test_keys_that_look_like_indices_stay_where_their_object_has_moved() -> None:
    columns = {"columns": [{"cards": {}}, {"cards": {"17": 0, "20": 0}}]}
    over: list[Given] = [("add", "/columns/1/cards/18", 0), ("remove", "/columns/0")]
    found = rebased(columns, [("replace", "/columns/1/cards/20", 1), ("add", "/columns/1/cards/21", 2)], over)
    assert [op.path for op in found.ops] == ["/columns/0/cards/20", "/columns/0/cards/21"]
    over = [("add", "/columns/0", {}), ("remove", "/columns/2/cards/17")]
    found = rebased(columns, [("replace", "/columns/1/cards/20", 1)], over)
    assert [op.path for op in found.ops] == ["/columns/2/cards/20"]


def test_what_others_have_replaced_by_an_object_is_taken_to_have_been_one() -> None:
    over: list[Given] = [("add", "/object/0", 0), ("replace", "/object", {"x": 0})]
    assert rebased(DOCUMENT, [("add", "/object/1", 1)], over).ops == [Op("add", "/object/1", 1)]


def test_keys_are_escaped_again() -> None:
    document = {"a/b": [0, 1], "~": 0}
    found = rebased(document, [("replace", "/a~1b/1", 5), ("remove", "/~0")], [("remove", "/a~1b/0")])
    assert found.ops == [Op("replace", "/a~1b/0", 5), Op("remove", "/~0")]


class Row(msgspec.Struct):
    n: int
    by_key: dict[str, int] = {}


class Board(msgspec.Struct):
    rows: tuple[Row, ...]


def test_a_state_of_structs_is_looked_into_like_its_json() -> None:
    newer = Board((Row(0), Row(1, {"1": 1})))
    found = rebase([Op("replace", "/rows/0/n", 5)], [Op("add", "/rows/0", {"n": 0})], newer)
    assert found.ops == [Op("replace", "/rows/1/n", 5)]
    found = rebase([Op("add", "/rows/1/by_key/2", 5)], [Op("add", "/rows/1/by_key/1", 1)], newer)
    assert found.ops == [Op("add", "/rows/1/by_key/2", 5)]


@each_case("path", ["/list/" + "9" * 5_000, "/list/-/0", "/list/01", "/list/0/-", "/none/0", "/list/99"])
def test_a_path_that_leads_nowhere_is_left_to_whoever_carries_it_out(path: str) -> None:
    overs: list[list[Given]] = [
        [("add", "/list/0", 1)],
        [("remove", "/list/0")],
        [("add", "/list/-", 1), ("add", "/rows/0", 1)],
    ]
    mines: list[list[Given]] = [[("add", path, 1)], [("remove", path)], [("add", path, 1), ("add", path, 2)]]
    for over in overs:
        for mine in mines:
            found = rebased(DOCUMENT, mine, over)
            with pytest.raises(PatchError):
                apply(apply(DOCUMENT, [Op(*op) for op in over]), found.ops)


def test_the_documents_are_left_alone() -> None:
    before = text(DOCUMENT)
    rebased(DOCUMENT, [("add", "/list/0", 1), ("add", "/list/0", 2)], [("remove", "/rows/0")])
    assert text(DOCUMENT) == before
