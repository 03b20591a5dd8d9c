"""A state that is changed in place, and what is recorded of that."""

import copy
import dataclasses
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.cases import each_case
from tests.schedules import play_seeds

from plait_schemas.codec import decode_json, encode_json
from plait_schemas.draft import Draft, DraftList, DraftObject, draft, recorded
from plait_schemas.encoding import EncodeError
from plait_schemas.patch import Op, apply


def changed(document: Any, change: Callable[[Any], object]) -> tuple[Any, list[Op]]:
    """Return what a change makes of a document, and what was recorded of it; the document itself must stay."""
    before = encode_json(document)
    made = draft(document)
    change(made)
    assert encode_json(document) == before
    return apply(document, recorded(made)), recorded(made)


# Objects


def test_a_member_that_is_set_added_or_taken_out_is_recorded() -> None:
    def change(made: Any) -> None:
        made["n"] = 2
        made["new"] = [1]
        del made["old"]
        made["inner"]["a/b"] = None

    assert changed({"n": 1, "old": 1, "inner": {}}, change) == (
        {"n": 2, "new": [1], "inner": {"a/b": None}},
        [Op("replace", "/n", 2), Op("add", "/new", [1]), Op("remove", "/old"), Op("add", "/inner/a~1b", None)],
    )


def test_members_are_attributes_too() -> None:
    def change(made: Any) -> None:
        assert made.player.name == "Ada"
        made.player.score += 1
        made.fresh = {"a": 1}
        made["fresh"].a = 2
        del made.old

    state, ops = changed({"player": {"name": "Ada", "score": 1}, "old": 0}, change)
    assert state == {"player": {"name": "Ada", "score": 2}, "fresh": {"a": 2}}
    assert [op.path for op in ops] == ["/player/score", "/fresh", "/fresh/a", "/old"]


def test_a_member_that_has_the_name_of_a_method_is_an_item() -> None:
    def change(made: Any) -> None:
        assert callable(made.items)
        assert made["items"] == [1]
        made["items"].append(2)
        made.keys = 5
        made._private = 1

    assert changed({"items": [1]}, change)[0] == {"items": [1, 2], "keys": 5, "_private": 1}


@each_case("name", ["_container", "_ops", "_parent", "__dict__", "missing"])
def test_a_member_that_is_not_there_is_an_error_of_attributes(name: str) -> None:
    made = draft({"a": 1})
    if name == "missing":
        with pytest.raises(AttributeError, match="missing"):
            getattr(made, name)
    with pytest.raises(AttributeError, match=name):
        delattr(made, name)
    assert recorded(made) == []


def test_the_methods_of_a_dict_are_there() -> None:
    def change(made: Any) -> None:
        assert made.pop("a") == 1
        assert made.pop("a", None) is None
        assert made.setdefault("b", 5) == 2
        made.setdefault("c", []).append(3)
        made.update(d=4, b=6)
        assert sorted(made) == sorted(made.keys()) == ["b", "c", "d"]
        assert made.get("nothing") is None
        assert "b" in made
        assert len(made) == 3

    assert changed({"a": 1, "b": 2}, change)[0] == {"b": 6, "c": [3], "d": 4}
    assert changed({"a": 1, "b": {"c": 1}}, lambda made: made.clear())[0] == {}


def test_a_member_that_is_not_there_is_an_error_of_keys_and_nothing_is_recorded() -> None:
    made: Any = draft({"a": 1})
    with pytest.raises(KeyError):
        made["b"]
    with pytest.raises(KeyError):
        del made["b"]
    with pytest.raises(KeyError):
        made.pop("b")
    assert recorded(made) == []


@each_case("value", [1, "x", None, True, 1.5])
def test_a_scalar_that_is_set_to_what_it_is_is_no_change(value: Any) -> None:
    made: Any = draft({"a": value})
    made["a"] = value
    assert recorded(made) == []


def test_a_value_that_only_python_holds_equal_is_a_change() -> None:
    assert changed({"a": 1}, lambda made: made.__setitem__("a", True))[1] == [Op("replace", "/a", True)]
    assert changed({"a": 1}, lambda made: made.__setitem__("a", 1.0))[1] == [Op("replace", "/a", 1.0)]


