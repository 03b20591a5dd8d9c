"""The threads that `benchmarks.walk` walks through, and their app."""

from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from pydantic_ai.models.test import TestModel

from plait import (
    Agent,
    Context,
    Family,
    Files,
    Messages,
    Model,
    Plait,
    Prompt,
    Schedule,
    Side,
    Sql,
    Step,
    Tasks,
    Thread,
    Values,
    effect,
    endpoint,
    rpc,
    task,
    tool,
)

__all__ = ["GameRoom", "make_app"]

# Seconds after which an effect is due.
SOON: Final = 0.02


class Game(msgspec.Struct, frozen=True):
    """A state of the usual kind."""

    players: tuple[str, ...] = ()
    score: int = 0


class GameRoom(Thread[Game]):
    """A thread of the usual kind."""

    initial_state = Game()

    def validate_state_change(self, next_state: Game, source: Any) -> None:
        if next_state.score < 0:
            raise ValueError("score cannot be negative")

    @rpc
    async def echo(self, value: int) -> int:
        return value

    @rpc
    async def add(self, by: int) -> int:
        self.set_state(lambda game: msgspec.structs.replace(game, score=game.score + by))
        return self.state.score


class Diary(GameRoom):
    """A thread with a schedule."""

    schedule = Schedule()

    @rpc
    async def plan(self, by: int) -> str:
        return await self.schedule.after(SOON, "add_later", by)

    @effect
    async def add_later(self, by: int) -> None:
        self.set_state(lambda game: msgspec.structs.replace(game, score=game.score + by))


class Desk(Thread[Game]):
    """A thread with a conversation that clients see."""

    initial_state = Game()
    messages = Messages(live=True)


class Office(Thread[Game]):
    """A thread with all other parts."""

    initial_state = Game()
    values = Values()
    sql = Sql(migrations=["CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT)"])
    files = Files()
    family = Family()
    tasks = Tasks()
    messages = Messages(agent="clerk", live=True)

    @rpc
    async def keep(self, number: int) -> None:
        await self.values.set("number", number)

    @rpc
    async def insert(self, number: int) -> None:
        await self.sql("INSERT INTO items (name) VALUES (?)", f"item {number}")

    @rpc
    async def spawn(self, number: int) -> str:
        return await self.family.spawn(Office, title=f"room {number}")

    @rpc
    async def work(self, count: int) -> int:
        return await self.wait((await self.tasks.run("count", count)).id)

    @rpc
    async def ask(self, number: int) -> int:
        await self.messages.queue(f"question {number}")
        (run,) = await self.tasks.list("clerk", "running") or await self.tasks.list("clerk", "waiting")
        return await self.wait(run.id)

    async def wait(self, run: str) -> int:
        return int((await self.tasks.wait(run)).status == "done")

    @task
    async def count(self, step: Step, upto: int) -> None:
        for number in range(upto):
            await step.do(f"number {number}", partial(self.find, number))

    async def find(self, number: int) -> int:
        return number

    @endpoint("GET", "/score")
    async def score(self, more: int = 1) -> int:
        return self.state.score + more


@tool(idempotent=True)
async def look(office: Office, number: int) -> str:
    """Look."""
    return "found"


class Input(msgspec.Struct):
    """The input of the agent."""

    by: int


async def answer(ctx: Context[GameRoom], input: Input) -> int:
    """Answer at once."""
    return input.by


def make_app(folder: Path) -> Plait:
    """Return the app, which keeps its data in a folder."""
    app = Plait(GameRoom, Desk, Diary, Office, store=f"sqlite:///{folder / 'walk.db'}", secret="walk")
    app.agent("answer", thread=GameRoom)(answer)
    app.execution(
        Office,
        agents=[Agent("clerk", Side("help"))],
        prompts=[Prompt("help", "help", "fast", [look])],
        models=[Model("fast", TestModel(custom_output_text="done"))],
    )
    return app
