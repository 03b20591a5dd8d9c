"""Clients that see a part of a state: what they are sent, what they may push, and how another part comes to them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel, model_validator
from tests.cases import each_case
from tests.server.rooms import House, open_house
from tests.server.session.guests import Guest, add, joined, opening, put, remove, until

from plait.actor.actor import Actor
from plait.actor.connection import Rights
from plait.actor.thread import Thread
from plait.state.principal import Principal

ADA, BOB, STAFF = Principal("ada"), Principal("bob"), Principal("eve", groups={"staff"})
BOBS = {"turn": "ada", "hands": {"bob": ["B"]}, "rows": [{"name": "one"}]}


START: dict[str, Any] = {
    "turn": "ada",
    "hands": {"ada": ["A"], "bob": ["B"]},
    "deck": ["D"],
    "rows": [{"name": "one", "price": 1}],
}


class Game(Thread[Any]):
    """A game with hidden hands."""

    initial_state = START
    can_read = ("/turn", "/hands/{user}/**", "/rows/*/name")


class OpenGame(Game):
    """Staff see everything, and all do when the game is over."""

    def can_read(self, state: Any, viewer: Principal | None) -> Any:  # type: ignore[override]
        if state["turn"] == "broken":
            raise ZeroDivisionError
        is_staff = viewer is not None and "staff" in viewer.groups
        return ("/**",) if state["turn"] == "over" or is_staff else Game.can_read


@pytest.fixture(params=[Game, OpenGame])
async def game(request: pytest.FixtureRequest) -> AsyncIterator[Actor]:
    async with open_house(request.param) as house:
        yield await house.actor(request.param)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(OpenGame) as house:
        yield house


async def settle(actor: Actor, *guests: Guest) -> list[Any]:
    """Wait until everything is sent, and return the frames of each guest."""
    await actor.wait_until_idle()
    await until(lambda: not any(guest.session._follower.is_behind for guest in guests))
    return [guest.frames for guest in guests]


async def test_a_client_joins_with_what_it_sees_under_an_epoch_of_its_own(game: Actor) -> None:
    joins = [await opening(game, "a", principal=each) for each in (BOB, None, ADA)]
    bob, anonymous, ada = (frame["state"] for _, frame in joins)
    assert bob == BOBS
    assert anonymous == {**BOBS, "hands": {}}
    assert ada == {**BOBS, "hands": {"ada": ["A"]}}
    epochs = {guest.session._follower.epoch for guest, _ in joins}
    assert len(epochs) == 3
    assert all(epoch.startswith(f"{game.state.epoch}.") for epoch in epochs)


async def test_changes_are_told_as_far_as_they_are_seen(game: Actor) -> None:
    bob = await joined(game, "a", principal=BOB)
    await game.thread.update("/deck", ["E"])
    with game.thread.transaction():
        game.thread.update("/turn", "bob")
        game.thread.update("/hands/ada/-", "X")
    await game.thread.update("/rows/-", {"name": "two", "price": 2})
    (frames,) = await settle(game, bob)
    assert frames == [
        {"type": "change", "version": 1, "ops": [], "source": "hidden"},
        {"type": "change", "version": 2, "ops": [add("/turn", "bob")], "source": "server"},
        {"type": "change", "version": 3, "ops": [add("/rows/-", {"name": "two"})]},
    ]


async def test_a_user_whose_id_looks_like_an_index_sees_its_own_member(game: Actor) -> None:
    await game.thread.update("/hands/3", ["T"])
    guest, frame = await opening(game, "a", principal=Principal("3"))
    assert frame["state"]["hands"] == {"3": ["T"]}
    await game.thread.update("/hands/3/-", "U")
    with game.thread.transaction():
        game.thread.update("/hands/3/-", "V")
        game.thread.update("/turn", "bob")
    (frames,) = await settle(game, guest)
    whole = {**BOBS, "turn": "bob", "hands": {"3": ["T", "U", "V"]}}
    assert [frame["ops"] for frame in frames] == [[add("/hands/3/-", "U")], [put("", whole)]]


@each_case(
    "ops",
    [
        [put("/hands/ada/0", "guess")],
        [remove("/hands/ada/7")],
        [add("/hands/ada/99", 1)],
        [put("/hands/eve", 1)],
        [{"op": "splice", "path": "/deck/0", "at": 99, "insert": "x"}],
        [put("/rows/0", {})],
        [put("/rows/0/price", 2)],
        [remove("/hands")],
        [put("", {})],
    ],
)
async def test_a_push_to_what_is_not_seen_whole_is_refused_and_tells_nothing(ops: list[Any]) -> None:
    async with open_house(Game) as house:
        game = await house.actor(Game)
        bob = await joined(game, "a", principal=BOB)
        bob.push(put("/turn", "mine"), *ops, base=0)
        (frames,) = await settle(game, bob)
        (nack,) = frames
        assert (nack["type"], nack["code"], nack["path"]) == ("nack", "forbidden", ops[0]["path"])
        assert nack["message"] == "this client may not change what it does not see"
        assert game.state.current.version == 0


async def test_a_push_may_be_based_on_any_picture_and_merges_with_what_is_hidden(game: Actor) -> None:
    bob = await joined(game, "a", principal=BOB)
    await game.thread.update("/hands/ada/-", "X")
    for ref, epoch in enumerate([game.state.epoch, f"{game.state.epoch}.0123456789ab"], 1):
        bob.send("push", ref=ref, base=[epoch, 0], ops=[add("/hands/bob/0", f"{ref}")])
    (frames,) = await settle(game, bob)
    assert [frame["type"] for frame in frames] == ["change", "ack", "ack"]
    assert game.thread.state["hands"] == {"ada": ["A", "X"], "bob": ["2", "1", "B"]}


async def test_an_ack_tells_only_what_is_seen_where_the_log_has_the_whole_state(game: Actor) -> None:
    bob = await joined(game, "a", principal=BOB)
    bob.push(*[put("/hands/bob", [n]) for n in range(500)], base=0)
    (frames,) = await settle(game, bob)
    assert frames == [
        {"type": "ack", "ref": 1, "version": 1, "ops": [put("", {**BOBS, "hands": {"bob": [499]}})]},
    ]


async def test_a_client_resumes_with_operations_only_where_its_view_cannot_vary(game: Actor) -> None:
    bob = await joined(game, "a", principal=BOB)
    have = bob.session._follower.epoch, 0
    _, frame = await opening(game, "a", principal=BOB, have=have)
    assert "state" not in frame
    await game.thread.update("/turn", "bob")
    await game.thread.update("/deck", [])
    _, frame = await opening(game, "a", principal=BOB, have=have)
    if isinstance(game.thread, OpenGame):
        assert frame["state"] == {**BOBS, "turn": "bob"}
    else:
        assert frame["ops"] == [add("/turn", "bob")]
    for epoch in (game.state.epoch, f"{have[0]}0"):
        _, frame = await opening(game, "a", principal=BOB, have=(epoch, 0))
        assert frame["state"] == {**BOBS, "turn": "bob"}


async def test_a_slow_reader_catches_up_on_what_it_sees(game: Actor) -> None:
    bob = await joined(game, "a", principal=BOB)
    bob.transport.is_backed_up = True
    for n in range(3):
        await game.thread.update("/deck/-", n)
    await game.thread.update("/turn", "bob")
    assert bob.frames == []
    bob.transport.is_backed_up = False
    bob.session.drained()
    (frame,) = bob.frames
    if isinstance(game.thread, OpenGame):
        assert (frame["type"], frame["state"]) == ("snapshot", {**BOBS, "turn": "bob"})
    else:
        assert (frame["type"], frame["ops"]) == ("changes", [add("/turn", "bob")])


async def test_a_reader_whose_view_changes_is_sent_the_whole_picture_before_anything_else(house: House) -> None:
    game = await house.actor(OpenGame)
    bob = await joined(game, "a", principal=BOB)
    staff = await joined(game, "b", principal=STAFF)
    await game.thread.update("/turn", "over")
    game.thread.emit("over")
    await game.thread.update("/deck", [])
    await game.thread.update("/turn", "ada")
    bobs, staffs = await settle(game, bob, staff)
    assert [frame["type"] for frame in bobs] == ["snapshot", "event", "change", "snapshot"]
    assert bobs[0]["epoch"] == game.state.epoch
    assert bobs[0]["state"] == {**START, "turn": "over"}
    assert bobs[3]["state"] == BOBS
    assert bobs[3]["epoch"] == bob.session._follower.epoch != game.state.epoch
    assert [frame["type"] for frame in staffs] == ["change", "event", "change", "change"]


async def test_a_push_that_changes_the_view_of_its_client_is_answered_first(house: House) -> None:
    game = await house.actor(OpenGame)
    bob = await joined(game, "a", principal=BOB)
    bob.push(put("/turn", "over"), base=0)
    (frames,) = await settle(game, bob)
    assert [frame["type"] for frame in frames] == ["ack", "snapshot"]
    assert frames[1]["state"] == {**START, "turn": "over"}


async def test_an_answer_takes_back_what_is_hidden_by_now(house: House) -> None:
    async def renew(_: str) -> Rights:
        return Rights(Principal("eve"))

    game = await house.actor(OpenGame)
    eve = await joined(game, "a", principal=STAFF, renew=renew)
    house.store.is_held = True
    eve.push(put("/deck/0", "mine"), base=0)
    eve.send("auth", token="a user without groups")
    await until(lambda: eve.session._tokens._task is None)
    house.store.resume()
    (frames,) = await settle(game, eve)
    assert [frame["type"] for frame in frames] == ["snapshot", "ack"]
    assert frames[1]["ops"] == []


async def test_a_renewed_token_with_other_groups_brings_another_picture(house: House) -> None:
    async def renew(token: str) -> Rights:
        return Rights(Principal("bob", groups=token.split()))

    game = await house.actor(OpenGame)
    bob = await joined(game, "a", principal=BOB, renew=renew)
    states = []
    for token in ("staff", "staff other", ""):
        bob.send("auth", token=token)
        await until(lambda: bob.session._tokens._task is None)
        (frames,) = await settle(game, bob)
        states.append([frame["state"] for frame in frames])
    assert states == [[START], [], [BOBS]]


async def test_a_method_that_raises_shows_nothing_and_is_reported(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    game = await house.actor(OpenGame)
    bob = await joined(game, "a", principal=BOB)
    await game.thread.update("/turn", "broken")
    (frames,) = await settle(game, bob)
    assert [(frame["type"], frame["state"]) for frame in frames] == [("snapshot", {})]
    await until(lambda: "ZeroDivisionError" in caplog.text)
    bob.push(put("/turn", "mine"), base=1)
    (frames,) = await settle(game, bob)
    assert [(frame["type"], frame["code"]) for frame in frames] == [("nack", "forbidden")]


async def test_a_method_is_asked_once_for_each_principal_and_its_error_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[Principal | None] = []

    class Asked(OpenGame):
        def can_read(self, state: Any, viewer: Principal | None) -> Any:
            asked.append(viewer)
            return set() if state["turn"] == "no tuple" else ("/turn", "/rows")

    async with open_house(Asked) as house:
        game = await house.actor(Asked)
        guests = [await joined(game, str(n), principal=each) for n, each in enumerate((None, None, None, BOB, STAFF))]
        asked.clear()
        await game.thread.update("/turn", "no tuple")
        assert asked == [None, BOB, STAFF]
        frames = await settle(game, *guests)
        assert [[frame["state"] for frame in each] for each in frames] == [[{}]] * len(guests)
        await until(lambda: "must be a tuple" in caplog.text)
        assert len([each for each in caplog.records if each.levelname == "ERROR"]) == 1


async def test_patterns_in_another_order_are_the_same_picture() -> None:
    class Mixed(OpenGame):
        def can_read(self, state: Any, viewer: Principal | None) -> Any:
            return ["/turn", "/rows", "/turn"] if state["turn"] == "ada" else ("/rows", "/turn")

    async with open_house(Mixed) as house:
        game = await house.actor(Mixed)
        bob = await joined(game, "a", principal=BOB)
        await game.thread.update("/turn", "bob")
        (frames,) = await settle(game, bob)
        assert [frame["type"] for frame in frames] == ["change"]


async def test_a_client_that_gets_no_frames_of_the_protocol_gets_no_picture(house: House) -> None:
    async def renew(token: str) -> Rights:
        return Rights(Principal("bob", groups={token}))

    game = await house.actor(OpenGame)
    bob = await joined(game, "a", principal=BOB, renew=renew)
    bob.connection.protocol_enabled = False
    bob.push(put("/turn", "over"), base=0)
    bob.send("auth", token="staff")
    await until(lambda: bob.session._tokens._task is None)
    await game.thread.update("/turn", "ada")
    await game.wait_until_idle()
    assert [frame["type"] for frame in bob.frames] == ["ack"]


async def test_an_event_waits_for_the_picture_before_it_and_does_not_hasten_it(house: House) -> None:
    game = await house.actor(OpenGame)
    guests = [await joined(game, str(n), principal=Principal(f"u{n}")) for n in range(80)]
    followers = [guest.session._follower for guest in guests]
    game.thread.update("/turn", "over").then(lambda _: game.thread.emit("over"))
    await until(lambda: followers[0].is_behind)
    await until(lambda: not followers[0].is_behind)
    assert followers[-1].is_behind
    for frames in await settle(game, *guests):
        assert [frame["type"] for frame in frames] == ["snapshot", "event"]


class Form(BaseModel):
    """Has a secret that follows its title, and must not be short."""

    title: str = "title"
    secret: dict[str, str] = {"key": "title"}

    @model_validator(mode="after")
    def check(self) -> "Form":
        if self.title == "short":
            raise ValueError(f"the secret is {self.secret}")
        if self.title != "kept":
            self.secret = {f"key of {self.title}": self.title}
        return self


class Office(Thread[Form]):
    """Shows the title."""

    initial_state = Form(title="kept")
    can_read = ("/title",)


@each_case("title", ["short", "other"])
async def test_an_error_names_nothing_that_its_client_does_not_see(title: str) -> None:
    async with open_house(Office) as house:
        office = await house.actor(Office)
        bob = await joined(office, "a", principal=BOB)
        bob.push(put("/title", title), base=0)
        (frames,) = await settle(office, bob)
        (nack,) = frames
        assert nack["type"] == "nack"
        assert "path" not in nack
        assert "key" not in str(nack)
        bob.push(put("/title", 7), base=0)
        (frames,) = await settle(office, bob)
        assert frames[0]["path"] == "/title"
