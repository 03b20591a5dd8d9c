"""An insertion of a client continues its last one, wherever others have moved that."""

from collections.abc import Sequence

from tests.cases import each_case

from plait_client.insertion import LastInsertion
from plait_schemas.patch import Op, apply, splice

TEXT = "one two three"
START = {"note": TEXT, "n": 1, "cards": [{"body": TEXT}], "by": {"1": TEXT}}


def goes_on(path: str, at: int, *, own: Sequence[Op], others: Sequence[Op] = (), remove: int = 0) -> bool:
    """Tell whether an insertion at a place goes on after own operations and then those of others."""
    insertion = LastInsertion()
    for op in own:
        insertion.add(op)
    shown = apply(START, own)
    insertion.follow(others, shown, apply(shown, others))
    return insertion.add(splice(path, at, remove, "x")).own is True


@each_case(("at", "expected"), [(3, False), (4, False), (5, True), (7, True), (8, False)])
def test_after_the_first_character_of_the_last_insertion_up_to_its_end(at: int, expected: bool) -> None:
    assert goes_on("/note", at, own=[splice("/note", 4, 0, "big")]) is expected
    assert goes_on("/note", at, own=[splice("/note", 4, 2, "big")], remove=2) is expected
    assert not goes_on("/cards/0/body", at, own=[splice("/note", 4, 0, "big")])


def test_what_goes_on_belongs_to_it_and_what_does_not_takes_its_place() -> None:
    typed = [splice("/note", 4, 0, "ab"), splice("/note", 6, 3, "cd"), splice("/note", 5, 2, "e")]
    assert [goes_on("/note", at, own=typed) for at in (4, 5, 7, 8)] == [False, True, True, False]
    assert not goes_on("/note", 6, own=[*typed, splice("/note", 0, 0, "f")])
    assert goes_on("/note", 1, own=[*typed, splice("/note", 0, 0, "f")])


def test_what_is_taken_back_of_it_belongs_to_it_no_more() -> None:
    typed = [splice("/note", 4, 0, "abc")]
    assert goes_on("/note", 5, own=[*typed, splice("/note", 5, 2)])
    assert not goes_on("/note", 6, own=[*typed, splice("/note", 5, 2)])
    assert goes_on("/note", 2, own=[*typed, splice("/note", 1, 4)])
    assert not goes_on("/note", 4, own=[*typed, splice("/note", 4, 3)])


OTHERS: dict[str, tuple[Op, Sequence[int]]] = {
    "before it": (splice("/note", 0, 0, "xy"), [7, 8, 9]),
    "right before it": (splice("/note", 4, 0, "xy"), [7, 8, 9]),
    "in the middle of it, which leaves the part after that": (splice("/note", 6, 0, "xy"), [9]),
    "right after it": (splice("/note", 7, 0, "xy"), [5, 6, 7]),
    "a removal of what is before it and begins it": (splice("/note", 2, 3), [3, 4]),
    "a replacement of its end, which leaves no part after that": (splice("/note", 6, 3, "z"), []),
    "a removal of what ends it and is after it": (splice("/note", 6, 3), [5, 6]),
    "a removal in the middle of it": (splice("/note", 5, 1), [5, 6]),
    "a removal of all of it": (splice("/note", 3, 5), []),
    "elsewhere": (Op("replace", "/n", 2), [5, 6, 7]),
    "around it": (Op("replace", "/note", TEXT), []),
}


@each_case("name", OTHERS)
def test_it_moves_with_what_others_do(name: str) -> None:
    op, expected = OTHERS[name]
    typed = [splice("/note", 4, 0, "big")]
    assert [at for at in range(12) if goes_on("/note", at, own=typed, others=[op])] == expected


def test_it_ends_where_the_element_that_it_is_in_may_have_moved() -> None:
    typed = [splice("/cards/0/body", 4, 0, "big")]
    for op in (Op("add", "/cards/-", {}), Op("remove", "/cards/0"), Op("replace", "/cards", [{"body": TEXT}])):
        others = [op, Op("add", "/cards/0", {"body": TEXT})] if op.op == "remove" else [op]
        assert not goes_on("/cards/0/body", 5, own=typed, others=others)
    assert goes_on("/cards/0/body", 5, own=typed, others=[Op("add", "/cards/0/done", value=True)])
    assert goes_on("/by/1", 5, own=[splice("/by/1", 4, 0, "big")], others=[Op("add", "/by/a", "")])


def test_where_it_is_not_known_what_others_did_it_stays_only_if_its_text_is_the_same() -> None:
    insertion = LastInsertion()
    insertion.add(splice("/note", 4, 0, "big"))
    insertion.follow((), {"note": "one big"}, {"note": "one big", "n": 2})
    assert insertion.add(splice("/note", 7, 0, "x")).own is True
    insertion.follow((), {"note": "one bigx"}, {"note": "one bigger"})
    assert insertion.add(splice("/note", 7, 0, "x")).own is not True
