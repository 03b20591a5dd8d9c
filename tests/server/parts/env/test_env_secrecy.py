"""Values of variables are in nothing that is shown, sent or stored."""

import copy
import json
import logging
import pickle
import random
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from pprint import pformat
from typing import Any

import msgspec
import pytest
from tests.cases import each_case
from tests.server.holding import MOST_HELD, measure_held
from tests.server.nodes import Nodes, open_nodes
from tests.server.parts.env.rooms import NEW, NO_CLOCK, OLD, VALUE, Room, env_of, make_app

from plait import CorruptThread, InvalidState, NotFound, Secret
from plait.parts.env.app_env import AppEnv
from plait.parts.env.sealer import Sealer
from plait.store.thread_rows import Record, RecordRange, ThreadKey
from plait.testing import Served
from plait.testing.asgi import HOST
from plait_client import CallError
from plait_schemas.codec import encode_json


@dataclass
class Holder:
    """Has a value beside others."""

    value: Any


def join(secret: Any) -> Any:
    return "".join(["Bearer ", secret])


WAYS: dict[str, Callable[[Any], Any]] = {
    "repr": repr,
    "str": str,
    "format": lambda secret: f"{secret} {secret!s:>40} {secret!r}",
    "percent": lambda secret: "%s %r" % (secret, secret),  # noqa: UP031
    "list": lambda secret: str([secret, {"k": secret}, Holder(secret)]),
    "pformat": pformat,
    "json": json.dumps,
    "json default": lambda secret: json.dumps([secret], default=str),
    "msgspec": lambda secret: msgspec.json.encode({"a": [secret]}),
    "msgpack": msgspec.msgpack.encode,
    "codec": encode_json,
    "to_builtins": msgspec.to_builtins,
    "pickle": pickle.dumps,
    "pickle 2": lambda secret: pickle.dumps([secret], 2),
    "state": lambda secret: secret.__getstate__(),
    "copy": copy.copy,
    "deepcopy": lambda secret: copy.deepcopy({"a": secret}),
    "asdict": lambda secret: asdict(Holder(secret)),
    "vars": vars,
    "dict": lambda secret: secret.__dict__,
    "iter": list,
    "bytes": bytes,
    "join": join,
    "concat": lambda secret: "Bearer " + secret,
    "hash": hash,
    "index": lambda secret: secret[0],
    "len": len,
}


@each_case("way", WAYS)
def test_no_way_but_reveal_shows_a_secret(way: str) -> None:
    try:
        found = WAYS[way](Secret(VALUE))
    except Exception as error:
        found = "".join(traceback.format_exception(error))
    assert VALUE not in (found.decode(errors="replace") if isinstance(found, bytes) else str(found))
    assert Secret(VALUE).reveal() == VALUE
    assert Secret(VALUE) == Secret(VALUE) != Secret("other")


