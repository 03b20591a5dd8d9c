"""Variables of agents and prompts, which a thread finds last."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.server.agents.execution.lab import Script, call, make_prompt
from tests.server.nodes import open_nodes
from tests.server.parts.workshop import until

from plait import Agent, Env, Handoff, Messages, NotFound, Plait, Side, Tasks, Thread, rpc, tool


class Shop(Thread[dict[str, Any]]):
    initial_state = {}  # noqa: RUF012
    tasks = Tasks()
    env = Env()
    messages = Messages(agent="front")

    @rpc
    async def read(self, name: str) -> str:
        return (await self.env.get(name)).reveal()


@tool
async def peek(shop: Shop, name: str) -> str:
    """Read a variable."""
    return (await shop.env.get(name)).reveal()


LEVELS = ["thread", "user", "app", "agent", "prompt"]


def make_app(store: str, script: Script, *levels: str, secret: Any = "x" * 32) -> Plait:
    env = {name: {"KEY": name} if name in levels else {} for name in LEVELS}
    app = Plait(Shop, store=store, secret=secret, env=env["app"])
    app.execution(
        Shop,
        agents=[
            Agent("front", Side("clerk"), env=env["agent"]),
            Agent("back", Side("cook"), env={"KEY": "the cook's agent"}),
        ],
        prompts=[
            make_prompt("clerk", peek, Handoff("back"), env=env["prompt"]),
            make_prompt("cook", peek, env={"KEY": "cook", "SALT": "white"}),
        ],
        models=[script.model],
    )
    return app


@asynccontextmanager
async def open_shop(folder: Path, script: Script, *levels: str, secret: Any = "x" * 32) -> AsyncIterator[Any]:
    app = make_app(f"sqlite:///{folder / 'plait.db'}", script, *levels, secret=secret)
    async with app:
        shop: Any = app.session(Shop, "one", user_id="ada")
        await shop.messages.list()
        if "thread" in levels:
            await shop.part(Shop.env).set("KEY", "thread")
        if "user" in levels:
            await app.user("ada").env.set("KEY", "user")
        yield shop


async def ask(shop: Any) -> list[str | None]:
    """Return the results of the calls for a question."""
    await shop.messages.queue("What is it?")

    async def look() -> bool:
        return [run.status for run in await shop.tasks.list()] == ["done"]

    await until(look)
    return [each.content for each in (await shop.messages.list()).messages if each.role == "tool"]


@pytest.mark.parametrize("first", range(5))
async def test_a_variable_is_found_in_five_places_in_this_order(tmp_path: Path, first: int) -> None:
    levels = LEVELS[first:]
    async with open_shop(tmp_path, Script(call("peek", name="KEY"), "Done."), *levels) as shop:
        assert await ask(shop) == [levels[0]]
        assert await shop.call(Shop.read, "KEY") == levels[0]
        assert (await shop.part(Shop.env).get("KEY")).reveal() == levels[0]


async def test_a_variable_that_is_set_nowhere_is_an_error(tmp_path: Path) -> None:
    async with open_shop(tmp_path, Script("Done.")) as shop:
        with pytest.raises(NotFound, match="the variable KEY is not set"):
            await shop.call(Shop.read, "KEY")


async def test_after_a_handover_the_variables_are_those_of_the_other_agent(tmp_path: Path) -> None:
    script = Script(call("back"), call("peek", name="KEY"), call("peek", name="SALT"), "Done.")
    async with open_shop(tmp_path, script, "agent", "prompt") as shop:
        assert (await ask(shop))[1:] == ["the cook's agent", "white"]
        assert await shop.call(Shop.read, "SALT") == "white"


async def test_variables_of_agents_need_no_secret_and_are_redacted(tmp_path: Path) -> None:
    async with open_shop(tmp_path, Script("Done."), "agent", secret=[]) as shop:
        assert await shop.call(Shop.read, "KEY") == "agent"
        assert await shop.part(Shop.env).redact("the agent's") == "the ***'s"


def test_the_names_of_variables_of_agents_and_prompts_are_checked() -> None:
    app = Plait(Shop, store="memory://")
    for agent, prompt in (({"a-b": "x"}, {}), ({}, {"a b": "x"})):
        with pytest.raises(ValueError, match="the name of a variable"):
            app.execution(
                Shop,
                agents=[Agent("front", Side("clerk"), env=agent)],
                prompts=[make_prompt("clerk", model="test:test", env=prompt)],
            )


async def test_a_handle_at_another_node_finds_the_variables_of_agents() -> None:
    for level in ("app", "agent", "prompt"):
        levels = LEVELS[LEVELS.index(level) :]
        async with open_nodes(partial(make_app, "memory://", Script("Done."), *levels)) as nodes:
            env = nodes.handle(Shop, 1).part(Shop.env)
            assert (await env.get("KEY")).reveal() == level
            assert await env.redact(f"the {level}'s") == "the ***'s"
