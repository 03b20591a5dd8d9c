"""Settings, and the environment variables that take their place."""

import logging
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cases import each_case

from plait.actor.thread import Thread
from plait.app import Plait
from plait.limits import DEFAULT_LIMITS, UNLIMITED, Limits
from plait.settings import SettingError, Settings, find_unknown_variables
from plait.store.memory import MemoryStore
from plait.store.sqlite.store import SqliteStore
from plait.store.urls import open_store


class Room(Thread[Any]):
    pass


def test_an_empty_environment_changes_nothing() -> None:
    settings = Settings(store="memory://", allowed_origins=("https://a",), shutdown_timeout=1)
    assert settings.with_environment({}) == settings
    assert settings.with_environment({"PATH": "/bin", "PLAITS": "3"}) == settings


@each_case(
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
    texts = {"bool": "true", "float": "7", "str": "seven", "tuple": "seven"}
    for field in msgspec.structs.fields(Settings):
        if field.name == "limits":
            continue
        kind = next(name for name in texts if name in str(field.type))
        before = Settings()
        after = before.with_environment({f"PLAIT_{field.name.upper()}": texts[kind]})
        assert getattr(after, field.name) != getattr(before, field.name), field.name


def test_every_limit_has_a_variable() -> None:
    for field in msgspec.structs.fields(Limits):
        value = getattr(DEFAULT_LIMITS, field.name) + 7
        settings = Settings().with_environment({f"PLAIT_LIMITS_{field.name.upper()}": str(value)})
        assert settings.limits == msgspec.structs.replace(DEFAULT_LIMITS, **{field.name: value})


def test_the_limits_can_be_switched_off_and_single_ones_left() -> None:
    assert Settings().with_environment({"PLAIT_LIMITS": "none"}).limits is None
    found = Settings().with_environment({"PLAIT_LIMITS": "none", "PLAIT_LIMITS_FRAME": "7000"}).limits
    assert found == msgspec.structs.replace(UNLIMITED, frame=7000)
    assert Settings(limits=None).with_environment({}).limits is None


@each_case(
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


@each_case(
    ("variable", "text", "says"),
    [
        ("PLAIT_PING_INTERVAL", "0", "must be a number of seconds, at least 0.1"),
        ("PLAIT_PING_TIMEOUT", "-1", "must be a number of seconds, at least 0.1"),
        ("PLAIT_PING_INTERVAL", "nan", "must be a number of seconds, at least 0.1"),
        ("PLAIT_SHUTDOWN_TIMEOUT", "-0.5", "must be a number of seconds, at least 0"),
        ("PLAIT_SHUTDOWN_TIMEOUT", "inf", "must be a number of seconds, at least 0"),
        ("PLAIT_LIMITS_FRAME", "0", "must be at least 1000"),
        ("PLAIT_LIMITS_STATE", "1", "must be at least 64"),
        ("PLAIT_LIMITS_DEPTH", "0", "must be at least 1"),
        ("PLAIT_LIMITS_MESSAGES_PER_SECOND", "0", "must be at least 0.001"),
        ("PLAIT_LIMITS_MESSAGE_BURST", "0", "must be at least 1"),
        ("PLAIT_LIMITS_CONNECTIONS_PER_THREAD", "0", "must be at least 1"),
        ("PLAIT_LIMITS_PRESENCE", "-1", "must be at least 0"),
    ],
)
def test_a_setting_below_its_least_is_an_error_that_names_where_it_comes_from(
    variable: str, text: str, says: str
) -> None:
    with pytest.raises(SettingError, match=f"^{variable}='{text}': {re.escape(says)}$"):
        Settings().with_environment({variable: text})
    value = float(text) if "." in text or not text.lstrip("-").isdigit() else int(text)
    if limit := variable.lower().partition("plait_limits_")[2]:
        with pytest.raises(ValueError, match=rf"^Limits\({limit}={value!r}\): {re.escape(says)}$"):
            Limits(**{limit: value})  # type: ignore[arg-type]
    else:
        keyword = variable.removeprefix("PLAIT_").lower()
        with pytest.raises(ValueError, match=f"^{keyword}={value!r}: {re.escape(says)}$"):
            Settings(**{keyword: value}).with_environment({})  # type: ignore[arg-type]


def test_the_least_of_each_limit_may_be_set() -> None:
    least = Limits(
        frame=1000,
        state=64,
        depth=1,
        connections_per_thread=1,
        connections_per_address=1,
        messages_per_second=0.001,
        message_burst=1,
        backlog=1024,
        write_buffer=1000,
        presence=0,
        awake_threads=1,
    )
    settings = Settings(ping_interval=0.1, ping_timeout=0.1, shutdown_timeout=0, limits=least)
    assert settings.with_environment({}) == settings


@each_case(
    ("given", "says"),
    [
        ({"ping_interval": "5"}, "ping_interval='5': Expected `float`, got `str`"),
        ({"shutdown_timeout": None}, "shutdown_timeout=None: Expected `float`, got `null`"),
        ({"limits": "none"}, "limits='none': must be a Limits, or None for no limits"),
        ({"limits": {}}, "limits={}: must be a Limits, or None for no limits"),
        ({"allowed_origins": [5]}, "allowed_origins=(5,): Expected `str`, got `int` - at `$[0]`"),
        ({"allowed_origins": 5}, "allowed_origins must be a list of origins, not 5"),
        ({"allowed_hosts": 5}, "allowed_hosts must be a list of hosts, not 5"),
        ({"store": Path("game.db")}, "store must be a URL, such as 'sqlite:///game.db', or a Store, not PosixPath("),
        ({"store": None}, "store must be a URL, such as 'sqlite:///game.db', or a Store, not None"),
        ({"authenticate": "me"}, "authenticate must be a function or None, not 'me'"),
        ({"authorize": True}, "authorize must be a function or None, not True"),
    ],
)
def test_a_setting_of_another_type_is_an_error_that_names_the_keyword(given: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(says)}"):
        Plait(Room, **{"store": MemoryStore(), **given})


def test_a_limit_that_is_no_whole_number_is_refused() -> None:
    for value in ("5", 1.5, None, True):
        with pytest.raises(ValueError, match=r"^Limits\(frame=.*\): must be a whole number$"):
            Limits(frame=value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"must be a number$"):
        Limits(messages_per_second="5")  # type: ignore[arg-type]


def test_a_variable_that_is_not_read_is_warned_about_with_the_nearest_that_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PLAIT_PNIG_INTERVAL", "5")
    monkeypatch.setenv("PLAIT_PORT", "5")
    monkeypatch.setenv("PLAIT_LIMITS", "none")
    with caplog.at_level(logging.WARNING):
        Plait(Room, store=MemoryStore())
    assert [record.getMessage() for record in caplog.records] == [
        "the environment variable PLAIT_PNIG_INTERVAL is not a setting and is ignored; "
        "did you mean PLAIT_PING_INTERVAL?"
    ]


def test_the_variables_that_are_not_read_are_those_that_no_setting_limit_or_command_has() -> None:
    environment = {"PLAIT_FRAME": "1", "PLAIT_LIMIT_FRAME": "1", "PLAIT_XYZZY": "", "PLAITS": "", "PATH": "/bin"}
    assert find_unknown_variables(environment | {"PLAIT_STORE": "", "PLAIT_LIMITS_STATE": "1"}) == {
        "PLAIT_FRAME": "PLAIT_LIMITS_FRAME",
        "PLAIT_LIMIT_FRAME": "PLAIT_LIMITS_FRAME",
        "PLAIT_XYZZY": None,
    }


# Stores


@each_case("url", ["", "nonsense://"])
def test_a_store_that_is_none_is_an_error_that_names_the_setting(url: str) -> None:
    with pytest.raises(ValueError, match=f"^store: unknown store URL '{url}'"):
        Plait(Room, store=url)


def test_a_store_is_named_by_its_url() -> None:
    assert isinstance(open_store("memory://"), MemoryStore)
    assert isinstance(relative := open_store("sqlite:///game.db"), SqliteStore)
    assert relative.path == Path("game.db")
    assert isinstance(absolute := open_store("sqlite:////data/my%20game.db?synchronous=normal"), SqliteStore)
    assert absolute.path == Path("/data/my game.db")


@each_case(
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
        "oracle://host/db",
    ],
)
def test_a_url_that_names_no_store_is_an_error_that_shows_those_there_are(url: str) -> None:
    with pytest.raises(ValueError, match=r"sqlite:///game\.db"):
        open_store(url)