async def test_a_secret_is_in_no_answer_error_or_log_and_not_in_the_state(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with make_app(env={"APP": VALUE}) as app:
        app.prepare_serving(HOST, in_development=True)
        room = app.thread(Room, "one")
        await room.part(Room.env).set("KEY", VALUE)
        shown = [repr(app), repr(app.settings), repr(vars(app)), repr(await env_of(app)), repr(room)]
        async with Served(app, NO_CLOCK, app, "").connect(Room, "one") as client:
            for name in ("KEY", "APP"):
                for call in ("answer", "fail", "put_in_state"):
                    with pytest.raises(CallError) as told:
                        await client.call(call, name)
                    with pytest.raises((InvalidState, RuntimeError, TypeError)) as caught:
                        await room.call(call, name)
                    for error in (told.value, caught.value):
                        # With the variables of each frame, as error reports have them.
                        found = traceback.TracebackException.from_exception(error, capture_locals=True)
                        shown += found.format()
        assert await room.state() == {"n": 0}
        shown += [record.getMessage() + (record.exc_text or "") for record in caplog.records]
        assert "Secret(***)" in "".join(shown)
        assert VALUE not in "".join(shown)
        assert VALUE not in caplog.text


async def test_a_refused_secret_is_in_no_traceback_even_with_the_variables_of_its_frames() -> None:
    async with make_app(secret=()) as app:
        env = await env_of(app)
        secret = Secret(VALUE)
        for other in (env, app.thread(Room, "one").part(Room.env), app.user("ada").env):
            with pytest.raises(RuntimeError) as caught:
                await other.set("KEY", secret)
            found = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
            assert VALUE not in "".join(found.format())


def read_files(folder: Path) -> list[bytes]:
    """Return the content of each file of a folder."""
    return [path.read_bytes() for path in folder.iterdir() if path.is_file()]


async def test_a_secret_is_in_no_byte_of_the_store_and_no_export(url: str, tmp_path: Path) -> None:
    async with make_app(url) as app:
        room = app.thread(Room, "one")
        await room.part(Room.env).set("KEY", VALUE)
        await app.user("ada").env.set("KEY", VALUE)
        exported = b"".join([lines async for lines in app.export_thread(Room, "one")])
        await app.fork_thread(Room, "one", "fork")
        await app.import_thread(exported, name="copy")
        for name in ("fork", "copy"):
            assert await app.thread(Room, name).call(Room.reveal, "KEY") == VALUE
        rows = [
            row.value or b""
            for key in (ThreadKey("room", "one"), ThreadKey("room", "fork"), ThreadKey("plait-user", "ada:"))
            for row in await app._store.records(key, RecordRange("env", limit=10))
        ]
    assert len(rows) == 3
    files = read_files(tmp_path)
    for data in (exported, *rows, *files):
        assert data
        assert VALUE.encode() not in data
        assert VALUE[3:].encode() not in data


async def test_the_same_value_is_encrypted_to_other_bytes_each_time(url: str) -> None:
    async with make_app(url) as app:
        env = await env_of(app)
        await env.set("A", VALUE)
        first = (await env.own())["A"].data
        await env.set("A", VALUE)
        assert (await env.own())["A"].data != first


# Redaction


async def test_redact_replaces_the_secrets_of_all_levels_and_keeps_texts(url: str) -> None:
    async with make_app(url, env={"APP": "app-secret"}) as app:
        room, ada = app.session(Room, "s1", user_id="ada"), app.user("ada")
        await ada.env.set("USERS", "user-secret")
        env = room.part(Room.env)
        await env.set("KEY", 'a "quoted"\nsecret')
        await env.set("LONG", "user-secret-and-more")
        await env.set("LABEL", "label", type="text")
        text = 'label app-secret user-secret user-secret-and-more a "quoted"\nsecret ' + json.dumps(
            'a "quoted"\nsecret'
        )
        assert await env.redact(text) == 'label *** *** *** *** "***"'
        assert await ada.env.redact(text) == 'label *** *** ***-and-more a "quoted"\nsecret "a \\"quoted\\"\\nsecret"'
        with pytest.raises(TypeError, match="takes a str"):
            await env.redact(7)  # type: ignore[arg-type]


async def test_redact_shows_no_part_of_secrets_that_overlap_and_keeps_white_space() -> None:
    env = AppEnv({"ONE": "abcdef", "TWO": "defghi", "TWICE": "xyx", "BLANK": " ", "STAR": "*"})
    assert await env.redact("an abcdefghi, xyxyx, abcdefdefghi and * end", {}) == "an ***, ***, ****** and *** end"


@each_case("most", [None, 0, 3, 6, 7, 20])
async def test_redact_finds_what_a_search_for_each_secret_finds(most: int | None) -> None:
    chance = random.Random(7)

    def write(most: int) -> str:
        return "".join(chance.choice("ab") for _ in range(chance.randint(1, most)))

    for _ in range(100):
        secrets, text = [write(6) for _ in range(5)], write(60)
        shown = await AppEnv({f"S{number}": each for number, each in enumerate(secrets)}).redact(text, {}, most=most)
        found = [(at, at + len(each)) for each in secrets for at in range(len(text)) if text.startswith(each, at)]
        places = {at for start, end in found for at in range(start, end)}
        kept = [letter for at, letter in enumerate(text[:most]) if at not in places]
        assert shown.replace("*", "") == "".join(kept)
        assert ("***" in shown) is bool(places & {*range(len(text) if most is None else most)})


@each_case(("digits", "beginnings"), [(32, 125_000), (290, 1)])
async def test_redact_holds_the_loop_for_no_longer_than_other_work(digits: int, beginnings: int) -> None:
    env = AppEnv({f"S{number}": f"sk-proj-{number}{'x' * digits}" for number in range(200)})
    text = f"{'sk-proj-' * beginnings} sk-proj-7{'x' * digits}"
    assert await measure_held(lambda: env.redact(text, {})) < MOST_HELD
    assert await env.redact(text, {}) == f"{'sk-proj-' * beginnings} ***"


# PLAIT_SECRET


async def test_the_first_secret_encrypts_and_all_decrypt_also_what_was_stored_before_a_thread_slept(url: str) -> None:
    async with make_app(url, secret=OLD) as app:
        for name in ("one", "two"):
            await (await env_of(app, name)).set("KEY", VALUE)
        await app.user("ada").env.set("KEY", VALUE)
    async with make_app(url, secret=[NEW, OLD]) as app:
        assert (await (await env_of(app, "two")).get("KEY")).reveal() == VALUE
        assert (await app.user("ada").env.get("KEY")).reveal() == VALUE
        assert await app.user("ada").env.redact(VALUE) == "***"
        await (await env_of(app, "one")).set("KEY", "new")
        await app.user("ada").env.set("KEY", "new")
    async with make_app(url, secret=NEW) as app:
        assert (await (await env_of(app, "one")).get("KEY")).reveal() == "new"
        assert (await app.user("ada").env.get("KEY")).reveal() == "new"
        env = await env_of(app, "two")
        with pytest.raises(CorruptThread, match="KEY was encrypted with a secret that is not in PLAIT_SECRET"):
            await env.get("KEY")
        await env.set("KEY", VALUE)  # It can be set again.
        assert (await env.get("KEY")).reveal() == VALUE


async def test_without_a_secret_variables_are_refused_with_a_sentence_that_says_what_to_do(url: str) -> None:
    async with make_app(url, secret=(), env={"APP": "app"}) as app:
        env = await env_of(app)
        for other in (env, app.thread(Room, "one").part(Room.env), app.user("ada").env):
            for type_ in (None, "text"):
                with pytest.raises(RuntimeError, match="encrypted with PLAIT_SECRET, which is not set: set it to"):
                    await other.set("KEY", VALUE, type=type_)  # type: ignore[arg-type]
        assert (await env.get("APP")).reveal() == "app"
        assert await env.redact("app") == "***"
    async with make_app(url, secret=NEW) as app:
        await (await env_of(app)).set("KEY", VALUE)
    async with make_app(url, secret=()) as app:
        with pytest.raises(RuntimeError, match="PLAIT_SECRET"):
            await (await env_of(app)).get("KEY")


def test_a_value_cannot_be_opened_under_another_name_or_changed() -> None:
    sealer = Sealer([NEW])
    data = sealer.seal("KEY", Secret(VALUE))
    assert sealer.open("KEY", data).reveal() == VALUE
    for name, changed in (
        ("OTHER", data),
        ("KEY", data[:-1] + bytes([data[-1] ^ 1])),
        ("KEY", data[:5] + bytes([data[5] ^ 1]) + data[6:]),
        ("KEY", data[:20]),
        ("KEY", data[:4]),
    ):
        with pytest.raises(CorruptThread, match="is damaged, or was stored under another name"):
            sealer.open(name, changed)
    for changed in (b"", b"abc", bytes([data[0] ^ 1]) + data[1:]):
        with pytest.raises(CorruptThread, match="not in PLAIT_SECRET"):
            sealer.open("KEY", changed)


def test_without_cryptography_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "plait.parts.env.sealer")
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(RuntimeError, match=r"pip install 'plait\[env\]'"):
        AppEnv(secrets=[NEW]).seal("KEY", VALUE)


