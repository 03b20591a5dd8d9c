"""The attributes and hooks of a Thread class."""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
import pytest
from tests.cases import each_case

from plait.actor.declaration import HOOKS
from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.state.retention import Retention

State = TypeVar("State")


class Game(msgspec.Struct, frozen=True):
    score: int = 0


def make(**attributes: Any) -> type[Thread[Any]]:
    """Define a class with these attributes."""
    return type("Room", (Thread,), attributes)


def nothing(*args: object) -> None:
    pass


def warning(**attributes: Any) -> str:
    """Define a class that is warned about once, and return what is said."""
    with pytest.warns(UserWarning, match=r"^Room\.\w+ is not ") as caught:
        make(**attributes)
    (record,) = caught
    return str(record.message)


# Attributes


def test_the_names_are_those_that_a_thread_has() -> None:
    assert [name for name in HOOKS if not callable(getattr(Thread, name))] == []
    begins = ("on_", "should_", "validate_", "resolve_", "connection_")
    assert {name for name in vars(Thread) if name.startswith(begins)} | {"card"} == set(HOOKS)


@each_case(
    ("name", "value", "says"),
    [
        ("retention", 5, "must be a Retention, for example Retention(changes=5), not 5"),
        ("retention", None, "must be a Retention, for example Retention(changes=1000), not None"),
        ("retention", Retention, "must be a Retention, for example Retention(changes=1000), not <class"),
        ("idle_timeout", "60", "must be a number of seconds, or None for never, not '60'"),
        ("turn_timeout", 0, "must be a number of seconds above 0, or None for never, not 0"),
        ("conflict", "rejct", "must be one of 'last-writer', 'reject', not 'rejct'; did you mean 'reject'?"),
        ("conflict", 3, "must be one of 'last-writer', 'reject', not 3"),
        ("conflict", [], "must be one of 'last-writer', 'reject', not []"),
        ("send_identity", "no", "must be True or False, not 'no'"),
        ("send_identity", 0, "must be True or False, not 0"),
        ("listed", "yes", "must be True or False, not 'yes'"),
        ("card", {"title": "x"}, "must be a method, not {'title': 'x'}"),
        ("state_version", "2", "must be a whole number, at least 1, not '2'"),
        ("events", ["moved"], "must be a dict of names and types, for example {\"moved\": Move}, not ['moved']"),
        ("events", {"moved": 5}, "must be a dict of names and types, for example {\"moved\": Move}: 'moved': 5 is not"),
        ("events", {5: int}, "must be a dict of names and types"),
        ("clients_may_emit", "moved", "must be a tuple of names of events, for example (\"moved\",), not 'moved'"),
        ("clients_may_emit", (5,), 'must be a tuple of names of events, for example ("moved",), not (5,)'),
        ("on_start", 5, "must be a method, not 5"),
        ("state", {"n": 0}, "is an attribute of Thread and cannot be {'n': 0}: name it `initial_state`"),
        ("history", (), "is an attribute of Thread and cannot be (): give it another name"),
    ],
)
def test_an_attribute_of_another_type_is_refused_with_the_remedy(name: str, value: Any, says: str) -> None:
    with pytest.raises(TypeError, match=rf"^Room\.{name} {re.escape(says)}"):
        make(**{name: value})


def test_attributes_of_the_right_types_are_taken() -> None:
    cls = make(
        retention=Retention(changes=None),
        idle_timeout=0,
        turn_timeout=0.5,
        conflict="reject",
        send_identity=False,
        state_version=2,
        events={"moved": Game, "ended": None, "any": Any},
    )
    assert issubclass(type("Later", (cls,), {}), cls)


def test_clients_may_only_emit_events_that_the_class_has() -> None:
    with pytest.raises(TypeError, match=r"^Room\.clients_may_emit has 'move', which Room\.events does not have$"):
        make(events={"moved": Game}, clients_may_emit=("moved", "move"))


def test_a_retention_that_is_no_number_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^Retention\(changes='5'\): must be a number, or None for no bound$"):
        Retention(changes="5")  # type: ignore[arg-type]


# Hooks


@each_case(
    ("name", "hook", "call"),
    [
        ("on_message", lambda self, data: None, "on_message(connection, data)"),
        ("on_start", lambda: None, "on_start()"),
        ("on_state_changed", lambda self, state, source, more: None, "on_state_changed(state, source)"),
        ("can_write", lambda self, state: (), "can_write(state, viewer)"),
        ("can_write", staticmethod(lambda self, state, viewer: ()), "can_write(state, viewer)"),
        ("on_close", staticmethod(lambda self, connection, code, reason: None), "on_close(connection, code, reason)"),
    ],
)
def test_a_hook_that_does_not_take_what_it_is_given_is_refused(name: str, hook: Callable[..., Any], call: str) -> None:
    with pytest.raises(TypeError, match=rf"^Room\.{name} must accept these arguments: {re.escape(call)}"):
        make(**{name: hook})


