"""URLs of stores in NATS, and why a store is not opened."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cases import each_case
from tests.nats import Nats, new_stream

from plait.errors import StoreError
from plait.settings import Settings
from plait.spelling import hide_password
from plait.store.nats.jetstream import JetStream
from plait.store.nats.layout import CONFIG
from plait.store.nats.store import NatsStore
from plait.store.nats.url import NatsUrl
from plait.store.urls import open_share, open_store

SECRET = "pass-word"
URL = f"nats://ada:{SECRET}@127.0.0.1:1/game"


def test_a_url_has_servers_a_login_a_stream_and_options() -> None:
    found = NatsUrl.parse(f"nats://ada:{SECRET}@h1:1,h2,[::1]:3/game?replicas=5&domain=hub&tls=on&tlsca=ca.pem")
    assert found.servers == ["nats://h1:1", "nats://h2:4222", "nats://[::1]:3"]
    assert (found.user, found.password, found.token) == ("ada", SECRET, None)
    assert (found.stream, found.replicas, found.is_synced) == ("game", 5, True)
    assert (found.api, found.has_tls, found.tlsca) == ("$JS.hub.API", True, "ca.pem")
    assert str(found) == "nats://ada:***@h1:1,h2,[::1]:3/game"
    other = NatsUrl.parse(f"nats://{SECRET}@h?sync=interval&replicas=1")
    assert (other.user, other.token, other.stream) == (None, SECRET, "plait")
    assert (other.replicas, other.is_synced, other.api) == (1, False, "$JS.API")
    assert str(other) == "nats://***@h/plait"
    assert NatsUrl.parse("nats://h").replicas == 3


@each_case(
    ("rest", "why"),
    [
        ("?stream=x", "unknown option 'stream'"),
        ("?replicas=1&replicas=3", "given twice"),
        ("?replicas=2", "replicas must be 3, 1 or 5, not '2'"),
        ("?sync=no", "sync must be always or interval"),
        ("?tls=yes", "tls must be"),
        ("?domain=a.b", "domain must match"),
        (".b", "the stream must match"),
        ("/b", "the stream must match"),
        ("#x", "there is a #"),
        ("?creds=a@b", "quote the odd characters"),
    ],
)
def test_a_wrong_url_is_explained_and_the_password_is_not_shown(rest: str, why: str) -> None:
    for read in (NatsUrl.parse, open_store):
        with pytest.raises(ValueError, match=why) as caught:
            read(URL + rest)
        assert SECRET not in str(caught.value)


@each_case("url", ["nats://", "nats:///x", "nats://a:pass-word/x@h", "nats://ada:pass-word?@h/x"])
def test_a_url_without_hosts_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"write nats:|quote the odd") as caught:
        open_store(url)
    assert SECRET not in str(caught.value)


@each_case(
    ("url", "shown"),
    [
        (URL, "nats://ada:***@127.0.0.1:1/game"),
        (f"nats://{SECRET}@h1,h2/game", "nats://***@h1,h2/game"),
        ("nats://h/game", "nats://h/game"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert hide_password(url) == shown


async def test_no_error_nor_setting_shows_the_password(caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(URL)
    assert isinstance(store, NatsStore)
    with pytest.raises(StoreError, match=r"cannot open the store nats://ada:\*\*\*@127.0.0.1:1/game: ") as caught:
        await store.__aenter__()
    assert SECRET not in f"{caught.value!r}{caught.value.detail}{store.durability}{store!r}{store.url!r}{caplog.text}"
    assert "Errno" in str(caught.value)  # As the system says it.
    assert SECRET not in repr(Settings(store=URL))


def test_workers_do_not_share_it() -> None:
    with pytest.raises(StoreError, match="one process") as caught:
        open_share(URL, 0, 2)
    assert SECRET not in str(caught.value)


def test_a_store_that_is_less_durable_than_the_default_says_so() -> None:
    said = {options: open_store(f"nats://h/s{options}").durability for options in ("", "?replicas=1", "?sync=interval")}
    assert len(set(said.values())) == 3
    assert "sync_interval: always" in said[""]
    assert "loss of its disk" in said["?replicas=1"]
    assert "are lost (sync=interval)" in said["?sync=interval"]


# Servers that cannot keep a store


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Nats]:
    """A server that wants a password, and one of whose users has no JetStream."""
    more = f"""
    accounts {{
        with {{ jetstream: enabled, users: [{{user: ada, password: {SECRET}}}] }}
        without {{ users: [{{user: bob, password: {SECRET}}}] }}
        SYS {{ users: [] }}
    }}
    system_account: SYS
    """
    with Nats(tmp_path / "nats", more=more) as server:
        yield server


async def refusal(url: str) -> str:
    """Return why a store is not opened."""
    with pytest.raises(StoreError, match="cannot open the store") as caught:
        await open_store(url).__aenter__()
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_a_login_is_needed_and_jetstream_for_the_account(secured: Nats) -> None:
    def url(user: str, password: str) -> str:
        return new_stream(secured.url.replace("//", f"//{user}:{password}@"), "replicas=1")

    async with open_store(url("ada", SECRET)) as store:
        assert await store.threads() == []
    assert "Authorization" in await refusal(url("ada", "wrong"))
    assert "Authorization" in await refusal(new_stream(secured.url, "replicas=1"))
    assert "JetStream is not enabled" in await refusal(url("bob", SECRET))


async def test_a_server_without_jetstream_is_refused(tmp_path: Path) -> None:
    with Nats(tmp_path / "nats", has_jetstream=False) as server:
        assert "JetStream is not enabled" in await refusal(new_stream(server.url, "replicas=1"))


async def test_one_server_has_no_three_copies(nats_server: Nats) -> None:
    why = await refusal(new_stream(nats_server.url))
    assert "?replicas=1" in why


async def test_a_stream_of_an_earlier_build_is_refused_and_left_as_it_is(nats_server: Nats) -> None:
    url = new_stream(nats_server.url, "replicas=1")
    async with open_store(url) as store:
        assert isinstance(store, NatsStore)
        earlier = JetStream(store.url, store._connection, f"{store.url.stream}x")
        await earlier.prepare(CONFIG | {"metadata": {"plait": "1"}})
        before = await earlier.info()
    url = url.replace("?", "x?")
    why = await refusal(url)
    assert "an earlier build of plait (in format 1; this plait reads format 2)" in why
    assert "`plait store export` of that build" in why
    with pytest.raises(StoreError, match="an earlier build of plait"):
        await NatsStore(NatsUrl.parse(url), readonly=True).__aenter__()
    async with NatsStore(NatsUrl.parse(new_stream(nats_server.url, "replicas=1"))) as store:
        after = await JetStream(store.url, store._connection, earlier.name).info()
    assert after.config == before.config


async def test_a_stream_with_other_settings_is_left_alone(nats_server: Nats, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    url = new_stream(nats_server.url, "replicas=1")
    async with open_store(url) as store:
        assert isinstance(store, NatsStore)
        assert "less durable" in caplog.text
        stream = JetStream(store.url, store._connection, f"{store.url.stream}x")
        await stream.prepare({"max_msgs_per_subject": 5})
    assert "max_msgs_per_subject=5" in await refusal(url.replace("?", "x?"))
    # Another stream has the subjects.
    async with open_store(url) as store:
        assert isinstance(store, NatsStore)
        taken = new_stream(nats_server.url).rpartition("/")[2]
        config = {"name": taken + "y", "subjects": [f"{taken}.>"], "storage": "file"}
        await store._stream.api(f"STREAM.CREATE.{taken}y", config)
    assert "overlap" in await refusal(f"{nats_server.url}/{taken}?replicas=1")