async def test_a_damaged_row_is_an_error_that_says_so(url: str) -> None:
    async with make_app(url) as app:
        env = await env_of(app)
        await env.set("KEY", VALUE)
        await env._actor.records.write([Record("env", "KEY", b"[")])
    async with make_app(url) as app:
        with pytest.raises(CorruptThread, match="env/KEY of room/one cannot be read"):
            await env_of(app)


# Other processes


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with open_nodes(lambda: make_app(env={"APP": "app"})) as nodes:
        yield nodes


async def test_handles_and_users_of_other_nodes_have_the_variables_and_they_travel_encrypted(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    for app in nodes.apps:
        ask = app._node.everywhere.nodes.ask

        async def note(key: Any, request: Any, *, ask: Any = ask, **options: Any) -> Any:
            answer = await ask(key, request, **options)
            sent.extend([msgspec.msgpack.encode(request), answer])
            return answer

        monkeypatch.setattr(app._node.everywhere.nodes, "ask", note)
    room = nodes.handle(Room, 1).part(Room.env)
    find = nodes.apps[0]._owners.find
    name = next(f"user-{n}" for n in range(99) if find(ThreadKey("plait-user", f"user-{n}:")) == 1)
    user = nodes.apps[0].user(name).env
    for env in (room, user):
        await env.set("KEY", VALUE)
        await env.set("LABEL", "label", type="text")
        assert (await env.get("KEY")).reveal() == VALUE
        assert (await env.get("APP")).reveal() == "app"
        assert [await env.type_of(each) for each in ("KEY", "LABEL", "NONE")] == ["secret", "text", "secret"]
        assert await env.redact(f"{VALUE} label app") == "*** label ***"
        with pytest.raises(NotFound, match="NONE"):
            await env.get("NONE")
        await env.delete("KEY")
        with pytest.raises(NotFound, match="KEY"):
            await env.get("KEY")
    # A thread here asks for the variables of its user there.
    await user.set("USERS", VALUE)
    here = next(f"{name}:s{n}" for n in range(99) if find(ThreadKey("room", f"{name}:s{n}")) == 0)
    assert await nodes.apps[0].thread(Room, here).part(Room.env).get("USERS") == Secret(VALUE)
    assert len(sent) > 20
    assert VALUE.encode() not in b"".join(sent)
