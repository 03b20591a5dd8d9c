"""What holds of all operations that are rebased over those of others."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st
from tests.schemas.test_patch import text
from tests.schemas.test_patch_undo import places

from plait_schemas.diff import diff
from plait_schemas.inverse import invert, taking_back
from plait_schemas.patch import Op, apply, find, parse, splice
from plait_schemas.rebase import Rebased, rebase

Draw = Callable[[st.SearchStrategy[Any]], Any]
Case = tuple[Any, list[Op], list[Op]]

KEYS = st.sampled_from(["a", "b", "0", "1", "2", "-"])
LEAVES = st.integers(0, 3) | st.sampled_from(["", "ab", "🔑e\u0301"])
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


def draw_ops(draw: Draw, document: Any, *, prefix: str = "", owns: bool = False) -> list[Op]:
    """Return operations that fit a document, one after the other; nothing at or around `prefix` is changed.

    Some splices have `own` if that is set.
    """
    ops: list[Op] = []
    for _ in range(draw(st.integers(0, 4))):
        place = prefix + draw(st.sampled_from(places(find(document, parse(prefix)))))
        match draw(st.sampled_from(["add", "remove", "replace", "splice"])), find(document, parse(place)):
            case "splice", str() as there:
                at = draw(st.integers(0, len(there)))
                op = splice(place, at, draw(st.integers(0, len(there) - at)), draw(st.sampled_from(["", "x", "🔒y"])))
                if owns and draw(st.booleans()):
                    op = msgspec.structs.replace(op, own=True)
            case "add", dict():
                op = Op("add", f"{place}/{draw(KEYS)}", draw(LEAVES))
            case "add", list() as array:
                op = Op("add", f"{place}/{draw(st.sampled_from(['-', *range(len(array) + 1)]))}", draw(LEAVES))
            case _ if place == prefix:
                continue
            case "remove", _:
                op = Op("remove", place)
            case _:
                op = Op("replace", place, draw(DOCUMENTS))
        ops.append(op)
        document = apply(document, [op])
    return ops


@st.composite
def cases(draw: Draw) -> Case:
    """Return a document and the operations of two sides on it."""
    document = draw(DOCUMENTS)
    return document, draw_ops(draw, document, owns=True), draw_ops(draw, document)


@given(cases())
@example(([{}], [Op("add", "/0/0", 0)], [Op("add", "/0", 0), Op("add", "/1/0", 0)]))
@example(([{"1": 0}, {}], [Op("add", "/1/1", 0)], [Op("add", "/1/0", 0), Op("remove", "/0")]))
@example(([], [Op("add", "/-", 1), Op("remove", "/0")], [Op("add", "/-", 2)]))
@example(([0], [Op("add", "/1", 1)], [Op("add", "/-", 2), Op("replace", "/1", 3)]))
def test_both_ways_lead_to_the_same_document(case: Case) -> None:
    """Apply theirs and then mine over them, or mine and then theirs over mine, unless mine are lost by a conflict."""
    document, mine, over = case
    newer = apply(document, over)
    found = rebase(mine, over, newer)
    if found.is_lost:
        assert found.conflicts
        return
    result = apply(newer, found.ops)
    assert text(result) == text(apply(apply(document, mine), found.over))


@given(cases())
def test_over_nothing_operations_stay_as_they_are(case: Case) -> None:
    document, mine, _ = case
    found = rebase(mine, [], document)
    assert found == Rebased(mine, [], False, [], [])


@given(cases())
def test_nothing_over_operations_leaves_them(case: Case) -> None:
    document, _, over = case
    newer = apply(document, over)
    found = rebase([], over, newer)
    assert (found.ops, found.conflicts, found.is_lost) == ([], [], False)
    assert text(apply(document, found.over)) == text(newer)


@st.composite
def apart(draw: Draw) -> Case:
    """Return a document and the operations of two sides, each in a part of its own."""
    document = {"mine": draw(DOCUMENTS), "theirs": draw(DOCUMENTS)}
    return document, draw_ops(draw, document, prefix="/mine"), draw_ops(draw, document, prefix="/theirs")


@given(apart())
def test_operations_at_disjoint_keys_commute(case: Case) -> None:
    document, mine, over = case
    after, before = rebase(mine, over, apply(document, over)), rebase(over, mine, apply(document, mine))
    assert (after.ops, after.conflicts, after.is_lost) == (mine, [], False)
    assert text(apply(apply(document, over), after.ops)) == text(apply(apply(document, mine), before.ops))


# Lists with each element once


def draw_edits(draw: Draw, document: Any, name: str) -> list[Op]:
    """Return insertions and removals; what is inserted is found nowhere else."""
    ops: list[Op] = []
    for number in range(draw(st.integers(0, 5))):
        key = draw(st.sampled_from(["left", "right"]))
        count = len(document[key])
        if count and draw(st.booleans()):
            op = Op("remove", f"/{key}/{draw(st.integers(0, count - 1))}")
        else:
            op = Op("add", f"/{key}/{draw(st.sampled_from(['-', *range(count + 1)]))}", f"{name}{number}")
        ops.append(op)
        document = apply(document, [op])
    return ops


@st.composite
def edited_lists(draw: Draw) -> Case:
    """Return two lists, and what two sides do to them."""
    document = {key: [f"{key}{number}" for number in range(draw(st.integers(0, 4)))] for key in ("left", "right")}
    return document, draw_edits(draw, document, "mine"), draw_edits(draw, document, "theirs")


def elements(document: dict[str, list[str]]) -> set[str]:
    return {*document["left"], *document["right"]}


def in_order(order: Sequence[str], among: Sequence[str]) -> list[str]:
    """Return those elements of `order` that are in `among`."""
    return [each for each in order if each in among]


@given(edited_lists())
def test_what_either_inserted_is_there_and_what_either_removed_is_gone(case: Case) -> None:
    document, mine, over = case
    ours, theirs = apply(document, mine), apply(document, over)
    found = rebase(mine, over, theirs)
    both = apply(theirs, found.ops)
    assert (found.conflicts, found.is_lost) == ([], False)
    before = elements(document)
    stayed = before & elements(ours) & elements(theirs)
    assert elements(both) == stayed | (elements(ours) - before) | (elements(theirs) - before)
    assert sum(map(len, both.values())) == len(elements(both))


@given(edited_lists())
def test_each_ones_own_order_is_kept(case: Case) -> None:
    document, mine, over = case
    ours, theirs = apply(document, mine), apply(document, over)
    both = apply(theirs, rebase(mine, over, theirs).ops)
    for key in document:
        for side in (ours, theirs):
            assert in_order(side[key], both[key]) == in_order(both[key], side[key])


@given(edited_lists(), st.booleans(), st.data())
def test_what_was_made_after_lost_operations_hits_the_same_element_without_them(
    case: Case, is_first: bool, data: st.DataObject
) -> None:
    """Others remove the place of one of several operations, before or after other things that they do."""
    document, mine, over = case
    document = {**document, "gone": {"n": 0}}
    lost = Op("replace", "/gone/n", 1)
    mine = [lost, *mine] if is_first else [*mine, lost]
    at = data.draw(st.integers(0, len(over)))
    over = [*over[:at], Op("remove", "/gone"), *over[at:]]
    ours, newer = apply(document, mine), apply(document, over)
    found = rebase(mine, over, newer)
    assert found.is_lost
    both = sorted(elements(document) & elements(ours) & elements(newer))
    for element in both:
        moved = rebase([remove(ours, element)], found.over, newer)
        assert moved.ops == [remove(newer, element)]


def remove(document: dict[str, Any], element: str) -> Op:
    """Return what takes an element out of the list that it is in."""
    key = "left" if element in document["left"] else "right"
    return Op("remove", f"/{key}/{document[key].index(element)}")


@given(edited_lists(), st.booleans())
def test_what_is_inserted_into_a_list_that_is_gone_is_lost(case: Case, is_replaced: bool) -> None:
    document, mine, _ = case
    over = [Op("replace", "/left", "text") if is_replaced else Op("remove", "/left")]
    found = rebase(mine, over, apply(document, over))
    touched = [op for op in mine if op.path.startswith("/left")]
    assert found.is_lost == bool(touched)
    assert bool(found.conflicts) == bool(touched)


# Elements that move


@st.composite
def rebuilt(draw: Draw, document: Any, name: str) -> Any:
    """Return a list with moved, removed, added and changed elements."""
    kept = draw(st.permutations(document)) if draw(st.booleans()) else document
    elements = [{**element, "cards": list(element["cards"])} for element in kept if draw(st.integers(0, 5))]
    for element in elements:
        if not draw(st.integers(0, 3)):
            element[draw(st.sampled_from(["mine", "theirs"]))] = name
        if not draw(st.integers(0, 3)):
            element["cards"] = draw(st.permutations(element["cards"]))
    for number in range(draw(st.integers(0, 2))):
        elements.insert(draw(st.integers(0, len(elements))), element_of(f"{name}{number}"))
    return elements


def element_of(id: str) -> dict[str, Any]:
    return {"id": id, "mine": "", "theirs": "", "cards": [{"id": f"{id}-{at}"} for at in range(3)]}


@st.composite
def moved_lists(draw: Draw) -> tuple[Any, Any, Any]:
    """Return a list and what each of two sides makes of it."""
    document = [element_of(str(at)) for at in range(draw(st.integers(0, 5)))]
    return document, draw(rebuilt(document, "m")), draw(rebuilt(document, "t"))


@given(moved_lists())
def test_lists_that_both_have_built_anew_become_the_same_both_ways(lists: tuple[Any, Any, Any]) -> None:
    document, ours, newer = lists
    mine, over = diff(document, ours), diff(document, newer)
    found = rebase(mine, over, newer)
    if not found.is_lost:
        assert text(apply(newer, found.ops)) == text(apply(ours, found.over))


@given(moved_lists())
def test_what_is_done_to_an_element_follows_it_and_hits_no_other(lists: tuple[Any, Any, Any]) -> None:
    document, _, newer = lists
    for at, element in enumerate(document):
        edit = [Op("add", f"/{at}/mark", element["id"])]
        found = rebase(edit, diff(document, newer), newer)
        there = [each["id"] for each in newer]
        assert found.is_lost == (element["id"] not in there)
        if not found.is_lost:
            assert found.ops == [Op("add", f"/{there.index(element['id'])}/mark", element["id"])]


@given(moved_lists())
def test_who_moves_an_element_takes_along_what_others_have_changed_in_it(lists: tuple[Any, Any, Any]) -> None:
    document, ours, _ = lists
    over = [Op("add", f"/{at}/mark", element["id"]) for at, element in enumerate(document)]
    found = rebase(diff(document, ours), over, newer := apply(document, over))
    assert not found.is_lost
    known = {element["id"] for element in document}
    for element in apply(newer, found.ops):
        assert element.get("mark") == (element["id"] if element["id"] in known else None)


def test_an_element_that_both_move_is_there_once_where_the_later_has_put_it() -> None:
    document = [element_of(str(at)) for at in range(4)]
    a, b, c, d = document
    found = rebase(diff(document, [b, c, d, a]), diff(document, [b, a, c, d]), [b, a, c, d])
    assert apply([b, a, c, d], found.ops) == [b, c, d, a]
    assert found.conflicts == ["/3"]


def test_who_removes_an_element_that_others_have_moved_removes_it_there() -> None:
    document = [element_of(str(at)) for at in range(3)]
    a, b, c = document
    found = rebase([Op("remove", "/0")], diff(document, [b, c, a]), [b, c, a])
    assert (found.ops, found.conflicts) == ([Op("remove", "/2")], [])
    assert rebase(diff(document, [b, c, a]), [Op("remove", "/0")], [b, c]).is_lost


def test_who_moves_an_element_that_others_have_replaced_does_not_move_what_may_be_another() -> None:
    document = [element_of(str(at)) for at in range(3)]
    a, b, c = document
    found = rebase(diff(document, [b, c, a]), [Op("replace", "/0", {})], [{}, b, c])
    assert (found.is_lost, found.conflicts) == (True, ["/0"])


@given(moved_lists())
def test_what_is_taken_back_of_a_move_leaves_what_was_done_to_the_element(lists: tuple[Any, Any, Any]) -> None:
    document, ours, _ = lists
    ops = diff(document, ours)
    assert text(apply(ours, invert(document, ops))) == text(document)
    back = taking_back(ops, document)
    known = [element["id"] for element in document]
    for at, element in enumerate(ours):
        found = rebase([Op("add", f"/{at}/mark", 1)], back, document)
        assert found.is_lost == (element["id"] not in known)
        if not found.is_lost:
            assert found.ops == [Op("add", f"/{known.index(element['id'])}/mark", 1)]
