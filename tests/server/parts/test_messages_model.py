"""Messages compared with a plain list, over restarts and writes that fail."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.schedules import play_seeds, schedules
from tests.server.fakes import TroubledStore
from tests.server.parts.messages_lab import Chat, MessagesLab, Viewer, open_lab
from tests.server.parts.workshop import make_store

from plait import Context, NotFound, StoreError
from plait.parts.messages.message import Message
from plait.parts.messages.thread_messages import ThreadMessages


class Model:
    """The messages that a thread must have: branches, each a list of dicts, the last one shown, and a queue."""

    def __init__(self) -> None:
        # The last one is shown; the position of the thread's last message when it began.
        self.branches: list[list[dict[str, Any]]] = [[]]
        self.begun_at = -1
        self.queue: list[dict[str, Any]] = []
        # The question that is answered again, and whether a message that people saw was deleted.
        self.again: dict[str, Any] | None = None
        self.has_deleted = False

    @property
    def history(self) -> list[dict[str, Any]]:
        return self.branches[-1]

    def copy(self) -> "Model":
        other, copies = Model(), dict[str, dict[str, Any]]()
        for each in (*(each for branch in self.branches for each in branch), *self.queue):
            copies.setdefault(each["id"], dict(each))
        other.branches = [[copies[each["id"]] for each in branch] for branch in self.branches]
        other.queue = [copies[each["id"]] for each in self.queue]
        other.again = None if self.again is None else copies[self.again["id"]]
        other.begun_at, other.has_deleted = self.begun_at, self.has_deleted
        return other

    @property
    def everything(self) -> list[dict[str, Any]]:
        found = (*(each for branch in self.branches for each in branch), *self.queue)
        return [*{each["id"]: each for each in found}.values()]

    def find(self, id: str) -> dict[str, Any] | None:
        return next((each for each in self.everything if each["id"] == id), None)

    def find_branch(self, id: str) -> list[dict[str, Any]]:
        return next(each for each in reversed(self.branches) if any(line["id"] == id for line in each))

    def begin_branch(self, line: list[dict[str, Any]], position: int, last: int) -> None:
        """Begin a branch that continues a line; the thread's last position was `position` before that, then `last`."""
        if self.begun_at == position:
            self.branches.pop()
        self.branches.append([*line])
        self.begun_at = last

    def find_siblings(self, id: str) -> list[str]:
        """Return the messages of a role that follow what a message follows, of those that people see."""
        lines = [[x for x in branch if not x["silent"] and not x["depth"]] for branch in self.branches]
        parents = {(x["id"], None if not at else line[at - 1]["id"]): x for line in lines for at, x in enumerate(line)}
        parent = next(parent for each, parent in parents if each == id)
        role = parents[id, parent]["role"]
        found = [x for (_, each), x in parents.items() if each == parent and x["role"] == role]
        return [x["id"] for x in sorted(found, key=lambda x: x["position"])]

    def add(self, message: Message) -> None:
        (self.queue if message.status == "pending" else self.history).append(describe(message))
        self.history.sort(key=lambda each: each["position"])

    def take(self, messages: list[Message]) -> None:
        if self.again is not None and messages and messages[0].id == self.again["id"]:
            assert len(messages) == 1
            self.again = None
            return
        assert [each.id for each in messages] == [each["id"] for each in self.queue]
        self.queue = []
        for each in messages:
            self.add(each)

    def remove(self, id: str) -> None:
        found = self.find(id)
        assert found is not None
        self.has_deleted |= found["status"] != "pending" and not found["silent"] and not found["depth"]
        if found is self.again:
            self.again = None
        self.branches = [[each for each in branch if each["id"] != id] for branch in self.branches]
        self.queue = [each for each in self.queue if each["id"] != id]

    def lines(self, *, silent: bool = True, depth: int = 1000) -> list[dict[str, Any]]:
        found = (*self.history, *self.queue)
        return [each for each in found if (silent or not each["silent"]) and each["depth"] <= depth]


