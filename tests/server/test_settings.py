"""Settings, and the environment variables that take their place."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from plait.app import Plait
from plait.limits import DEFAULT_LIMITS, UNLIMITED, Limits
from plait.settings import Settings
from plait.store.memory import MemoryStore
from plait.store.sqlite import SqliteStore
from plait.store.urls import open_store
from plait.thread import Thread


class Room(Thread[Any]):
    pass


def test_an_empty_environment_changes_nothing() -> None:
    settings = Settings(store="memory://", allowed_origins=("https://a",), shutdown_timeout=1)
    assert settings.with_environment({}) == settings
    assert settings.with_environment({"PATH": "/bin", "PLAITS": "3"}) == settings


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("PLAIT_STORE", "memory://", "store", "memory://"),
        ("PLAIT_ALLOWED_ORIGINS", "https://a, https://b,", "allowed_origins", ("https://a", "https://b")),
        ("PLAIT_ALLOWED_ORIGINS", "", "allowed_origins", ()),
        ("PLAIT_STATIC", "pages", "static", "pages"),
        ("PLAIT_SHUTDOWN_TIMEOUT", "2.5", "shutdown_timeout", 2.5),
        ("PLAIT_PING_INTERVAL", "5", "ping_interval", 5.0),
        ("PLAIT_PING_TIMEOUT", "1e1", "ping_timeout", 10.0),
    ],
)
def test_a_variable_takes_the_place_of_what_was_given(variable: str, text: str, name: str, value: object) -> None:
    settings = Settings(allowed_origins=("https://given",)).with_environment({variable: text})
    assert getattr(settings, name) == value


def test_every_setting_has_a_variable() -> None:
    texts = {"float": "7", "str": "seven", "tuple": "seven"}
    for field in msgspec.structs.fields(Settings):
        if field.name == "limits":
            continue
        kind = next(name for name in texts if name in str(field.type))
        before = Settings()
        after = before.with_environment({f"PLAIT_{field.name.upper()}": texts[kind]})
        assert getattr(after, field.name) != getattr(before, field.name), field.name


def test_every_limit_has_a_variable() -> None:
    for field in msgspec.structs.fields(Limits):
        settings = Settings().with_environment({f"PLAIT_LIMITS_{field.name.upper()}": "7"})
        assert settings.limits == msgspec.structs.replace(DEFAULT_LIMITS, **{field.name: 7})


def test_the_limits_can_be_switched_off_and_single_ones_left() -> None:
    assert Settings().with_environment({"PLAIT_LIMITS": "none"}).limits is None
    found = Settings().with_environment({"PLAIT_LIMITS": "none", "PLAIT_LIMITS_FRAME": "7"}).limits
    assert found == msgspec.structs.replace(UNLIMITED, frame=7)
    assert Settings(limits=None).with_environment({}).limits is None


@pytest.mark.parametrize(
    "environment",
    [
        {"PLAIT_SHUTDOWN_TIMEOUT": "soon"},
        {"PLAIT_PING_INTERVAL": ""},
        {"PLAIT_LIMITS": "off"},
        {"PLAIT_LIMITS_FRAME": "1 MiB"},
        {"PLAIT_LIMITS_DEPTH": "1.5"},
    ],
)
def test_a_variable_that_makes_no_sense_is_an_error_that_names_it(environment: dict[str, str]) -> None:
    (variable,) = environment
    with pytest.raises(ValueError, match=variable):
        Settings().with_environment(environment)


def test_pages_that_are_not_there_are_an_error_that_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^static: .*nowhere' is not a folder$"):
        Plait(Room, store="memory://", static=tmp_path / "nowhere")


# Stores


@pytest.mark.parametrize("url", ["", "nonsense://"])
def test_a_store_that_is_none_is_an_error_that_names_the_setting(url: str) -> None:
    with pytest.raises(ValueError, match=f"^store: '{url}' is no store"):
        Plait(store=url)


def test_a_store_is_named_by_its_url() -> None:
    assert isinstance(open_store("memory://"), MemoryStore)
    assert isinstance(relative := open_store("sqlite:///game.db"), SqliteStore)
    assert relative.path == Path("game.db")
    assert isinstance(absolute := open_store("sqlite:////data/my%20game.db?synchronous=normal"), SqliteStore)
    assert absolute.path == Path("/data/my game.db")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "game.db",
        "sqlite://",
        "sqlite:///",
        "sqlite://host/game.db",
        "sqlite:///game.db?synchronous=off",
        "sqlite:///game.db?mode=ro",
        "memory://x",
        "memory:///x",
        "postgres://host/db",
    ],
)
def test_a_url_that_names_no_store_is_an_error_that_shows_those_there_are(url: str) -> None:
    with pytest.raises(ValueError, match=r"sqlite:///game\.db"):
        open_store(url)
