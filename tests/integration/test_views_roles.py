"""Readers whose picture changes while they push, whose role changes, and who read slowly."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import BaseModel, ValidationInfo, field_validator, model_validator
from starlette.requests import Request
from tests.cases import each_case
from tests.integration.native_client import NativeClient, joined
from tests.integration.socket_client import connected, http
from tests.running import begin, running

from plait import Handle, MemoryStore, Plait, Principal, Thread, rpc
from plait_client import connect

pytestmark = pytest.mark.relayed

SECRET = "hidden-93ab"
START: Any = {"turn": "ada", "table": [], "hands": {"ada": [SECRET], "bob": ["b"], "7": ["s"]}, "deck": [SECRET]}
PATTERNS = ("/turn", "/table/**", "/hands/{user}/**")

_numbers = itertools.count()


class Game(Thread[dict[str, Any]]):
    initial_state: Any = START
    can_read: Any = PATTERNS

    @rpc
    def fill(self, size: int) -> None:
        """Send a long event, which fills the buffers of slow readers."""
        self.emit("fill", "x" * size)

    @rpc
    def sync(self) -> int:
        return self.version


class OpenGame(Game):
    def can_read(self, state: Any, viewer: Principal | None) -> Sequence[str]:
        if state["turn"] == "broken":
            raise ValueError("nobody knows")
        if state["turn"] == "wrong":
            return "/turn"
        sees_all = state["turn"] == "over" or (viewer is not None and "observers" in viewer.groups)
        return ("/**",) if sees_all else PATTERNS


def authenticate(request: Request) -> Principal | None:
    header = request.headers.get("authorization", "").removeprefix("Bearer ")
    user, _, group = (request.query_params.get("token") or header).partition(":")
    return Principal(user, groups={group}) if user else None


@asynccontextmanager
async def serving(cls: type[Game] = OpenGame) -> AsyncIterator[tuple[str, Handle[Game]]]:
    """Serve a game; yields the address of it and its handle."""
    app = Plait(cls, secret="s", store=MemoryStore(), limits=None, authenticate=authenticate)
    async with running(app) as address:
        await begin(app, cls)
        yield address, app.thread(cls, "one")


def join(address: str, token: str, cls: type[Game] = OpenGame) -> Any:
    """Join as the user of a token."""
    return joined(address, f"/threads/{cls._kind.name}/one", f"c{next(_numbers)}", token=token)


def put(path: str, value: Any) -> dict[str, Any]:
    return {"op": "replace", "path": path, "value": value}


def add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def kinds(client: NativeClient, after: int = 0) -> list[tuple[str, int]]:
    """Return the types and versions of the frames that tell of changes."""
    told = [
        frame for frame in client.frames if frame["type"] in ("joined", "change", "changes", "snapshot", "ack", "nack")
    ]
    return [(frame["type"], frame.get("version", frame.get("to"))) for frame in told if frame.get("version", 0) > after]


# Rule 6: another picture comes as a whole, with the change, and after the answer to one's own push


async def test_others_get_the_whole_picture_as_the_change_that_shows_or_hides_a_place() -> None:
    async with serving() as (address, game), join(address, "bob") as bob, join(address, "olga:observers") as olga:
        assert SECRET not in str(bob.frames)
        epoch = bob.epoch
        await game.set_state(lambda state: {**state, "turn": "over"})
        await bob.until(lambda bob: bob.version == 1)
        assert bob.state == olga.state == {**START, "turn": "over"}
        assert bob.of("snapshot")[0]["epoch"] == olga.epoch != epoch
        await game.set_state(lambda state: {**state, "turn": "bob", "deck": ["more"]})
        await game.set_state(lambda state: {**state, "deck": [SECRET]})
        await bob.until(lambda bob: bob.version == 3)
        assert kinds(bob) == [("snapshot", 1), ("snapshot", 2), ("change", 3)]
        assert kinds(olga) == [("change", 1), ("change", 2), ("change", 3)]
        assert bob.of("snapshot")[1]["epoch"] == epoch
        assert bob.of("change") == [{"type": "change", "version": 3, "ops": [], "source": "hidden"}]
        assert bob.state == {"turn": "bob", "table": [], "hands": {"bob": ["b"]}}
        await game.set_state(lambda state: {**state, "turn": "ada"})
        await bob.until(lambda bob: bob.version == 4)
        assert bob.of("change")[-1]["source"] == "server"


async def test_a_client_gets_the_whole_picture_after_the_answer_to_its_own_push() -> None:
    async with serving() as (address, _), join(address, "bob") as bob, join(address, "ada") as ada:
        # All three are on their way at once: the first shows, the last hides.
        for op in (put("/turn", "over"), add("/hands/bob/0", "mine"), put("/turn", "on")):
            await bob.push(op)
        await ada.until(lambda ada: ada.version == 3)
        await bob.until(lambda bob: not bob.pending and bob.of("snapshot") and bob.state["turn"] == "on")
        frames = kinds(bob)
        assert [frame for frame in frames if frame[0] == "ack"] == [("ack", 1), ("ack", 2), ("ack", 3)]
        for kind, version in frames:
            if kind == "snapshot":
                assert ("ack", version) in frames[: frames.index((kind, version))]
        assert frames[-1] == ("snapshot", 3)
        assert bob.state == {"turn": "on", "table": [], "hands": {"bob": ["mine", "b"]}}
        assert ada.state == {"turn": "on", "table": [], "hands": {"ada": [SECRET]}}


@each_case("cls", [Game, OpenGame])
async def test_official_clients_show_their_own_pushes_while_their_picture_changes(cls: type[Game]) -> None:
    async with (
        serving(cls) as (address, _),
        connect(f"ws://{address}/threads/{cls._kind.name}/one", token="bob") as bob,
        connect(f"ws://{address}/threads/{cls._kind.name}/one", token="ada") as ada,
    ):
        made = []
        for number in range(40):
            made.append(bob.update("/turn", "over" if number % 4 == 1 else f"on {number}"))
            made += [bob.update("/hands/bob/0", f"{number}"), ada.update("/table", [f"{number}"])]
            if number % 3 == 0:
                await ada.call("sync")
        await asyncio.gather(*made)
        for room, user in ((bob, "bob"), (ada, "ada")):
            assert await room.call("sync") == room.version
            assert room.state == room.confirmed
            assert room.state["turn"] == "on 39"
            assert set(room.state) == {"turn", "table", "hands"}
            assert set(room.state["hands"]) == {user}
        assert bob.state["hands"]["bob"] == ["39"]


# Roles


async def test_a_renewed_token_with_other_groups_brings_the_whole_picture_at_once() -> None:
    async with serving() as (address, _), join(address, "bob") as bob, http(address) as web:
        for number, token in enumerate(("bob:observers", "bob", "bob:observers", "bob:others")):
            epoch, version = bob.epoch, bob.version
            await bob.send("auth", token=token)
            await bob.until(lambda bob, epoch=epoch: bob.of("snapshot") and bob.of("snapshot")[-1]["epoch"] != epoch)
            snapshot = bob.of("snapshot")[-1]
            assert snapshot["version"] == version
            assert (SECRET in str(snapshot)) is token.endswith(":observers")
            # This push was made before the client knew of its other picture.
            await bob.send("push", ref=number + 1, base=[epoch, version], ops=[add("/hands/bob/0", number)])
            bob._sent.append(_Sent(number + 1, [add("/hands/bob/0", number)]))
            await bob.until(lambda bob, number=number: bob.of("ack", ref=number + 1))
            bob.epoch = snapshot["epoch"]
            answer = await web.get("/threads/open-game/one", headers={"authorization": f"Bearer {token}"})
            assert bob.state == answer.json()
            assert answer.headers["etag"] == f'"{bob.epoch}:{bob.version}"'
        bob.frames.clear()
        await bob.send("auth", token="bob")
        await bob.call("sync")
        assert bob.of("snapshot") == []


class _Sent:
    """A push that the client does not resend."""

    def __init__(self, ref: int, ops: Sequence[dict[str, Any]]) -> None:
        self.ref = ref
        self.ops = ops


async def test_a_token_of_another_user_brings_no_picture_but_the_end() -> None:
    async with serving() as (address, _), join(address, "bob") as bob:
        await bob.send("auth", token="ada")
        assert await bob.until_closed() == 4403
        assert SECRET not in str(bob.frames)


@each_case("turn", ["broken", "wrong"])
async def test_a_method_that_fails_shows_nothing_and_is_reported(turn: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    async with serving() as (address, game), join(address, "bob") as bob, http(address) as web:
        await game.set_state(lambda state: {**state, "turn": turn})
        await bob.until(lambda bob: bob.version == 1)
        assert bob.state == {}
        headers = {"authorization": "Bearer olga:observers"}
        assert (await web.get("/threads/open-game/one", headers=headers)).json() == {}
        ref = await bob.push(put("/turn", "mine"))
        await bob.until(lambda bob: bob.of("nack", ref=ref))
        assert bob.of("nack")[0]["code"] == "forbidden"
        async with join(address, "eve") as eve:
            assert eve.state == {}
        await game.set_state(lambda state: {**state, "turn": "on"})
        await bob.until(lambda bob: bob.version == 2)
        assert bob.state["hands"] == {"bob": ["b"]}
    assert any(each.exc_info for each in caplog.records)
    assert SECRET not in str(bob.frames)


# Errors of validation


class Ledger(BaseModel):
    """Its hidden member does not fit all titles."""

    title: str = ""
    count: int = 0
    sums: dict[str, int] = {SECRET: 1}

    @field_validator("sums")
    @classmethod
    def check(cls, sums: dict[str, int], info: ValidationInfo) -> dict[str, int]:
        if info.data.get("title") == "bad":
            raise ValueError(f"no good sums: {sums}")
        return sums

    @model_validator(mode="after")
    def check_all(self) -> "Ledger":
        if self.title == "worse":
            raise ValueError(f"no good ledger: {self.sums}")
        return self


class Book(Thread[Ledger]):
    initial_state: Any = Ledger()
    can_read = ("/title", "/count")


async def test_errors_of_validation_name_no_place_that_is_hidden(caplog: pytest.LogCaptureFixture) -> None:
    app = Plait(Book, secret="s", store=MemoryStore(), authenticate=authenticate)
    async with running(app) as address, http(address) as web:
        await begin(app, Book)
        headers = {"authorization": "Bearer bob"}
        told: list[Any] = []
        async with joined(address, "/threads/book/one", "c", token="bob") as bob:
            for op in (put("/title", "bad"), put("/title", "worse"), put("/count", "no number")):
                ref = await bob.push(op)
                await bob.until(lambda bob, ref=ref: bob.of("nack", ref=ref))
                told.append(bob.of("nack", ref=ref)[0])
        for wrong in (
            {"title": "bad", "count": 0},
            {"title": "worse", "count": 0},
            {"title": "", "count": "no number"},
        ):
            answer = await web.put("/threads/book/one", json=wrong, headers=headers)
            assert answer.status_code == 422
            told.append(answer.json()["error"])
    assert [error["code"] for error in told] == ["invalid_state"] * 6
    assert [error.get("path") for error in told] == [None, None, "/count"] * 2
    assert SECRET not in str(told)
    assert SECRET not in caplog.text


# Readers who read slowly


async def fill(client: NativeClient, games: NativeClient) -> None:
    """Have the server send more than all buffers of a reader hold, who does not read."""
    client.socket.transport.pause_reading()
    for _ in range(60):
        await games.call("fill", 300_000)


@each_case("cls", [Game, OpenGame])
async def test_a_slow_reader_gets_what_it_sees_of_missed_changes(cls: type[Game]) -> None:
    async with serving(cls) as (address, game), join(address, "ada", cls) as ada, join(address, "bob", cls) as bob:
        await fill(bob, ada)
        for number in range(20):
            ref = await ada.push(add("/hands/ada/0", f"{SECRET}-{number}"), put("/turn", f"{number}"))
            await ada.until(lambda ada, ref=ref: ada.of("ack", ref=ref))
        await game.set_state(lambda state: {**state, "deck": [SECRET, SECRET]})
        bob.socket.transport.resume_reading()
        await bob.until(lambda bob: bob.version == 21)
        assert bob.of("snapshot" if cls is OpenGame else "changes")
        assert bob.state == {"turn": "19", "table": [], "hands": {"bob": ["b"]}}
        assert SECRET not in str(bob.frames)


async def test_a_slow_reader_is_not_told_what_was_hidden_while_it_did_not_read() -> None:
    async with serving() as (address, game), join(address, "ada") as ada, join(address, "bob") as bob:
        await game.set_state(lambda state: {**state, "turn": "over", "hands": {"ada": []}, "deck": []})
        await bob.until(lambda bob: bob.version == 1)
        await fill(bob, ada)
        passing = ({"turn": "on"}, {"deck": [SECRET]}, {"hands": {"ada": [SECRET]}}, {"deck": [], "hands": {}})
        for change in (*passing, {"turn": "over"}):
            await game.set_state(lambda state, change=change: {**state, **change})
        bob.socket.transport.resume_reading()
        await bob.until(lambda bob: bob.version == 6)
        assert bob.state == {"turn": "over", "table": [], "hands": {}, "deck": []}
        assert SECRET not in str(bob.frames)


async def test_a_slow_reader_whose_token_is_renewed_gets_the_picture_of_its_new_role() -> None:
    async with serving() as (address, game), join(address, "ada") as ada, join(address, "bob:observers") as bob:
        await fill(bob, ada)
        await game.set_state(lambda state: {**state, "turn": "on"})
        await bob.send("auth", token="bob")
        await ada.call("sync")
        await game.set_state(lambda state: {**state, "deck": ["later"]})
        bob.socket.transport.resume_reading()
        await bob.until(lambda bob: bob.version == 2)
        await bob.until(lambda bob: "deck" not in bob.state)
        await game.set_state(lambda state: {**state, "deck": ["last"]})
        await bob.until(lambda bob: bob.version == 3)
        assert bob.of("change")[-1]["ops"] == []
        assert "last" not in str(bob.frames)


# Rules 2 and 3: places that may be elements of an array, and users whose ids look like patterns


@each_case("user", ["7", "0", "-", "*", "{user}"])
async def test_users_with_strange_ids_see_their_own_hands_only(user: str) -> None:
    hands = {"7": ["of 7"], "0": ["of 0"], "-": ["of -"], "*": ["of *"], "{user}": ["of {user}"]}
    async with serving(Game) as (address, game), join(address, user, Game) as one, join(address, user, Game) as other:
        versions = itertools.count(1)

        async def check(hands: Any, turn: str, seen: Any) -> None:
            await game.set_state({**START, "hands": hands, "turn": turn})
            version = next(versions)
            for client in (one, other):
                await client.until(lambda client: client.version == version)
                assert client.state == {"turn": turn, "table": [], "hands": seen}

        lists = [[f"{SECRET} {number}"] for number in range(9)]
        for number in range(3):
            await check(hands, f"{number}", {user: [f"of {user}"]})
            # One operation, and one beside another.
            await check({**hands, user: ["new"]}, f"{number}", {user: ["new"]})
            await check({**hands, user: ["more"]}, f"{number}+", {user: ["more"]})
            await check(lists, f"{number}+", None)
            for changed in (0, 7, 8):
                await check([*lists[:changed], [SECRET], *lists[changed + 1 :]], f"{number}+", None)
                await check(lists, f"{changed}", None)
        assert SECRET not in str((one.frames, other.frames))


async def test_a_page_of_the_cloudflare_protocol_follows_what_it_sees() -> None:
    async with (
        serving() as (address, game),
        connected(address, "/threads/open-game/one", query={"token": "bob"}) as page,
    ):
        await page.until(lambda page: page.states)
        for turn in ("over", "on", "over", "off"):
            await game.set_state(lambda state, turn=turn: {**state, "turn": turn})
            hidden = {"turn": turn, "table": [], "hands": {"bob": ["b"]}}
            await page.until_state({**START, "turn": turn} if turn == "over" else hidden)