# Arrays


def test_the_methods_of_a_list_are_there() -> None:
    def change(made: Any) -> None:
        made.append(4)
        made.insert(0, 0)
        made.insert(-1, 3)
        made.extend([5, 6])
        made += [7]
        made.remove(5)
        assert made.pop() == 7
        assert made.pop(0) == 0
        assert (made.index(4), made.count(1), 6 in made, len(made), made[-1]) == (3, 1, True, 5, 6)
        made.reverse()

    assert changed([1, 2], change)[0] == [6, 4, 3, 2, 1]
    assert changed([1, [2]], lambda made: made.clear())[0] == []


@each_case("index", [0, 1, 2, 3, 99, -1, -2, -3, -4, -99])
def test_an_insertion_goes_where_that_into_a_list_goes(index: int) -> None:
    expected = [1, 2, 3]
    expected.insert(index, 0)
    assert changed([1, 2, 3], lambda made: made.insert(index, 0))[0] == expected


@pytest.mark.parametrize("index", [3, -4])
def test_an_element_that_is_not_there_is_an_error_of_indices(index: int) -> None:
    made: Any = draft([1, 2, 3])
    with pytest.raises(IndexError):
        made[index]
    with pytest.raises(IndexError):
        made[index] = 1
    with pytest.raises(IndexError):
        del made[index]
    assert recorded(made) == []


@each_case("slice_", [slice(1, 3), slice(None), slice(None, None, 2), slice(3, 1), slice(-2, None)])
def test_slices_are_read_set_and_taken_out(slice_: slice) -> None:
    values = [[n] for n in range(5)]
    made: Any = draft(values)
    assert made[slice_] == values[slice_]
    expected = copy.deepcopy(values)
    del expected[slice_]
    assert changed(values, lambda made: made.__delitem__(slice_))[0] == expected
    expected = copy.deepcopy(values)
    fresh: list[Any] = ["x"] * len(values[slice_])
    expected[slice_] = fresh
    assert changed(values, lambda made: made.__setitem__(slice_, fresh))[0] == expected


def test_what_sorting_leaves_in_its_place_is_not_recorded() -> None:
    state, ops = changed({"list": [1, 3, 2, 4]}, lambda made: made["list"].sort())
    assert state == {"list": [1, 2, 3, 4]}
    assert [op.path for op in ops] == ["/list/1", "/list/2"]
    state, _ = changed([{"n": 1}, {"n": 2}], lambda made: made.sort(key=lambda each: -each["n"]))
    assert state == [{"n": 2}, {"n": 1}]
    assert changed(["a", "B"], lambda made: made.sort(key=str.lower, reverse=True))[0] == ["B", "a"]


class Card(msgspec.Struct, frozen=True):
    text: str
    at: int


def test_typed_elements_without_ids_have_moved_when_they_are_sorted_or_built_anew() -> None:
    cards = tuple(Card(text, at) for text, at in (("x", 3), ("y", 1), ("z", 2)))
    by_place: Any = draft({"cards": cards})
    by_place["cards"].sort(key=lambda card: card["at"])
    rotated: Any = draft({"cards": cards})
    rotated["cards"][:] = rotated["cards"][1:] + rotated["cards"][:1]
    for each in (by_place, rotated):
        moved = Op("add", "/cards/2", {"text": "x", "at": 3}, moved=True)
        assert recorded(each) == [Op("remove", "/cards/0"), moved]


def test_an_element_is_found_again_where_insertions_have_moved_it() -> None:
    def change(made: Any) -> None:
        second = made[1]
        made.insert(0, "front")
        second["n"] = 2
        del made[0]
        second["n"] += 1
        del made[0]
        assert made[0] is second
        second["m"] = 1

    state, ops = changed([{}, {}], change)
    assert state == [{"n": 3, "m": 1}]
    assert [op.path for op in ops] == ["/0", "/2/n", "/0", "/1/n", "/0", "/0/m"]


def test_what_is_put_in_with_an_operator_is_all_that_is_recorded() -> None:
    def change(made: Any) -> None:
        made.list += [2]
        made["list"] += [3]
        made.rows[0] += [1]

    state, ops = changed({"list": [1], "rows": [[]]}, change)
    assert state == {"list": [1, 2, 3], "rows": [[1]]}
    assert [(op.op, op.path) for op in ops] == [("add", "/list/1"), ("add", "/list/2"), ("add", "/rows/0/0")]


