"""The states that a program reads: copies of its own, and the changes that it makes to them."""

import logging
from dataclasses import dataclass
from typing import Any, TypedDict

import attrs
import msgspec
import pytest
from pydantic import BaseModel, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass
from tests.cases import each_case

from plait_client.view import View


class Point(msgspec.Struct, frozen=True):
    x: int = 0


class Path(msgspec.Struct, frozen=True):
    points: tuple[Point | None, ...] = ()
    names: frozenset[str] = frozenset()
    rest: "Path | None" = None


class Loose(msgspec.Struct):
    n: int = 0
    tags: list[str] = msgspec.field(default_factory=list, name="labels")


class Half(msgspec.Struct, frozen=True):
    any: Any = None


@pydantic_dataclass
class Checked:
    n: int = 0


@dataclass
class Plain:
    n: int = 0


class Model(BaseModel):
    n: int = Field(default=0, ge=0)
    tags: list[str] = Field(default=[], alias="labels")


@attrs.define
class AttrsClass:
    n: int = 0


@attrs.frozen
class FrozenAttrsClass:
    n: int = 0


class Members(TypedDict):
    n: int


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@each_case(
    ("state_type", "document"),
    [
        (Any, {"n": [1, {"a": 1}]}),
        (dict, {"n": [1, {"a": 1}]}),
        (Half, {"any": {"a": [1]}}),
        (Loose, {"n": 1, "labels": ["a"]}),
        (list[Loose], [{"n": 1}]),
        (Plain, {"n": 1}),
        (Members, {"n": 1}),
        (Model, {"n": 1}),
        (AttrsClass, {"n": 1}),
    ],
)
def test_what_is_changed_in_a_state_that_was_read_changes_nothing_else(state_type: Any, document: Any) -> None:
    view: View[Any] = View(state_type)
    before = msgspec.json.encode(document)
    spoil(view(document))
    assert msgspec.json.encode(document) == before
    assert view(document) is view(document) != View[Any](state_type)(document)


def spoil(value: Any) -> None:
    """Change something as deep inside as can be."""
    match value:
        case Half():
            spoil(value.any)
        case Loose() | Plain() | Model() | AttrsClass():
            value.n = 99
        case dict():
            last = next(reversed(value))
            if isinstance(value[last], dict | list):
                spoil(value[last])
            else:
                value[last] = 99
        case list():
            spoil(value[-1]) if isinstance(value[-1], dict | list | Loose) else value.append(99)


def test_a_state_that_cannot_be_changed_is_converted_once_for_a_check_and_for_reading() -> None:
    view: View[Path] = View(Path)
    document = {"points": [{"x": 1}, None], "names": ["a"], "rest": {"points": []}}
    assert view.takes(document)
    assert view.lend(document) is view(document) is view.base(document)


def test_a_frozen_class_of_attrs_is_converted_once() -> None:
    view: View[FrozenAttrsClass] = View(FrozenAttrsClass)
    document = {"n": 1}
    assert view.takes(document)
    assert view.lend(document) is view(document) == FrozenAttrsClass(1)


def test_a_model_is_validated_and_a_dataclass_of_pydantic_refused() -> None:
    view: View[Model] = View(Model)
    assert not view.takes({"n": -1})
    assert view({"n": 1, "labels": ["a"]}).tags == ["a"]
    with pytest.raises(TypeError, match="whose validators would not run"):
        View(Checked)


@pytest.mark.parametrize("state_type", [Any, Loose, Model])
def test_what_was_changed_in_a_state_is_logged_once_when_another_replaces_it(
    caplog: pytest.LogCaptureFixture, state_type: Any
) -> None:
    view: View[Any] = View(state_type)
    document = {"n": 1, "labels": ["a", "b"]}
    read = view(document)
    (read["labels"] if isinstance(read, dict) else read.tags).append("c")
    view.follow(document)
    assert logged(caplog) == []
    view.follow({"n": 2, "labels": []})
    view.follow({"n": 3, "labels": []})
    assert logged(caplog) == ["'/labels/2' was changed in place in a state that was read, and is not sent: see edit"]


@pytest.mark.parametrize(
    ("spoil", "pointer"),
    [
        (lambda state: state.clear(), "/a"),
        (lambda state: state["a"].pop(), "/a/1"),
        (lambda state: state["a"][0].update({"x/y": 2}), "/a/0/x~1y"),
        (lambda state: state.update(b=object()), "/b"),
        (lambda state: state["a"].insert(0, state), "/a/0/x"),
        (lambda state: state["a"].append(state), "/a/2"),
    ],
)
def test_the_place_of_a_change_is_named_whatever_was_put_there(
    caplog: pytest.LogCaptureFixture, spoil: Any, pointer: str
) -> None:
    view: View[Any] = View(Any)
    spoil(view({"a": [{"x": 1}, 2]}))
    view.follow(None)
    assert logged(caplog) == [f"{pointer!r} was changed in place in a state that was read, and is not sent: see edit"]


@pytest.mark.parametrize("state_type", [Any, Loose, Path])
def test_nothing_is_logged_of_a_state_that_was_only_read(caplog: pytest.LogCaptureFixture, state_type: Any) -> None:
    view: View[Any] = View(state_type)
    with caplog.at_level(logging.DEBUG):
        view({"n": 1, "labels": ["a"]})
        view({"n": 2})
        view.follow(None)
    assert caplog.records == []


def test_a_state_that_was_lent_and_changed_is_compared_with_what_it_was() -> None:
    view: View[Loose] = View(Loose)
    document = {"n": 1, "labels": ["a"]}
    lent = view.lend(document)
    assert view.base(document, lent) is lent
    lent.tags.append("b")
    assert view.base(document, lent) == Loose(1, ["a"])


def test_a_state_that_was_read_and_changed_is_compared_with_what_it_was() -> None:
    view: View[Loose] = View(Loose)
    document = {"n": 1, "labels": ["a"]}
    read = view(document)
    assert view.base(document) is read
    read.n = 5
    assert view.base(document) == Loose(1, ["a"])
