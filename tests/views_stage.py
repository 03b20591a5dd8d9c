"""A game whose state is full of secrets, its readers at all doors, and what happens in it."""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.views_app import find_picture
from tests.views_readers import DEALER, CloudflareReader, NativeReader, Stream, Tape, User

__all__ = ["Stage", "add", "open_stage", "put", "remove", "splice", "version_of"]


def add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def put(path: str, value: Any) -> dict[str, Any]:
    return {"op": "replace", "path": path, "value": value}


def remove(path: str) -> dict[str, Any]:
    return {"op": "remove", "path": path}


def splice(path: str, insert: str, at: int = 0) -> dict[str, Any]:
    return {"op": "splice", "path": path, "at": at, "insert": insert}


def version_of(id: str) -> int:
    """Return the version in the id of an event, an entity tag, or a version of AG-UI."""
    return int((id.strip(chr(34)) or ":-1").split(":")[1])


class Stage:
    """A game: the writers, and the readers by user, who see what they see at different doors."""

    def __init__(
        self, tape: Tape, addresses: Sequence[str], kind: str, name: str, *, is_anonymous: bool, filler: str
    ) -> None:
        self.tape = tape
        # A part of many values, which makes the state large.
        self.filler = filler
        self.kind = kind
        self.name = name
        self.addresses = addresses
        self.is_anonymous = is_anonymous
        # Whether what a user sees is found by a method.
        self.varies = kind == "open-game"
        self.users: dict[str, User] = {}
        # Who reads at which door, besides the writers.
        self.sockets: list[tuple[str, NativeReader]] = []
        self.events: list[tuple[str, Stream]] = []
        self.pages: list[tuple[str, CloudflareReader]] = []
        self.runs: list[tuple[str, Stream]] = []
        self.version = 0

    # Users

    def user(self, name: str, at: int = 0) -> User:
        """Return a user of the game, at the first address or another."""
        return self.users[f"{name}{at}"]

    @property
    def readers(self) -> Sequence[str]:
        """The users who may not see everything."""
        return ("nobody",) if self.is_anonymous else ("bob", "eve")

    def secret(self, *users: str) -> str:
        """Return a new secret of some users, and of observers."""
        return self.tape.make(*users, *(("olga",) if self.varies else ()))

    def picture(self, state: Any, user: str) -> Any:
        """Return what a user sees of a state, as the documentation has it."""
        if self.varies and state["turn"] == "closed":
            return {}
        if self.varies and (state["turn"] == "over" or user == "olga"):
            return state
        return find_picture(state, None if self.is_anonymous else user)

    # Changes

    async def change(self, *steps: Sequence[Any]) -> None:
        """Have the server make some changes, in one turn."""
        self.version = await self.user(DEALER).call("change", steps)

    async def whole(self) -> Any:
        """Return the whole state."""
        return await self.user(DEALER).call("whole")

    async def deal(self) -> None:
        """Fill the state."""
        secret = self.secret
        await self.change(
            [
                put(
                    "/hands", {"ada": [secret("ada"), secret("ada")], "bob": [secret("bob") + self.filler], "olga": []}
                ),
                put("/deck", [secret() + self.filler for _ in range(4)]),
                put("/players", {"ada": 1, "bob": 2}),
                put("/vault", {secret(): secret() + self.filler}),
                put("/rows", [self.row("first"), self.row("second"), self.row("third")]),
                put("/tiers", {"1": self.row("gold"), "2": self.row(secret())}),
                put("/story", {"public": "Once ", "private": f"in truth {secret()}"}),
                put("/blurb", f"all about {secret()}"),
            ]
        )

    def row(self, name: str) -> dict[str, Any]:
        """Return a row whose name alone is seen."""
        secret = self.secret
        return {"name": name, "price": secret(), "notes": {secret(): secret() + self.filler}}

    async def act(self) -> None:
        """Change everything, by the server and by ada."""
        secret, at = self.secret, secrets.token_hex(2)
        await self.change([add("/deck/-", secret()), add("/deck/0", secret())], [put("/deck/0", secret())])
        await self.change([remove("/deck/0")], [add(f"/vault/{secret()}", secret())])
        await self.change([add("/rows/1", self.row(f"row {at}"))], [put("/rows/0/price", secret())])
        await self.change([put("/rows/0", self.row("new"))], [add(f"/rows/1/notes/{secret()}", secret())])
        rows = (await self.whole())["rows"]
        await self.change([put("/rows", rows[::-1])], [put("/rows", rows[1:])], [put("/rows/0/name", at)])
        await self.change([put("/tiers/1/price", secret())], [put("/tiers/1/name", at), put("/deck/0", secret())])
        await self.change([put("/tiers/2", self.row(secret()))], [add("/tiers/3", self.row(secret()))])
        await self.change([remove("/tiers/1"), remove("/tiers/3")], [add("/tiers/1", self.row("gold"))])
        await self.change(
            [splice("/story/private", secret())], [splice("/story/public", at), splice("/blurb", secret())]
        )
        await self.change([put("/story", {"public": f"{at} then", "private": secret()})])
        await self.change([add("/hands/ada/0", secret("ada")), add("/hands/bob/0", secret("bob"))])
        await self.change([put("/hands", {"ada": [secret("ada")], "bob": [secret("bob")], "olga": []})])
        await self.change([add("/hands/eve", [secret("eve")]), add("/players/eve", 3)], [remove("/hands/eve")])
        await self.change([add("/table/-", at), put("/turn", at)], [put("/vault", {secret(): secret()})])
        if not self.is_anonymous:
            await self.play_a_hand()

    async def play_a_hand(self) -> None:
        """Have ada push into her hand, undo and redo, and put a card on the table."""
        secret, played = self.secret, self.secret("ada")
        socket = await self.user("ada").join("her socket")
        for op in (
            add("/hands/ada/0", secret("ada")),
            put("/hands/ada/0", secret("ada")),
            splice("/hands/ada/0", secret("ada")),
            add("/hands/ada/0", played),
            splice("/story/public", "she said "),
        ):
            assert (await socket.push_and_wait(op))["type"] == "ack"
        for method in ("undo_mine", "undo_mine", "redo_mine"):
            assert await socket.call(method)
        for method in ("undo_of", "redo_of"):
            assert await self.user(DEALER).call(method, socket.frames[0]["connection"])
        self.tape.allow(played)
        answer = await socket.push_and_wait(put("/hands/ada", [secret("ada")]), add("/table/-", played))
        assert answer["type"] == "ack"
        self.version = answer["version"]
        await socket.close()

    # Readers

    async def open_doors(self) -> None:
        """Open each door for each reader, at each address, and for an observer."""
        for name in (*self.readers, *(() if self.is_anonymous else ("olga", "ada"))):
            for at in range(len(self.addresses)):
                user = self.user(name, at)
                self.sockets += [(name, await user.join()), (name, await user.join())]
                self.pages.append((name, await user.connect()))
                self.events.append((name, user.stream()))
        await self.settle()

    async def open_runs(self) -> None:
        """Have a reader run an agent over AG-UI, and others watch the run."""
        run = self.user(self.readers[0]).run()
        await run.until(lambda run: any(event.get("delta") == "begun" for event in run.events))
        watchers = [self.watch_run(name, at) for name in self.readers for at in range(len(self.addresses))]
        self.runs = [(self.readers[0], run), *watchers]
        await self.settle()

    def watch_run(self, name: str, at: int = 0, id: str | None = None) -> tuple[str, Stream]:
        """Have a reader watch the run, after an event."""
        path = f"/ag-ui/watch-{self.kind}/{self.name}/events"
        headers = {} if id is None else {"last-event-id": id}
        return name, self.user(name, at).stream(path, headers=headers, door="ag-ui events")

    async def end_runs(self) -> None:
        """End the agent."""
        await self.user(DEALER).call("release")
        for _, run in self.runs:
            await run.until_end()
        self.runs = []

    async def settle(self) -> None:
        """Wait until all readers are up to date, and check what each of them sees."""
        self.version, state = await self.user(DEALER).call("sync"), await self.whole()
        for name, socket in self.sockets:
            await socket.until(lambda socket: socket.version >= self.version)
            assert socket.state == self.picture(state, name), name
        for name, page in self.pages:
            await page.until_state(self.picture(state, name))
        for name, events in self.events:
            await events.until(lambda events: version_of(events.id) >= self.version)
            assert events.fold.state == self.picture(state, name), name
        for name, run in self.runs:
            await run.until(lambda run: version_of(run.id) >= self.version)
            snapshots = [event["snapshot"] for event in run.events if event["type"] == "STATE_SNAPSHOT"]
            assert snapshots[-1] == self.picture(state, name), name
        for key, user in self.users.items():
            if user.name != DEALER:
                assert await user.state() == self.picture(state, user.name), key


@asynccontextmanager
async def open_stage(
    tape: Tape, addresses: Sequence[str], kind: str, name: str, *, is_anonymous: bool = False, filler: str = ""
) -> AsyncIterator[Stage]:
    """Deal a new game without readers."""
    stage = Stage(tape, addresses, kind, name, is_anonymous=is_anonymous, filler=filler)
    tokens = {"ada": "ada", "bob": "bob", "eve": "eve", "olga": "olga:observers", DEALER: DEALER}
    if is_anonymous:
        tokens = {"nobody": "", DEALER: ""}
    async with AsyncExitStack() as stack:
        for user_name, token in tokens.items():
            for at, address in enumerate(addresses):
                user = User(tape, user_name, address, kind, stage.name, token=token or None)
                stage.users[f"{user_name}{at}"] = await stack.enter_async_context(user)
        await stage.deal()
        yield stage
