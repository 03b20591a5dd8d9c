"""One state of a thread, in the forms in which it is needed."""

import gc
import tracemalloc
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import each_case
from tests.schedules import schedules

from plait.limits import UNLIMITED
from plait.state.applying import apply_ops
from plait.state.revision import Revision
from plait.state.types import StateType
from plait_schemas.codec import LARGE, decode_json, encode_json
from plait_schemas.patch import Op, PatchError, find, read_ops


class Game(msgspec.Struct, frozen=True):
    score: int = 0
    players: tuple[str, ...] = ()


@dataclass
class Board:
    cards: list[str] = field(default_factory=list)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
GAME = Game(3, ("Ada",))
GAME_JSON = b'{"score":3,"players":["Ada"]}'
BOARD_JSON = b'{"cards":["a"]}'


def forms(type_: Any, *, json: bytes, state: Any = None) -> list[Revision]:
    """Return the same state, made in each of the forms in which it may come."""
    state_type, document = StateType(type_), decode_json(json)
    if state_type.is_plain:
        return [Revision(state_type, json=json), Revision(state_type, tree=document)]
    return [
        Revision(state_type, json=json),
        Revision(state_type, json=json, tree=state),
        Revision(state_type, tree=state),
    ]


@settings(max_examples=schedules(25))
@given(JSON)
def test_whatever_it_was_made_of_it_is_the_same(value: Any) -> None:
    for revision in forms(Any, json=encode_json(value)):
        assert revision.has_state
        assert revision.document == value
        assert revision.tree == value
        assert revision.json == revision.require_json() == encode_json(value)
        assert revision.state == revision.copy() == value
        assert revision.size == len(encode_json(value))


def test_a_typed_state_has_its_type_for_authors_and_is_a_tree_of_json_beside() -> None:
    for revision in forms(Game, json=GAME_JSON, state=GAME):
        assert revision.json == GAME_JSON
        assert revision.document == {"score": 3, "players": ["Ada"]}
        assert revision.state is revision.copy() is revision.base
        assert revision.state == GAME
    for revision in forms(Board, json=BOARD_JSON, state=Board(["a"])):
        assert revision.json == BOARD_JSON
        assert revision.document == {"cards": ["a"]}
        assert revision.state == revision.base == Board(["a"])


def test_what_was_released_is_made_of_the_json_again() -> None:
    for type_, json, state in ((Any, BOARD_JSON, None), (Board, BOARD_JSON, Board(["a"])), (Game, GAME_JSON, GAME)):
        for revision in forms(type_, json=json, state=state):
            tree, shown = revision.tree, revision.state
            revision.release()
            assert revision.tree == tree
            assert revision.tree is not tree
            assert revision.state == shown
            assert revision.state is not shown
            assert revision.json == json
    empty = Revision(StateType(Any))
    empty.release()
    assert empty.json is empty.tree is empty.state is None


def test_each_form_is_made_once() -> None:
    for type_, json, state in ((Any, BOARD_JSON, None), (Board, BOARD_JSON, Board(["a"])), (Game, GAME_JSON, GAME)):
        for revision in forms(type_, json=json, state=state):
            assert revision.json is revision.json
            assert revision.tree is revision.tree
            assert revision.state is revision.state


def test_before_there_is_a_state_there_is_no_form_of_it() -> None:
    revision = Revision(StateType(Any))
    assert not revision.has_state
    assert (revision.json, revision.document, revision.state, revision.copy()) == (None, None, None, None)
    assert (revision.version, revision.change, revision.size) == (0, None, 0)


@each_case("revision", forms(Any, json=b"null"))
def test_a_state_that_is_null_is_a_state(revision: Revision) -> None:
    assert revision.has_state
    assert revision.require_json() == b"null"
    assert revision.state is None


@each_case(
    "revision",
    [*forms(Any, json=BOARD_JSON), *forms(dict, json=BOARD_JSON), *forms(Board, json=BOARD_JSON, state=Board(["a"]))],
)
def test_what_authors_do_to_a_state_that_can_change_reaches_nothing_else(revision: Revision) -> None:
    def cards(state: Any) -> list[str]:
        return state["cards"] if isinstance(state, dict) else state.cards  # type: ignore[no-any-return]

    cards(revision.copy()).append("in a copy")
    assert cards(revision.state) == ["a"]
    cards(revision.state).append("in place")
    assert cards(revision.state) == ["a", "in place"]
    assert revision.document == {"cards": ["a"]}
    assert revision.json == BOARD_JSON
    assert cards(revision.copy()) == ["a"]
    revision.discard_edits()
    assert cards(revision.state) == ["a"]


