"""Operations with values that stay undecoded do what they do with decoded ones."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case
from tests.schemas.test_patch_undo import places
from tests.schemas.test_rebase_laws import DOCUMENTS, LEAVES, Case, Draw, draw_ops

from plait_schemas import codec
from plait_schemas.codec import LARGE, encode_json
from plait_schemas.inverse import taking_back
from plait_schemas.patch import Op, apply, decode_ops, find, parse, read_ops
from plait_schemas.rebase import rebase
from plait_schemas.trace import trace

ROWS = st.builds(lambda id, value: {"id": id, "a": value}, st.integers(0, 1), DOCUMENTS)
VALUES = ROWS | st.lists(ROWS, max_size=3) | st.dictionaries(st.sampled_from("ab"), ROWS | DOCUMENTS, max_size=2)


@contextmanager
def large_from(size: int) -> Iterator[None]:
    """Leave objects and arrays from this size on undecoded."""
    codec.LARGE = size  # type: ignore[misc]
    try:
        yield
    finally:
        codec.LARGE = LARGE  # type: ignore[misc]


def draw_large(draw: Draw, document: Any) -> list[Op]:
    """Return operations that fit a document, most of them with values that are containers."""
    ops: list[Op] = []
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(places(document)))
        there, value = find(document, parse(place)), draw(VALUES)
        match there:
            case list() if there and draw(st.booleans()):
                at, to = draw(st.integers(0, len(there) - 1)), draw(st.integers(0, len(there) - 1))
                made = [Op("remove", f"{place}/{at}"), Op("add", f"{place}/{to}", there[at], moved=True)]
            case list():
                made = [Op("add", f"{place}/{draw(st.integers(0, len(there)))}", value)]
            case dict() if draw(st.booleans()):
                made = [Op("add", f"{place}/{draw(st.sampled_from('ab'))}", value)]
            case _ if draw(st.booleans()):
                made = draw_ops(draw, document)
            case _:
                made = [Op("replace", place, value)]
        ops += made
        document = apply(document, made)
    return ops


@st.composite
def cases(draw: Draw) -> Case:
    """Return a document and the operations of two sides on it."""
    document = draw(VALUES | LEAVES)
    return document, draw_large(draw, document), draw_large(draw, document)


def read(ops: list[Op]) -> list[Op]:
    """Return operations with all containers undecoded."""
    with large_from(2):
        return read_ops(encode_json(ops))


def both_ways(ask: Callable[[Callable[[list[Op]], list[Op]]], Any]) -> tuple[bytes, bytes]:
    """Return the JSON of an answer for operations that are decoded, and that for undecoded ones."""
    return encode_json(ask(lambda ops: decode_ops(encode_json(ops)))), encode_json(ask(read))


@given(cases())
def test_operations_encode_to_the_same(case: Case) -> None:
    decoded, undecoded = both_ways(lambda read: read(case[1]))
    assert decoded == undecoded


@given(cases())
def test_they_lead_to_the_same_document(case: Case) -> None:
    document, mine, _ = case
    decoded, undecoded = both_ways(lambda read: apply(document, read(mine)))
    assert decoded == undecoded


@given(cases(), st.data())
def test_they_are_rebased_to_the_same(case: Case, data: st.DataObject) -> None:
    document, mine, over = case
    more = draw_large(data.draw, apply(document, mine))

    def ask(read: Callable[[list[Op]], list[Op]]) -> Any:
        newer = apply(document, read(over))
        found = rebase(read(mine), read(over), newer)
        if found.is_lost:
            return found
        # The next push of the same client was made after this one.
        newer = apply(newer, found.ops)
        return found, newer, rebase(read(more), found.over, newer)

    decoded, undecoded = both_ways(ask)
    assert decoded == undecoded


@each_case(
    ("document", "mine", "theirs"),
    [
        ({"0": {"a": 1}}, Op("replace", "/0/a", 3), Op("replace", "/0", {"a": 2})),
        ({"a": [1, 2]}, Op("replace", "/a/0", 3), Op("replace", "/a", [4, 5])),
        ({"a": {}}, Op("add", "/a/b", {"c": 1}), Op("replace", "/a", {"d": 2})),
        ([{"a": 1}], Op("replace", "/0", {"id": 1}), Op("replace", "/0", {"id": 1, "a": 2})),
    ],
)
def test_a_change_is_rebased_over_that_of_a_container_to_the_same(document: Any, mine: Op, theirs: Op) -> None:
    decoded, undecoded = both_ways(lambda read: rebase(read([mine]), read([theirs]), apply(document, read([theirs]))))
    assert decoded == undecoded


@given(cases())
def test_they_are_traced_to_the_same(case: Case) -> None:
    document, mine, over = case
    newer = apply(document, over)
    mine = rebase(mine, over, newer).ops
    decoded, undecoded = both_ways(lambda read: trace(read(mine), read(over), apply(document, read(over))))
    assert decoded == undecoded


@given(cases())
def test_they_are_taken_back_by_the_same(case: Case) -> None:
    document, mine, _ = case
    decoded, undecoded = both_ways(lambda read: taking_back(read(mine), document))
    assert decoded == undecoded