# Parts


def test_a_part_that_was_taken_out_refuses() -> None:
    made: Any = draft({"a": {"b": {}}, "list": [{}, {}]})
    inner, first, second = made["a"]["b"], made["list"][0], made["list"][1]
    del made["a"]
    made["list"].pop(0)
    for part in (inner, first):
        with pytest.raises(RuntimeError, match="removed from it"):
            part["x"] = 1
    second["x"] = 1
    assert recorded(made) == [Op("remove", "/a"), Op("remove", "/list/0"), Op("add", "/list/0/x", 1)]


def test_a_draft_whose_operations_have_been_taken_refuses_more() -> None:
    made: Any = draft({"a": {"b": {}}, "list": [{}, 1]})
    inner, first = made.a.b, made.list[0]
    made.a.n = 1
    assert recorded(made) == [Op("add", "/a/n", 1)]
    changes: list[Callable[[], object]] = [
        lambda: made.__setitem__("a", 2),
        lambda: made.__delitem__("a"),
        lambda: setattr(inner, "x", 1),
        lambda: first.update(x=1),
        lambda: made["list"].append(2),
        made["list"].pop,
        lambda: made["list"].__setitem__(slice(0, 1), [5]),
        made["list"].reverse,
    ]
    for change in changes:
        with pytest.raises(RuntimeError, match="has ended"):
            change()
    assert recorded(made) == [Op("add", "/a/n", 1)]
    assert made == {"a": {"b": {}, "n": 1}, "list": [{}, 1]}


@each_case(
    "replace",
    [
        lambda made: made.__setitem__("a", {"n": 1}),
        lambda made: made.update(a=1),
        lambda made: made.clear(),
        lambda made: made.pop("a"),
    ],
)
def test_a_part_that_was_replaced_refuses(replace: Callable[[Any], object]) -> None:
    made: Any = draft({"a": {"n": 0, "list": [1]}})
    part, inner = made["a"], made["a"]["list"]
    replace(made)
    for change in (lambda: part.__setitem__("n", 5), lambda: part.pop("n"), lambda: inner.append(2), inner.clear):
        with pytest.raises(RuntimeError, match="removed from it"):
            change()


@pytest.mark.parametrize("change", [lambda made: made.sort(key=len), lambda made: made.__delitem__(slice(1))])
def test_the_elements_of_a_list_that_became_another_refuse(change: Callable[[Any], object]) -> None:
    made: Any = draft([[1, 2], [3]])
    part = made[0]
    change(made)
    with pytest.raises(RuntimeError, match="removed from it"):
        part.append(5)


def test_a_part_that_refused_is_as_it_was() -> None:
    made: Any = draft({"a": {"n": 0}, "list": [[1]]})
    part, elements = made["a"], made["list"][0]
    made["a"] = {}
    made["list"] = []
    changes: list[Callable[[], object]] = [
        lambda: part.update(n=1),
        lambda: elements.append(2),
        lambda: elements.sort(reverse=True),
    ]
    for change in changes:
        with pytest.raises(RuntimeError):
            change()
    assert (part, elements) == ({"n": 0}, [1])


# What is put in


def test_what_is_put_in_is_a_copy() -> None:
    value: dict[str, Any] = {"list": [1]}

    def change(made: Any) -> None:
        made["a"] = value
        value["list"].append(2)
        made["a"]["list"].append(3)

    assert changed({}, change)[0] == {"a": {"list": [1, 3]}}
    assert value == {"list": [1, 2]}


def test_a_part_of_the_draft_can_be_put_elsewhere_as_a_copy() -> None:
    def change(made: Any) -> None:
        made["b"] = made["a"]
        made["b"]["n"] = 2
        made["list"].append(made["a"])
        made["both"] = [made["a"], {"deep": made["list"]}]

    assert changed({"a": {"n": 1}, "list": []}, change)[0] == {
        "a": {"n": 1},
        "b": {"n": 2},
        "list": [{"n": 1}],
        "both": [{"n": 1}, {"deep": [{"n": 1}]}],
    }