def test_the_size_of_a_state_that_has_no_json_yet_is_what_it_was_said_to_be_at_most() -> None:
    revision = Revision(StateType(Any), tree={"cards": ["a"]})
    revision.size = 100
    assert revision.size == 100
    assert revision.json == BOARD_JSON
    assert revision.size == len(BOARD_JSON)


LARGE_ROWS = [{"id": at} for at in range(LARGE // 4)]


def test_neither_a_state_nor_a_large_value_that_replaces_it_is_decoded() -> None:
    before = Revision(StateType(dict[str, Any]), json=b"undecodable")
    (op,) = read_ops(encode_json([Op("replace", "", {"rows": LARGE_ROWS})]))
    after, _ = apply_ops(StateType(dict[str, Any]), before, [op], UNLIMITED, drops_unknown=False, most_moved=None)
    assert after.json == encode_json({"rows": LARGE_ROWS})
    assert after.state == {"rows": LARGE_ROWS}


def test_large_parts_of_a_large_state_are_decoded_when_a_place_in_them_is_found() -> None:
    revision = Revision(StateType(dict[str, Any]), json=encode_json({"rows": LARGE_ROWS, "few": [1], "n": 2}))
    partial = revision.partial
    assert [type(each) for each in partial.values()] == [msgspec.Raw, list, int]
    assert find(partial, ["rows", "1", "id"]) == 1
    assert partial["rows"] == LARGE_ROWS
    assert revision.partial is partial
    assert revision.document == {"rows": LARGE_ROWS, "few": [1], "n": 2}
    assert revision.partial is revision.document


class Table(msgspec.Struct):
    rows: Any
    n: int = 0


def count(revision: Revision, state_type: StateType, n: int) -> Revision:
    """Return the revision of the next change."""
    ops = [Op("replace", "/n", n)]
    return apply_ops(state_type, revision, ops, UNLIMITED, drops_unknown=False, most_moved=None)[0]


@each_case("type_", [Table, dict[str, Any], Any])
def test_a_state_of_1_mib_takes_at_most_20_mb_when_clients_change_it_and_authors_read_it(type_: Any) -> None:
    state_type = StateType(type_)
    gc.collect()
    tracemalloc.start()
    try:
        revision = Revision(state_type, json=encode_json({"rows": [{"a": 1}] * 60_000, "n": 0}))
        for n in range(3):
            revision = count(revision, state_type, n)
            assert len(find(revision.tree, ["rows"])) == 60_000
            assert revision.state
            with pytest.raises(PatchError):  # A refused change needs the tree as well.
                apply_ops(
                    state_type, revision, [Op("remove", "/rows/60000")], UNLIMITED, drops_unknown=False, most_moved=None
                )
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < 20_000_000
    finally:
        tracemalloc.stop()


@each_case("type_", [Table, dict[str, Any], Any])
def test_what_authors_do_to_a_large_state_in_place_reaches_no_change(type_: Any) -> None:
    state_type = StateType(type_)
    rows = [{"a": 1}] * 60_000
    revision = Revision(state_type, json=encode_json({"rows": rows, "n": 0}))
    for n in range(3):
        find(revision.state, ["rows"]).append("in place")
        assert len(find(revision.state, ["rows"])) == 60_001
        revision = count(revision, state_type, n)
        assert revision.document == decode_json(revision.require_json()) == {"rows": rows, "n": n}
        assert find(revision.state, ["rows"]) == find(revision.partial, ["rows"]) == rows


@each_case("type_", [dict[str, Any], Any])
def test_a_change_beside_a_large_part_keeps_it_undecoded_and_leads_to_the_same_state(type_: Any) -> None:
    state_type = StateType(type_)
    before = Revision(state_type, json=encode_json({"n": 1}))
    ops = read_ops(encode_json([Op("add", "/rows", LARGE_ROWS)]))
    large, _ = apply_ops(state_type, before, ops, UNLIMITED, drops_unknown=False, most_moved=None)
    after, _ = apply_ops(state_type, large, [Op("replace", "/n", 2)], UNLIMITED, drops_unknown=False, most_moved=None)
    assert type(after.partial["rows"]) is msgspec.Raw
    assert after.document == {"n": 2, "rows": LARGE_ROWS}
    assert after.json == encode_json({"n": 2, "rows": LARGE_ROWS})