def test_a_hook_may_take_its_arguments_as_it_likes() -> None:
    class Callable_:
        def __call__(self, *args: object) -> None:
            pass

    make(
        on_message=lambda self, *args: None,
        on_start=staticmethod(lambda: None),
        on_stop=classmethod(lambda cls: None),
        on_connect=lambda self, connection, request, more=1: None,
        on_close=Callable_(),
        can_write=staticmethod(lambda state, viewer: ()),
    )


async def can_write(self: object, state: object, viewer: object) -> tuple[str, ...]:
    return ()


def can_write_each(self: object, state: object, viewer: object) -> Iterator[str]:
    yield "/**"


@each_case(
    ("value", "says"),
    [
        (can_write, "must not be `async def`"),
        (can_write_each, "must not contain yield"),
        (property(can_write), "must be a tuple of JSON pointers"),
        (7, "must be a tuple of JSON pointers"),
    ],
)
def test_a_method_that_cannot_say_what_clients_may_write_is_refused(value: Any, says: str) -> None:
    with pytest.raises(TypeError, match=f"^Room.can_write {says}"):
        make(can_write=value)


# Names that are nearly a hook's


@each_case(
    ("name", "hook"),
    [
        ("on_state_change", "on_state_changed"),
        ("onStateChanged", "on_state_changed"),
        ("onStateUpdate", "on_state_changed"),
        ("onConnect", "on_connect"),
        ("on_conect", "on_connect"),
        ("on_disconnect", "on_close"),
        ("validateStateChange", "validate_state_change"),
        ("getConnectionTags", "connection_tags"),
        ("shouldConnectionBeReadonly", "should_be_readonly"),
    ],
)
def test_a_method_whose_name_is_nearly_a_hook_is_warned_about(name: str, hook: str) -> None:
    assert warning(**{name: nothing}) == f"Room.{name} is not called by plait: the hook is named {hook}"


@each_case(
    ("name", "value", "option"),
    [
        ("initialState", {"n": 0}, "initial_state"),
        ("initialState", nothing, "initial_state"),
        ("inital_state", {"n": 0}, "initial_state"),
        ("retension", Retention(), "retention"),
        ("idle_time_out", 5, "idle_timeout"),
    ],
)
def test_an_attribute_whose_name_is_nearly_one_that_is_read_is_warned_about(
    name: str, value: object, option: str
) -> None:
    assert warning(**{name: value}) == f"Room.{name} is not read by plait: the attribute is named {option}"


def test_a_warning_is_given_at_the_line_of_the_class() -> None:
    with pytest.warns(UserWarning, match="on_conect") as caught:

        class Room(Thread[Any]):
            def on_conect(self) -> None:
                pass

    (record,) = caught
    assert record.filename == __file__
    assert "class Room(Thread[Any]):" in Path(__file__).read_text().splitlines()[record.lineno - 1]


def test_an_ordinary_name_is_not_warned_about() -> None:
    class Events:
        pass

    names = ("on_start_game", "on_message_sent", "on_step", "on_lose", "connect", "conflicts", "onSpawn", "_on_conect")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(**dict.fromkeys(names, nothing), Events=Events, on_closed=5, RETENTION=3)
        make(on_close=nothing, on_closing=nothing, initial_state=1, inital_state=2)


def test_an_rpc_is_warned_about_only_when_its_name_is_a_hook_in_javascript() -> None:
    @rpc
    def ended(self: object) -> None:
        pass

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(on_stopped=ended, on_connected=ended)
    assert "the hook is named on_connect" in warning(onConnect=ended)


def test_a_name_is_warned_about_once_in_the_class_or_mixin_that_has_it() -> None:
    class Mixin:
        def onConnect(self) -> None:
            pass

    with pytest.warns(UserWarning, match=r"^Parent\.onConnect is not called by plait"):

        class Parent(Mixin, Thread[Any]):
            pass

    class Child(Parent):
        pass

    assert Child._kind.name == "child"


def test_generic_and_abstract_classes_and_mixins_are_taken_as_they_are() -> None:
    class Chatty:
        def on_message(self, connection: object, data: object) -> None:
            pass

    class Abstract(Thread[State], Generic[State]):
        events: ClassVar[Mapping[str, Any]] = {"moved": int}

        def on_start(self) -> None:
            raise NotImplementedError

    class Room(Chatty, Abstract[Game]):
        initial_state = Game()

    assert Room._kind.overrides == {"on_message", "on_start"}