@each_case("value", [object(), {"a": object()}, [lambda: None], {1: object()}])
def test_what_is_not_json_is_refused_and_nothing_is_recorded(value: Any) -> None:
    made: Any = draft({"a": 1, "list": [1]})
    changes: list[Callable[[], object]] = [
        lambda: made.__setitem__("a", value),
        lambda: made["list"].append(value),
        lambda: made["list"].__setitem__(0, value),
        lambda: made["list"].__setitem__(slice(0, 1), [value]),
    ]
    for change in changes:
        with pytest.raises(TypeError):
            change()
    assert recorded(made) == []
    assert made == {"a": 1, "list": [1]}


class Point(msgspec.Struct, frozen=True):
    x: float


@each_case(
    ("value", "inside"),
    [(math.nan, ""), (math.inf, ""), (-math.inf, ""), ([None, {"x": math.nan}], "/1/x"), (Point(math.nan), "/x")],
)
def test_a_number_that_json_does_not_have_is_refused_at_its_place(value: Any, inside: str) -> None:
    made: Any = draft({"a": 1, "list": [1, 2]})
    changes: dict[str, list[Callable[[], object]]] = {
        "/a": [lambda: made.__setitem__("a", value), lambda: setattr(made, "a", value)],
        "/b": [lambda: made.update(b=value), lambda: made.setdefault("b", value)],
        "/list/1": [
            lambda: made["list"].__setitem__(1, value),
            lambda: made["list"].insert(1, value),
            lambda: made["list"].__setitem__(slice(1, 2), [value]),
        ],
        "/list/2": [lambda: made["list"].append(value), lambda: made["list"].extend([value])],
    }
    for path, each in changes.items():
        for change in each:
            with pytest.raises(EncodeError, match=path) as raised:
                change()
            assert raised.value.path == path + inside
    assert recorded(made) == []
    assert made == {"a": 1, "list": [1, 2]}


def test_null_and_large_numbers_are_put_in_as_they_are() -> None:
    made: Any = draft({})
    made.a = [None, 1e308, "null"]
    assert recorded(made) == [Op("add", "/a", [None, 1e308, "null"])]


@each_case("document", [None, 1, "text", True])
def test_only_objects_and_arrays_can_be_edited(document: Any) -> None:
    with pytest.raises(TypeError, match="object or an array"):
        draft(document)


def test_a_draft_looks_like_what_it_is_a_draft_of() -> None:
    made: Any = draft({"a": [1, {"b": 2}]})
    assert made == {"a": [1, {"b": 2}]}
    assert made == draft({"a": [1, {"b": 2}]})
    assert made != {"a": []}
    assert isinstance(made, DraftObject)
    assert isinstance(made["a"], DraftList)
    assert "[1, {'b': 2}]" in repr(made["a"])
    with pytest.raises(TypeError):
        hash(made)


# Anything


def some(chance: random.Random, depth: int) -> Any:
    match chance.randrange(6 if depth else 3):
        case 3:
            return {key: some(chance, depth - 1) for key in KEYS if chance.random() < 0.5}
        case 4 | 5:
            return [some(chance, depth - 1) for _ in range(chance.randrange(5))]
        case _:
            return chance.choice([None, True, 0, 1, 1.5, "", "x"])


KEYS = ["a", "b/c", "~", "", "items"]


def mutate(chance: random.Random, node: Any) -> Callable[[Any], object]:
    """Return something that can be done to a node, to be done to a draft of it and to a copy alike."""
    made, keys = some(chance, 2), list(node) if isinstance(node, dict) else []
    # A draft shares nothing with what is put in.
    value = partial(copy.deepcopy, made)
    key, index = chance.choice(KEYS), chance.randrange(-6, 7)
    part = slice(chance.randrange(6), chance.randrange(6))
    if keys or isinstance(node, dict):
        return chance.choice(
            [
                lambda at: at.__setitem__(key, value()),
                lambda at: at.pop(key, None),
                lambda at: at.update({key: value()}),
                lambda at: at.setdefault(key, value()),
                lambda at: at.pop(chance_key(keys), None),
                lambda at: at.clear() if index > 5 else None,
            ]
        )
    length = len(node)
    within = chance.randrange(-length, length) if length else None
    return chance.choice(
        [
            lambda at: at.append(value()),
            lambda at: at.insert(index, value()),
            lambda at: at.insert(0, value()),
            lambda at: None if within is None else at.pop(within),
            lambda at: None if within is None else at.__setitem__(within, value()),
            lambda at: at.extend([value(), 1]),
            lambda at: at.__setitem__(part, [value(), value()]),
            lambda at: at.__delitem__(part),
            lambda at: at.reverse(),
            lambda at: at.sort(key=repr_of),
        ]
    )


