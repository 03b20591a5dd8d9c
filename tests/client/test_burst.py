"""Text that was typed without a pause is rebased at once, with the same result as letter by letter."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cases import each_case

from plait_client.burst import Burst
from plait_schemas.patch import Op, apply, region_of, splice, splices
from plait_schemas.rebase import rebase

TEXT = "abcdefgh"
START: dict[str, Any] = {"note": TEXT, "other": TEXT, "list": [TEXT]}


def typed(state: Any, path: str, keys: Sequence[tuple[float, int, str]], owns: Iterable[bool] = ()) -> list[Op]:
    """Return splices, each made on the result of the ones before; places are fractions of the length.

    Those that insert have `own` where `owns` says so.
    """
    ops: list[Op] = []
    flags = iter(owns)
    length = len(TEXT)
    for share, remove, insert in keys:
        at = round(share * length)
        op = splice(path, at, min(remove, length - at), insert)
        if op.remove or op.insert:
            ops.append(msgspec.structs.replace(op, own=True) if op.insert and next(flags, False) else op)
            length += len(insert) - min(remove, length - at)
    return ops


KEYS = st.tuples(st.floats(0, 1), st.integers(0, 3), st.text("xy🔑", max_size=2))
"""The place of typing, the number of removed characters, and the inserted text."""

CARETS = st.lists(
    st.tuples(st.floats(0.4, 0.6), st.integers(0, 1), st.text("xy🔑", max_size=2)), min_size=1, max_size=9
)
OTHERS = st.lists(
    st.builds(lambda key: ("/note", key), KEYS) | st.builds(lambda key: ("/other", key), KEYS) | st.none(), max_size=5
)


@example([(0.6, 0, "x"), (0.55, 1, "x"), (0.55, 1, "")], [("/note", (0.4, 3, "🔑"))], [])
@example([(0.5, 0, "x")], [("/note", (0.5, 0, "y"))], [True])
@example([(0.5, 0, "x")], [("/note", (0.4, 1, "")), ("/note", (0.4, 0, "y"))], [True])
@given(CARETS, OTHERS, st.lists(st.booleans(), max_size=9))
def test_it_is_rebased_as_each_of_its_splices_would_be(
    keys: list[tuple[float, int, str]],
    others: list[tuple[str, tuple[float, int, str]] | None],
    owns: list[bool],
) -> None:
    mine = typed(START, "/note", keys, owns)
    over: list[Op] = []
    document: Any = START
    for other in others:
        if other is None:
            made = [Op("add", "/key", 1)] if "key" not in document else [Op("replace", "/list", [])]
        else:
            path, (share, remove, insert) = other
            text = document[path[1:]]
            at = round(share * len(text))
            made = [op for op in [splice(path, at, min(remove, len(text) - at), insert)] if op.remove or op.insert]
        over += made
        document = apply(document, made)
    bursts: list[tuple[Burst, list[Op]]] = []
    for op in mine:
        if bursts and bursts[-1][0].take(op):
            bursts[-1][1].append(op)
        else:
            bursts.append((Burst(op), [op]))
    for burst, ops in bursts:
        found = burst.rebase(over, document)
        expected: list[list[Op]] = []
        for op in ops:
            moved = rebase([op], over, document)
            expected.append(moved.ops)
            over, document = moved.over, apply(document, moved.ops)
        if found is not None:
            assert [list(push) for push in found.ops] == expected
            assert (found.over, found.document) == (over, document)


def test_what_is_typed_and_deleted_at_a_caret_is_one_burst() -> None:
    burst = Burst(splice("/note", 4, 0, "x"))
    assert burst.take(splice("/note", 5, 0, "y"))
    assert burst.take(splice("/note", 5, 1))
    assert burst.take(splice("/note", 3, 2, "z"))
    assert burst.take(splice("/note", 4, 1))
    assert not burst.take(splice("/other", 4, 0, "x"))
    assert not burst.take(splice("/note", 6, 0, "x"))
    assert not burst.take(splice("/note", 1, 1))
    found = burst.rebase([splice("/note", 0, 0, "__")], {"note": "__" + TEXT})
    assert found is not None
    assert found.document == {"note": "__abczfgh"}
    assert [region_of(op)[0] for ops in found.ops for op in ops] == [6, 7, 7, 5, 6]


@each_case("places", [200, 298, 299, 300, 301, 320])
@each_case("is_elsewhere", [False, True])
def test_it_is_lost_where_its_splices_would_be(places: int, is_elsewhere: bool) -> None:
    start = {"note": "ab" * places + "..."}
    mine = [splice("/note", 0, 2 * places, "m"), splice("/note", 1, 0, "e")]
    over = splices("/note", [(2 * at + 1, 0, "x") for at in range(places)])
    over += [splice("/note", 3 * places + 3, 0, "y")] * is_elsewhere
    document = apply(start, over)
    expected = rebase(mine[:1], over, document)
    assert expected.is_lost == (places + is_elsewhere >= 300)
    burst = Burst(mine[0])
    assert burst.take(mine[1])
    found = burst.rebase(over, document)
    assert found is None or (not expected.is_lost and found.ops[0] == expected.ops)
    assert found is not None or places > 200


@each_case(
    "other",
    [
        Op("replace", "/note", "abcdefghi"),
        Op("remove", "/note"),
        Op("add", "/note", "abc"),
        Op("replace", "", {"note": TEXT}),
    ],
)
def test_where_there_may_be_another_text_it_is_not_done_all_at_once(other: Op) -> None:
    burst = Burst(splice("/note", 4, 1, "x"))
    document = START if other.op == "remove" else apply(START, [other])
    assert burst.rebase([other], document) is None


def test_a_text_in_a_list_that_others_change_is_not_done_all_at_once() -> None:
    burst = Burst(splice("/list/0", 4, 1, "x"))
    other = Op("add", "/list/0", TEXT)
    assert burst.rebase([other], apply(START, [other])) is None
    assert burst.rebase([Op("add", "/key", 1)], START) is not None


def test_what_does_not_fit_is_not_done_all_at_once() -> None:
    assert Burst(splice("/note", len(TEXT), 1, "x")).rebase([], START) is None
    assert Burst(splice("/nowhere", 0, 1)).rebase([], START) is None
