"""What is done where a change and those of others meet."""

from typing import Any

import pytest

from plait.errors import Conflict
from plait.merge import Policy, Resolve, merge
from plait_schemas.patch import Op, apply
from plait_schemas.rebase import rebase

BASE = {"list": ["a", "b"], "n": 0, "deep": {"x": 1}}


def merged(
    ops: list[Op], others: list[Op], policy: Policy | Resolve, contested: list[str] | None = None
) -> tuple[list[Op], Any]:
    """Return what becomes of `ops` behind `others`, both made on BASE, and the state that it leads to."""
    document = apply(BASE, others)
    result = merge(
        ops,
        rebase(ops, others, document),
        contested=contested or [],
        document=document,
        policy=policy,
        base=BASE,
    )
    return result, apply(document, result)


def both(base: Any, current: Any, proposed: Any, path: str) -> Any:
    return [base, current, proposed, path]


def nothing(base: Any, current: Any, proposed: Any, path: str) -> Any:
    return proposed


@pytest.mark.parametrize("policy", ["last-writer", "reject", both])
def test_where_nobody_else_changed_anything_near_everybody_agrees(policy: Any) -> None:
    ops, state = merged([Op("replace", "/list/1", "B")], [Op("add", "/list/0", "0"), Op("replace", "/n", 1)], policy)
    assert ops == [Op("replace", "/list/2", "B")]
    assert state["list"] == ["0", "a", "B"]


def test_the_last_writer_wins() -> None:
    _, state = merged([Op("replace", "/n", 2)], [Op("replace", "/n", 1)], "last-writer")
    assert state["n"] == 2


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("policy", ["last-writer", "reject", both])
def test_what_leads_into_what_is_gone_is_a_conflict_for_all(policy: Any) -> None:
    with pytest.raises(Conflict, match="gone"):
        merged([Op("replace", "/deep/x", 2)], [Op("remove", "/deep")], policy)


@pytest.mark.parametrize("policy", ["last-writer", "reject", both])
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


def test_what_a_hook_has_nothing_for_and_was_to_go_goes() -> None:
    _, state = merged([Op("remove", "/n")], [Op("replace", "/n", 1)], nothing)
    assert "n" not in state
    _, state = merged([Op("remove", "/n")], [Op("replace", "/n", 1)], both)
    assert state["n"] == [0, 1, None, "/n"]


def test_places_that_were_changed_before_the_base_are_asked_for_too() -> None:
    ops, state = merged([Op("replace", "/n", 2), Op("replace", "/deep/x", 3)], [], both, contested=["/n"])
    assert state["n"] == [0, 0, 2, "/n"]
    assert ops[1] == Op("replace", "/deep/x", 3)
    with pytest.raises(Conflict) as caught:
        merged([Op("replace", "/n", 2)], [], "reject", contested=["/n"])
    assert caught.value.path == "/n"