def chance_key(keys: list[str]) -> str:
    return keys[0] if keys else "a"


def repr_of(value: Any) -> str:
    return encode_json(value._container if isinstance(value, Draft) else value).decode()


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the places of all objects and arrays in a document."""
    members = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    inner = [place for key, value in members for place in places(value, (*path, key))]
    return [path, *inner] if isinstance(node, dict | list) else []


def at(node: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        node = node[part]
    return node


@play_seeds(30)
def test_a_draft_records_what_the_same_does_to_a_copy(seed: int) -> None:
    chance = random.Random(seed)
    document = {"a": some(chance, 3), "items": [some(chance, 2) for _ in range(3)]}
    before, expected, made = encode_json(document), copy.deepcopy(document), draft(document)
    for _ in range(chance.randrange(1, 25)):
        place = chance.choice(places(expected))
        step = mutate(chance, at(expected, place))
        step(at(expected, place))
        step(at(made, place))
        assert made == expected
    assert encode_json(document) == before
    assert text(apply(document, recorded(made))) == text(expected)


def plain(value: Any) -> Any:
    return decode_json(encode_json(value))


def text(value: Any) -> bytes:
    """Return the JSON of a value with the keys of objects in order."""
    return msgspec.json.encode(value, order="deterministic")


@play_seeds(10)
def test_parts_that_are_held_on_to_are_changed_where_they_are_or_refuse(seed: int) -> None:
    chance = random.Random(seed)
    document: list[Any] = [[n, [n]] for n in range(4)]
    expected: Any = copy.deepcopy(document)
    made: Any = draft(document)
    held = list(zip(list(expected), made, strict=True))
    for n in range(30):
        match chance.randrange(4):
            case 0:
                index = chance.randrange(len(expected) + 1)
                for each in (expected, made):
                    each.insert(index, [n, [n]])
                held.insert(index, (expected[index], made[index]))
            case 1 if expected:
                index = chance.randrange(len(expected))
                for each in (expected, made):
                    each.pop(index)
                _, gone = held.pop(index)
                with pytest.raises(RuntimeError):
                    gone.append(1)
            case _ if held:
                mine, theirs = chance.choice(held)
                mine[1].append(n)
                theirs[1].append(n)
                mine[0] += 1
                theirs[0] += 1
        assert made == expected
    assert text(apply(document, recorded(made))) == text(expected)


# Structs


class Player(msgspec.Struct, frozen=True):
    name: str
    score: int = 0


class Game(msgspec.Struct, frozen=True, rename="camel"):
    all_players: tuple[Player, ...] = ()
    by_name: dict[str, Player] = {}
    best: Player | msgspec.UnsetType = msgspec.UNSET
    notes: list[str] = []


class Sparse(msgspec.Struct, frozen=True, omit_defaults=True):
    game: Game = Game()
    tags: tuple[str, ...] = ()


class Tagged(msgspec.Struct, tag="tagged"):
    n: int = 0


GAME = Game((Player("Ada"), Player("Bob", 1)), {"a": Player("Ada")}, notes=["x"])


def test_a_struct_is_edited_as_the_object_that_it_is_in_json() -> None:
    def change(made: Any) -> None:
        assert made.allPlayers[0].name == "Ada"
        made.allPlayers[1].score += 1
        made.allPlayers.append(Player("Eve", 5))
        made.allPlayers.insert(0, {"name": "Zoe"})
        made.byName["b"] = made.allPlayers[1]
        made.best = Player("Bob")
        made.notes[0] = "y"
        with pytest.raises(AttributeError):
            made.all_players  # noqa: B018

    document, made = plain(GAME), draft(GAME)
    change(made)
    assert plain(GAME) == document
    assert encode_json(apply(document, recorded(made))) == encode_json(
        {
            "allPlayers": [
                {"name": "Zoe"},
                {"name": "Ada", "score": 0},
                {"name": "Bob", "score": 2},
                {"name": "Eve", "score": 5},
            ],
            "byName": {"a": {"name": "Ada", "score": 0}, "b": {"name": "Ada", "score": 0}},
            "notes": ["y"],
            "best": {"name": "Bob", "score": 0},
        }
    )


@each_case("value", [GAME, Sparse(), Sparse(GAME, ("a",)), Tagged(3), [GAME, (1, 2)], {"a": Sparse(tags=("b",))}])
def test_a_draft_of_structs_is_that_of_their_json(value: Any) -> None:
    document = plain(value)
    assert draft(value) == document
    assert draft(value) == draft(document)
    for seed in range(40):
        chance = random.Random(seed)
        expected, made = copy.deepcopy(document), draft(value)
        for _ in range(10):
            place = chance.choice(places(expected))
            step = mutate(chance, at(expected, place))
            step(at(expected, place))
            step(at(made, place))
        assert made == expected
        assert text(plain(value)) == text(document)
        assert text(apply(document, recorded(made))) == text(expected)


@dataclasses.dataclass
class Place:
    x: int = 0
    tags: set[str] = dataclasses.field(default_factory=lambda: {"a"})


def test_a_dataclass_is_edited_as_the_object_that_it_is_in_json() -> None:
    state = {"place": Place()}
    made: Any = draft(state)
    made.place.x = 7
    assert state == {"place": Place()}
    assert recorded(made) == [Op("replace", "/place/x", 7)]


def test_a_set_is_changed_by_another_in_its_place_alone() -> None:
    state = Place()
    made: Any = draft(state)
    with pytest.raises(AttributeError):
        made.tags.add("b")
    made.tags = sorted({*made.tags, "b"})
    assert state == Place()
    assert recorded(made) == [Op("replace", "/tags", ["a", "b"])]


def test_an_element_that_is_taken_out_and_put_in_again_has_moved() -> None:
    document = {"list": [{"n": 1}, {"n": 2}, {"n": 3}]}
    made: Any = draft(document)
    made.list[2].n = 4
    made.list.insert(0, made.list.pop())
    assert recorded(made) == [
        Op("replace", "/list/2/n", 4),
        Op("remove", "/list/2"),
        Op("add", "/list/0", {"n": 4}, moved=True),
    ]


def test_an_element_that_comes_back_after_something_else_or_elsewhere_has_not_moved() -> None:
    made: Any = draft({"list": [{"n": 1}, {"n": 2}], "other": []})
    first = made.list.pop(0)
    made.other.append(first)
    made.list.insert(0, first)
    assert [op.moved for op in recorded(made)] == [msgspec.UNSET] * 3


def test_a_list_that_is_reversed_moves_its_elements() -> None:
    made: Any = draft([{"n": 1}, {"n": 2}])
    made.reverse()
    assert recorded(made) == [Op("remove", "/0"), Op("add", "/1", {"n": 1}, moved=True)]


@each_case(
    "use",
    [
        lambda draft: draft.items["x"],
        lambda draft: draft.items.x,
        lambda draft: draft.items.__setitem__("x", 2),
        lambda draft: draft.items.append(2),
        lambda draft: list(draft.items),
        lambda draft: len(draft.items),
    ],
)
def test_a_member_with_the_name_of_a_method_is_named_by_its_key(use: Callable[[Any], object]) -> None:
    with pytest.raises((AttributeError, TypeError), match=r"`items` is a method of dicts: write draft\['items'\]"):
        use(draft({"items": {"x": 1}}))


def test_methods_work_beside_members_of_their_names() -> None:
    document = {"items": {"x": 1}, "get": 1, "pop": 2}

    def change(draft: Any) -> None:
        assert [name for name, _ in draft.items()] == ["items", "get", "pop"]
        assert draft.get("get") == 1
        assert draft.pop("pop") == 2
        draft["items"]["x"] = 3
        draft.get = 4

    assert changed(document, change)[0] == {"items": {"x": 3}, "get": 4}
