"""What a document's containers were before operations on it."""

from typing import Any

import msgspec
from hypothesis import example, given
from tests.cases import each_case
from tests.schemas.test_patch_undo import places
from tests.schemas.test_rebase_laws import Case, cases

from plait_schemas.patch import Op, apply, find, parse
from plait_schemas.shape import Shape


def taken_back(document: Any, ops: list[Op]) -> Shape:
    """Return the shape of the document that `ops` have turned into `document`."""
    shape = Shape(document)
    for op in reversed(ops):
        shape.undo(op.op, parse(op.path))
    return shape


def named(document: Any, ops: list[Op]) -> list[Op]:
    """Return operations with the index of what they append."""
    found = []
    for op in ops:
        parts = parse(op.path)
        array = find(document, parts[:-1])
        is_end = bool(parts) and parts[-1] == "-" and isinstance(array, list)
        found.append(Op(op.op, f"{op.path[:-1]}{len(array)}", op.value) if is_end else op)
        document = apply(document, [op])
    return found


def marked(document: Any, at: str = "") -> Any:
    """Return a document whose objects each have a member that says where they are."""
    match document:
        case dict():
            return {key: marked(item, f"{at}/{key}") for key, item in document.items()} | {"mark": at}
        case list():
            return [marked(item, f"{at}/{index}") for index, item in enumerate(document)]
        case _:
            return document


def marks(document: Any) -> set[str]:
    """Return where the objects were that are still in a marked document."""
    match document:
        case dict():
            own = {document["mark"]} if "mark" in document else set()
            return own.union(*map(marks, document.values()))
        case list():
            return set().union(*map(marks, document))
        case _:
            return set()


@given(cases())
@example(({"a": {"a": 0, "b": 0}}, [], [Op("remove", "/a/a"), Op("replace", "/a", {})]))
def test_what_has_not_been_overwritten_is_known(case: Case) -> None:
    document, _, ops = case
    shape = taken_back(apply(document, ops), named(document, ops))
    kept = marks(apply(marked(document), ops))
    touched = [op.path for op in ops]
    for place in places(document):
        before, seen = find(document, parse(place)), shape.look(parse(place))
        if isinstance(seen, list) and isinstance(before, list):
            assert len(seen) == len(before), place
        if place in kept:
            assert isinstance(seen, dict), place
            assert set(before) <= set(seen), place
        if not any(
            path == "" or place.startswith(path.rpartition("/")[0]) or path.startswith(place) for path in touched
        ):
            assert seen == before, place


@given(cases())
def test_operations_that_fit_lead_where_applying_them_does(case: Case) -> None:
    document, mine, _ = case
    shape = Shape(document)
    for op in mine:
        shape.do(op.op, parse(op.path), op.value)
    # What is inside of texts is not looked at.
    assert shape.look([]) == apply(document, [op for op in mine if op.op != "splice"])


def test_the_document_is_left_alone() -> None:
    document = {"list": [[1], [2]], "object": {"a": 1}}
    copy = msgspec.json.decode(msgspec.json.encode(document))
    shape = taken_back(document, [Op("add", "/list/0", [1]), Op("add", "/list/0/0", 1), Op("replace", "/object/a", 1)])
    assert shape.look(["list"]) == [[2]]
    assert document == copy


class Point(msgspec.Struct, frozen=True, rename={"x_": "x"}):
    x_: tuple[int, ...] = (1, 2)
    y: int = 0


def test_a_state_of_structs_is_looked_into_like_its_json() -> None:
    shape = taken_back((Point(), Point()), [Op("add", "/0/x/1", 2), Op("add", "/0", Point())])
    assert shape.look(["0", "x"]) == [1]
    assert shape.look(["1"]) is msgspec.UNSET


@each_case("path", ["/nowhere/0", "/list/x", "/object/a/b", "/list/7/1"])
@each_case("name", ["add", "remove", "replace"])
def test_what_leads_nowhere_changes_nothing(path: str, name: str) -> None:
    document = {"list": [[]], "object": {"a": 1}}
    shape = Shape(document)
    shape.undo(name, parse(path))
    shape.do(name, parse(path), 1)
    assert shape.look([]) == document
