"""What holds of all that several people do to one list and take back."""

import asyncio
import itertools
from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st
from tests.server.state.test_undo import Table, table

from plait.errors import Conflict
from plait_schemas.patch import Op

# A user's edits and the elements of the list that they change; no edits to take back the user's last change.
Move = tuple[str, list[tuple[str, int]]]

EDITS = st.tuples(st.sampled_from(["add", "remove", "set"]), st.integers(0, 5))
MOVES = st.tuples(st.sampled_from(["ada", "bob", "eve"]), st.just([]) | st.lists(EDITS, min_size=1, max_size=3))


class Edit(NamedTuple):
    """What was done to an element, and the value that it had before."""

    name: str
    id: int
    before: int


class Change(NamedTuple):
    """What one source did at once."""

    source: str
    version: int
    edits: list[Edit]


class Model:
    """Knows each element by its id, wherever in the list it is."""

    def __init__(self) -> None:
        self.ids = itertools.count(1)
        self.values: dict[int, int] = {}
        self.there: set[int] = set()
        # All that has not been taken back.
        self._changes: list[Change] = []

    @property
    def shown(self) -> dict[int, int]:
        return {id: self.values[id] for id in self.there}

    def change(self, change: Change, values: dict[int, int]) -> None:
        """Record a change, and the elements as they are after it."""
        self._changes.append(change)
        self.values |= values
        self.there = set(values)

    def last(self, source: str) -> Change | None:
        """Return what is left of the last change of a source that is not wholly undone; None when there is none.

        Raises Conflict when others have changed the same since.
        """
        for index in range(len(self._changes) - 1, -1, -1):
            change = self._changes[index]
            if change.source == source:
                later = [(each.source, edit) for each in self._changes[index + 1 :] for edit in each.edits]
                if edits := [edit for edit in change.edits if _is_left(edit, source, later)]:
                    return change._replace(edits=edits)
        return None

    def take_back(self, change: Change) -> None:
        self._changes = [each for each in self._changes if each.version != change.version]
        for edit in change.edits:
            if edit.name == "add":
                self.there.remove(edit.id)
            else:
                self.there.add(edit.id)
                self.values[edit.id] = edit.before


def _is_left(edit: Edit, source: str, later: list[tuple[str, Edit]]) -> bool:
    """Tell whether an edit can be undone after later ones; that of an element that was removed cannot."""
    same = [(other, each.name) for other, each in later if each.id == edit.id]
    if any(other != source and name == "set" for other, name in same):
        raise Conflict("set by somebody else")
    is_gone = any(name == "remove" for _, name in same)
    if is_gone and edit.name == "set":
        raise Conflict("gone")
    return not is_gone


def shown(table: Table) -> list[tuple[int, int]]:
    return [(each["id"], each["value"]) for each in table.state["list"]]


def change(table: Table, model: Model, who: str, edits: list[tuple[str, int]]) -> None:
    """Make a user's edits, at most one for each element."""
    elements, ops, done = shown(table), list[Op](), list[Edit]()
    for name, number in edits:
        index = number % (len(elements) + (name == "add")) if elements else 0
        if name == "add":
            id = next(model.ids)
            elements.insert(index, (id, 0))
            ops.append(Op("add", f"/list/{index}", {"id": id, "value": 0}))
            done.append(Edit("add", id, 0))
        elif elements and elements[index][0] not in [edit.id for edit in done]:
            id, before = elements.pop(index)
            ops.append(Op("remove", f"/list/{index}"))
            done.append(Edit(name, id, before))
            if name == "set":
                # A value that no element has had.
                value = 10 * table.pipeline.history.current.version + len(done)
                elements.insert(index, (id, value))
                ops[-1] = Op("replace", f"/list/{index}/value", value)
    if ops:
        table.change(who, *ops)
        model.change(Change(who, table.pipeline.history.current.version, done), dict(elements))


async def undo(table: Table, model: Model, who: str) -> None:
    """Take back a user's last change; this may be refused, but no other change may be taken back."""
    before = table.state
    try:
        version = await table.undo(who)
    except Conflict:
        assert table.state is before
        return
    expected = model.last(who)
    assert (version is None) == (expected is None)
    if expected is not None:
        assert (await table.sources())[-1] == f"undo {expected.version} {who}"
        model.take_back(expected)


async def play(moves: list[Move]) -> None:
    # The text keeps operations shorter than the state, which is stored in the place of longer ones.
    async with table({"list": [], "text": "x" * 5_000}) as t:
        model = Model()
        for who, edits in moves:
            if edits:
                change(t, model, who, edits)
            else:
                await undo(t, model, who)
            assert sorted(shown(t)) == sorted(model.shown.items())


# An element that was put in with another is gone when both are taken out, and comes back afterwards.
PARTLY = [
    ("eve", [("add", 0)]),
    ("eve", [("add", 0), ("add", 0)]),
    ("ada", [("remove", 1)]),
    ("eve", []),
    ("ada", []),
    ("eve", []),
]
# Two elements come back at one place, in another order than they were taken out.
AT_ONE_PLACE = [
    ("ada", [("add", 0)]),
    ("ada", [("remove", 0)]),
    ("eve", [("add", 0)]),
    ("bob", [("set", 0)]),
    ("bob", [("remove", 0)]),
    ("ada", []),
    ("bob", []),
    ("bob", []),
]
# The element to take out was taken out and put back before, each time by a change that others depend on.
OUT_AND_BACK = [
    ("ada", [("add", 0)]),
    ("bob", [("add", 1), ("remove", 0)]),
    ("ada", [("remove", 0)]),
    ("ada", [("add", 0)]),
    ("bob", []),
    ("ada", []),
    ("ada", []),
    ("ada", []),
]


@given(st.lists(MOVES, max_size=25))
@example(PARTLY)
@example(AT_ONE_PLACE)
@example(OUT_AND_BACK)
def test_what_is_taken_back_is_what_that_source_did_and_never_another_element(moves: list[Move]) -> None:
    asyncio.run(play(moves))