class Player:
    """Does the same to a thread and to the model."""

    def __init__(self, lab: MessagesLab, chance: random.Random) -> None:
        self.lab = lab
        self.chance = chance
        self.model = Model()
        self.names = iter(range(1_000_000))

    async def step(self, where: Any, model: Model) -> None:
        """Do one thing, outside of a run or in one."""
        chance, id = self.chance, None
        lines = model.lines() if chance.random() < 0.8 else model.everything
        if lines:
            id = chance.choice(lines)["id"]
        match chance.choice(["inject", "inject", "queue", "take", "update", "delete", "stream"]):
            case "inject":
                written = where.inject(
                    "user", f"{next(self.names)}", silent=chance.random() < 0.2, depth=chance.choice([0, 0, 0, 2])
                )
                model.add(await written)
            case "queue":
                model.add(await where.queue(f"{next(self.names)}", silent=chance.random() < 0.2))
            case "take":
                model.take(await where.take())
            case "update" if id is not None:
                name = f"{next(self.names)}"
                after = await where.update(id, name, metadata={name[-1]: name})
                line = model.find(id)
                assert line is not None
                line["content"], line["metadata"] = name, {**line["metadata"], name[-1]: name}
                assert after.content == name
            case "delete" if id is not None:
                assert await where.delete(id) is True
                assert await where.delete(id) is False
                model.remove(id)
            case "stream":
                text = f"{next(self.names)}"
                async with where.stream() as m:
                    for each in text:
                        m.append(each)
                found = await where.get(m.id)
                model.add(found)

    async def branch(self, messages: ThreadMessages) -> None:
        """Begin a branch."""
        model, chance = self.model, self.chance
        lines = [each for each in model.everything if each["status"] != "pending"]
        questions = [each for each in lines if each["role"] == "user" and not each["silent"] and not each["depth"]]
        if not questions:
            return
        position = messages._writer.numbers.position
        last = position + 1
        match chance.choice(["edit", "regenerate", "switch"]):
            case "edit":
                found = chance.choice(questions)
                name = f"{next(self.names)}"
                queued = await messages.edit(found["id"], name)
                assert (queued.content, queued.metadata) == (name, found["metadata"])
                line = model.find_branch(found["id"])
                model.begin_branch(line[: line.index(found)], position, last)
                model.again = None
                model.add(queued)
            case "regenerate":
                found = chance.choice(lines)
                line = model.find_branch(found["id"])
                before = [x for x in line[: line.index(found) + 1] if x in questions]
                if not any(each is found for each in model.history):
                    assert not await messages.regenerate(found["id"])
                elif before:
                    assert await messages.regenerate(found["id"])
                    model.begin_branch(line[: line.index(before[-1]) + 1], position, last)
                    model.again = before[-1]
                else:
                    with pytest.raises(NotFound):
                        await messages.regenerate(found["id"])
            case "switch":
                found = chance.choice(lines)
                is_shown = any(each is found for each in model.history)
                assert await messages.switch(found["id"]) is not is_shown
                if not is_shown:
                    model.begin_branch(model.find_branch(found["id"]), position, last)
                    model.again = None

    async def run(self, *, raises: bool, flushes: bool) -> None:
        """Do some things in a run, which raises or does not."""
        before = self.model.copy()

        async def work(ctx: Context[Chat]) -> None:
            messages = ctx.thread.messages
            for number in range(self.chance.randint(1, 5)):
                await self.step(messages, self.model)
                if flushes and number == 1:
                    await ctx.flush()
            seen = await messages.list(1000, max_depth=1000)
            expected = [each for each in self.model.history if each["status"] == "completed"]
            assert [(each.id, each.content) for each in seen.messages] == [(x["id"], x["content"]) for x in expected]
            assert seen.total == len(expected)
            again = [] if self.model.again is None else [self.model.again]
            assert [each.id for each in await messages.pending()] == [x["id"] for x in (*again, *self.model.queue)]
            if raises:
                raise LookupError

        if not raises:
            await self.lab.do(work)
            return
        with pytest.raises(LookupError):
            await self.lab.do(work)
        # Of what it has done, streams are left, as failed.
        streams = [each for each in await self.lab.all() if each.status == "failed" and before.find(each.id) is None]
        self.model = before
        for each in streams:
            self.model.add(each)

    async def check(self) -> None:
        """Compare all pages."""
        messages = await self.lab.messages()
        seen = [x for x in self.model.everything if not x["silent"] and not x["depth"] and x["status"] != "pending"]
        for x in seen if not self.model.has_deleted else ():
            siblings = self.model.find_siblings(x["id"])
            assert [each.id for each in await messages.siblings(x["id"])] == siblings
        if not self.model.has_deleted:
            forks = await messages.forks((await messages.list(1000)).messages)
            shown = [x["id"] for x in self.model.lines(silent=False, depth=0) if x["status"] != "pending"]
            expected_forks = {id: found for id in shown if len(found := self.model.find_siblings(id)) > 1}
            assert {id: [each.id for each in found] for id, found in forks.items()} == expected_forks
        for silent, depth in ((True, 1000), (False, 1000), (True, 0), (False, 0)):
            expected = self.model.lines(silent=silent, depth=depth)
            options = {"include_silent": silent, "max_depth": depth}
            page = await messages.list(1000, **options)  # type: ignore[arg-type]
            assert [describe(each) for each in page.messages] == expected
            assert page.total == len(expected)
            limit, offset = self.chance.randint(1, 5), self.chance.randint(0, 5)
            page = await messages.list(limit, offset, **options)  # type: ignore[arg-type]
            end = max(len(expected) - offset, 0)
            assert [each.id for each in page.messages] == [x["id"] for x in expected[max(end - limit, 0) : end]]
            assert page.has_more == (len(expected) > offset + limit)
            page = await messages.list(limit, offset, order="asc", **options)  # type: ignore[arg-type]
            assert [each.id for each in page.messages] == [x["id"] for x in expected[offset : offset + limit]]
            page = await messages.list(limit, offset, order="desc", **options)  # type: ignore[arg-type]
            assert [each.id for each in page.messages] == [x["id"] for x in expected[::-1][offset : offset + limit]]


