"""Where places were before others were carried out."""

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from plait_schemas.patch import Op, apply, find, parse, splice
from plait_schemas.trace import Origin, trace

Draw = Callable[[st.SearchStrategy[Any]], Any]


@st.composite
def changes(draw: Draw) -> tuple[Any, list[Op], set[str], Any]:
    """Return lists of lists of items, operations on them, the ids that they touch, and what they lead to."""
    document: Any = [[{"id": f"{row}{n}", "v": 0} for n in range(draw(st.integers(0, 3)))] for row in range(3)]
    base, ops, touched = document, [], set()
    for number in range(draw(st.integers(0, 6))):
        row = draw(st.integers(0, len(document) - 1)) if document else 0
        items = document[row] if document else []
        at = draw(st.integers(0, max(len(items) - 1, 0)))
        match draw(st.sampled_from(["put", "append", "take", "touch", "row", "unrow"])):
            case "put" if document:
                op = Op("add", f"/{row}/{at if items else 0}", {"id": f"new{number}", "v": 0})
            case "append" if document:
                op = Op("add", f"/{row}/-", {"id": f"new{number}", "v": 0})
            case "take" if items:
                op = Op("remove", f"/{row}/{at}")
            case "touch" if items:
                op = Op("replace", f"/{row}/{at}/v", number)
                touched.add(items[at]["id"])
            case "row":
                op = Op("add", f"/{row}", [])
            case "unrow" if document:
                op = Op("remove", f"/{row}")
            case _:
                continue
        ops.append(op)
        document = apply(document, [op])
    return base, ops, touched, document


def places(document: Any) -> dict[str, str]:
    """Return the place of each item, by its id."""
    return {item["id"]: f"/{row}/{at}" for row, items in enumerate(document) for at, item in enumerate(items)}


@given(changes())
def test_every_item_is_found_where_it_was(case: tuple[Any, list[Op], set[str], Any]) -> None:
    base, over, touched, document = case
    before = places(base)
    for id, place in places(document).items():
        (origin,) = trace([Op("replace", f"{place}/v", 9)], over, document)
        assert origin.before == (f"{before[id]}/v" if id in before else None)
        assert origin.is_contested == (id in touched)
        (own,) = trace([Op("replace", f"{place}/v", 9)], over, document, own=range(len(over)))
        assert own == Origin(origin.before, f"{place}/v", is_contested=False)


@given(changes(), st.data())
def test_operations_after_each_other_come_from_where_they_would_alone(
    case: tuple[Any, list[Op], set[str], Any], data: st.DataObject
) -> None:
    base, over, touched, document = case
    mine = []
    newer = document
    for number in range(3):
        found = places(newer)
        if not found:
            break
        id = data.draw(st.sampled_from(sorted(found)))
        row = found[id].split("/")[1]
        mine += [Op("replace", f"{found[id]}/v", number), Op("add", f"/{row}/0", {"id": f"mine{number}", "v": 0})]
        newer = apply(newer, mine[-2:])
    origins = trace(mine, over, document)
    before, state = places(base), document
    for op, origin in zip(mine, origins, strict=True):
        if op.op == "replace":
            id = find(state, parse(op.path)[:-1])["id"]
            assert origin.before == (f"{before[id]}/v" if id in before else None)
            assert origin.is_contested == (id in touched)
            now = places(document)
            assert origin.now == (f"{now[id]}/v" if id in now else None)
        state = apply(state, [op])


@each_case(
    ("op", "over", "contested"),
    [
        (Op("replace", "/n", 1), Op("replace", "/n", 2), True),
        (Op("replace", "", {}), Op("replace", "/n", 2), True),
        (Op("add", "/n", 1), Op("remove", "/n"), True),
        (Op("replace", "/n", 1), Op("replace", "/m", 2), False),
        (Op("replace", "/list", []), Op("add", "/list/0", 2), True),
        (Op("add", "/list/1", 1), Op("add", "/list/1", 2), False),
        (Op("add", "/list/1", 1), Op("replace", "/list/1", 2), False),
        (Op("add", "/list/1", 1), Op("replace", "/list", [0, 0]), True),
        (Op("add", "/list/-", 1), Op("add", "/list/-", 2), False),
        (Op("replace", "/list/1", 1), Op("remove", "/list/0"), False),
        (Op("replace", "/list/0", 1), Op("replace", "/list", [0, 0, 0]), True),
        (Op("replace", "/keys/1", 1), Op("add", "/keys/0", 2), False),
        (splice("/note", 1, 0, "x"), splice("/note", 0, 2), False),
        (splice("/note", 1, 0, "x"), splice("/title", 0, 2), False),
        (splice("/note", 1, 0, "x"), Op("replace", "/note", "abc"), True),
        (splice("/note", 1, 0, "x"), Op("add", "/note", "abc"), True),
        (splice("/note", 1, 0, "x"), Op("replace", "", {"note": "abc"}), True),
        (Op("replace", "/note", "x"), splice("/note", 0, 2), True),
        (Op("remove", "/note"), splice("/note", 0, 2), True),
        (Op("replace", "", {}), splice("/note", 0, 2), True),
        (Op("replace", "/n", 1), splice("/note", 0, 2), False),
        (splice("/list/1", 1, 0, "x"), Op("add", "/list/0", 0), False),
    ],
)
def test_a_place_is_contested_by_what_is_at_it_in_it_and_around_it(op: Op, over: Op, contested: bool) -> None:
    before = {"n": 0, "m": 0, "list": [0, 0], "keys": {"0": 0, "1": 0}, "note": "abc", "title": "abc"}
    document = apply(before, [over])
    assert trace([op], [over], document)[0].is_contested is contested


def test_what_came_before_ones_own_change_of_a_place_does_not_contest_it() -> None:
    over = [Op("replace", "/n", 1), Op("replace", "/n", 2), Op("replace", "/m", 3)]
    mine = [Op("replace", "/n", 4)]
    assert [trace(mine, over, {"n": 2, "m": 3}, own=own)[0].is_contested for own in ((), (0,), (1,))] == [
        True,
        True,
        False,
    ]


def test_ones_own_change_inside_a_text_leaves_contested_what_others_did_in_it_before() -> None:
    over = [splice("/note", 0, 0, "theirs"), splice("/note", 0, 0, "mine")]
    origin = trace([Op("replace", "/note", "x")], over, {"note": "minetheirs"}, own=(1,))
    assert origin == [Origin("/note", "/note", is_contested=True)]
    assert not trace([Op("replace", "/note", "x")], over, {"note": "minetheirs"}, own=(0, 1))[0].is_contested


def test_a_text_in_an_element_is_found_where_the_element_was() -> None:
    over = [Op("remove", "/0"), Op("add", "/1", {"t": "a"}, moved=True), splice("/1/t", 0, 0, "x")]
    (origin,) = trace([splice("/1/t", 1, 0, "y")], over, [{"t": "b"}, {"t": "xa"}])
    assert origin == Origin("/0/t", "/1/t", is_contested=False)
