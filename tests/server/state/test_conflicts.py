"""What is done where a change and those of others meet."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from plait.errors import Conflict
from plait.state.conflicts import Policy, Resolve, may_meet, merge
from plait_schemas.diff import diff
from plait_schemas.patch import Op, apply
from plait_schemas.rebase import rebase
from plait_schemas.trace import Origin, trace

BASE = {"list": ["a", "b"], "n": 0, "deep": {"x": 1}}


def merged(ops: list[Op], others: list[Op], policy: Policy | Resolve) -> tuple[list[Op], Any]:
    """Return `ops` merged after `others`, both made on BASE, and the state that results."""
    document = apply(BASE, others)
    rebased = rebase(ops, others, document)
    origins = trace(rebased.ops, others, document)
    result = merge(rebased, origins, document=document, policy=policy, base=BASE)
    return result, apply(document, result)


def both(base: Any, current: Any, proposed: Any, path: str) -> Any:
    return [base, current, proposed, path]


def nothing(base: Any, current: Any, proposed: Any, path: str) -> Any:
    return proposed


@each_case("policy", ["last-writer", "reject", both])
def test_where_nobody_else_changed_anything_near_everybody_agrees(policy: Any) -> None:
    ops, state = merged([Op("replace", "/list/1", "B")], [Op("add", "/list/0", "0"), Op("replace", "/n", 1)], policy)
    assert ops == [Op("replace", "/list/2", "B")]
    assert state["list"] == ["0", "a", "B"]


def test_the_last_writer_wins() -> None:
    _, state = merged([Op("replace", "/n", 2)], [Op("replace", "/n", 1)], "last-writer")
    assert state["n"] == 2


@each_case(
    ("op", "other"),
    [
        (Op("replace", "/n", 2), Op("replace", "/n", 1)),
        (Op("replace", "/deep", 2), Op("replace", "/deep/x", 1)),
        (Op("replace", "", {}), Op("replace", "/n", 1)),
        (Op("remove", "/n"), Op("replace", "/n", 1)),
    ],
)
def test_a_class_that_rejects_says_where(op: Op, other: Op) -> None:
    with pytest.raises(Conflict) as caught:
        merged([op], [other], "reject")
    assert caught.value.path == op.path


@each_case("policy", ["last-writer", "reject", both])
def test_what_leads_into_what_is_gone_is_a_conflict_for_all(policy: Any) -> None:
    with pytest.raises(Conflict, match="no longer exists"):
        merged([Op("replace", "/deep/x", 2)], [Op("remove", "/deep")], policy)


@each_case("policy", ["last-writer", "reject", both])
def test_what_others_have_removed_already_need_not_be(policy: Any) -> None:
    ops, state = merged([Op("remove", "/n"), Op("remove", "/list/1")], [Op("remove", "/list/1")], policy)
    assert ops == [Op("remove", "/n")]
    assert state == {"list": ["a"], "deep": {"x": 1}}


def test_a_hook_is_told_what_was_there_what_is_and_what_is_proposed() -> None:
    others = [Op("add", "/list/0", "0"), Op("replace", "/list/2", "B"), Op("replace", "/n", 1)]
    _, state = merged([Op("replace", "/n", 2), Op("replace", "/list/1", "bb")], others, both)
    assert state["n"] == [0, 1, 2, "/n"]
    assert state["list"] == ["0", "a", ["b", "B", "bb", "/list/2"]]


def test_a_hook_is_told_nothing_as_none() -> None:
    _, state = merged([Op("add", "/new", 2)], [Op("add", "/new", 1)], both)
    assert state["new"] == [None, 1, 2, "/new"]
    _, state = merged([Op("replace", "/n", 2)], [Op("remove", "/n")], both)
    assert state["n"] == [0, None, 2, "/n"]


def test_a_hook_is_asked_of_what_comes_to_the_end_of_a_list_that_others_have_replaced() -> None:
    others = [Op("replace", "/list", ["A", "B"])]
    _, state = merged([Op("add", "/list/-", "new")], others, both)
    assert [None, None, "new", "/list/-"] in state["list"]
    ops, state = merged([Op("add", "/list/-", "new")], others, lambda base, current, proposed, path: current)
    assert (ops, state["list"]) == ([], ["A", "B"])


@each_case("op", [Op("add", "/list/1", "new"), Op("replace", "/list/1", "new"), Op("remove", "/list/1")])
@each_case("policy", ["last-writer", "reject", both])
def test_an_index_of_a_list_that_others_have_replaced_is_a_conflict_for_all(policy: Any, op: Op) -> None:
    with pytest.raises(Conflict, match="no longer exists"):
        merged([op], [Op("replace", "/list", ["A", "B"])], policy)


def test_what_a_hook_has_nothing_for_and_was_to_go_goes() -> None:
    _, state = merged([Op("remove", "/n")], [Op("replace", "/n", 1)], nothing)
    assert "n" not in state
    _, state = merged([Op("remove", "/n")], [Op("replace", "/n", 1)], both)
    assert state["n"] == [0, 1, None, "/n"]


def test_a_hook_is_told_of_the_element_that_is_meant_after_what_the_same_push_has_put_in() -> None:
    mine = [Op("add", "/list/0", "mine"), Op("replace", "/list/2", "bb")]
    _, state = merged(mine, [Op("replace", "/list/1", "B")], both)
    assert state["list"] == ["mine", "a", ["b", "B", "bb", "/list/2"]]


def test_a_hook_is_told_of_what_was_not_there_that_there_was_nothing() -> None:
    document = {"list": ["new"]}
    rebased = rebase([Op("replace", "/list/0", 1)], [], document)
    result = merge(rebased, [Origin(None, "/list/0", is_contested=True)], document=document, policy=both, base=BASE)
    assert result == [Op("replace", "/list/0", [None, "new", 1, "/list/0"])]


def test_a_hook_may_change_what_it_is_given_and_nothing_else_changes() -> None:
    current: list[Any] = ["x"]

    def grow(base: Any, current: Any, proposed: Any, path: str) -> Any:
        base.append("?")
        current.extend(proposed)
        return current

    ops, state = merged([Op("replace", "/list", ["c"])], [Op("replace", "/list", current)], grow)
    assert ops == [Op("replace", "/list", ["x", "c"])]
    assert (current, BASE["list"], state["list"]) == (["x"], ["a", "b"], ["x", "c"])


# Whether a hook may be asked


ITEM = st.fixed_dictionaries({"id": st.sampled_from("abcde"), "1": st.integers(0, 2)})
ITEMS = st.lists(ITEM, max_size=5, unique_by=lambda item: item["id"])
STATE = st.fixed_dictionaries({"list": ITEMS, "o": st.dictionaries(st.sampled_from(["a", "0", "-"]), ITEM)})


@given(STATE, STATE, STATE)
def test_whatever_others_have_changed_too_may_meet(state: Any, wanted: Any, theirs: Any) -> None:
    ops, others = diff(state, wanted), diff(state, theirs)
    document = apply(state, others)
    origins = trace(rebase(ops, others, document).ops, others, document)
    if any(origin.is_contested for origin in origins):
        assert may_meet(ops, others)


@each_case(
    ("path", "other", "may"),
    [
        ("/n", "/n", True),
        ("/n", "/m", False),
        ("/n", "", True),
        ("/o", "/o/a/b", True),
        ("/o/a/b", "/o", True),
        ("/list/1/n", "/list/2/n", True),
        ("/list/1/n", "/list/1/m", False),
        ("/list/1/n", "/list/0", True),
    ],
)
def test_places_may_meet_wherever_elements_have_moved(path: str, other: str, may: bool) -> None:
    assert may_meet([Op("replace", path, 1)], [Op("replace", other, 2)]) is may