def describe(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "role": message.role,
        "content": message.content,
        "silent": message.silent,
        "depth": message.depth,
        "metadata": dict(message.metadata),
        "status": message.status,
        "position": message.position,
    }


def visible(messages: list[Message]) -> list[tuple[str, str | None, str]]:
    return [(each.id, each.content, each.status) for each in messages if not each.silent]


class Plain(MessagesLab):
    """A lab whose agent is never called: the tests take what is queued."""


async def play(store: Any, seed: int, steps: int) -> None:
    chance = random.Random(seed)
    async with open_lab(store) as lab:
        messages = await lab.messages()
        messages.caller._is_missing = True  # type: ignore[union-attr]
        player = Player(lab, chance)
        viewer, away = Viewer(messages), Viewer(messages)
        await viewer.open()
        await away.open()
        for _ in range(steps):
            kind = chance.choice(
                ["step"] * 6 + ["branch", "branch", "run", "raise", "flush", "transaction", "restart", "fail", "away"]
            )
            if kind == "step":
                await player.step(messages, player.model)
            elif kind == "branch":
                await player.branch(messages)
            elif kind in ("run", "raise", "flush"):
                await player.run(raises=kind == "raise", flushes=kind == "flush")
            elif kind == "transaction":
                await transact(player)
            elif kind == "fail" and isinstance(store, TroubledStore):
                await fail(player)
            elif kind == "away":
                away.close()
            elif kind == "restart":
                viewer.close()
                away.close()
                await lab.restart()
                messages = await lab.messages()
                messages.caller._is_missing = True  # type: ignore[union-attr]
                await viewer.open(messages)
            if chance.random() < 0.3:
                if away._leave is None:
                    await away.open(messages)
                await player.check()
                everything = visible(await lab.all())
                assert visible(viewer.shown) == everything
                assert visible(away.shown) == everything


async def transact(player: Player) -> None:
    """Do some things in a transaction, which raises or does not."""
    thread = await player.lab.thread()
    before, raises, model = player.model.copy(), player.chance.random() < 0.5, player.model
    try:
        async with thread.transaction():
            thread.set_state({"count": thread.state["count"] + 1})
            for _ in range(player.chance.randint(1, 4)):
                match player.chance.choice(["inject", "queue", "take"]):
                    case "inject":
                        model.add(thread.messages.inject("user", f"{next(player.names)}").value)
                    case "queue":
                        model.add(thread.messages.queue(f"{next(player.names)}").value)
                    case "take":
                        model.take(thread.messages.take().value)
            if raises:
                raise LookupError
    except LookupError:
        player.model = before


async def fail(player: Player) -> None:
    """Do some things that cannot be stored."""
    messages = await player.lab.messages()
    await messages.inject("user", "x", silent=True)
    player.model.add((await player.lab.all())[-1 - len(player.model.queue)])
    player.lab.store.fail_next()
    writes = [messages.inject("user", "lost"), messages.queue("lost"), messages.take()]
    for each in writes:
        with pytest.raises(StoreError):
            await each  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["memory", "sqlite", "troubled"])
@play_seeds(1)
async def test_messages_are_those_of_a_plain_list(kind: str, seed: int, tmp_path: Path) -> None:
    (folder := tmp_path / str(seed)).mkdir()
    await play(TroubledStore() if kind == "troubled" else make_store(kind, folder), seed, 80)


@settings(max_examples=schedules(10), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 30))
def test_messages_are_those_of_a_plain_list_whatever_is_done(seed: int) -> None:
    asyncio.run(play(TroubledStore(), seed, 30))
