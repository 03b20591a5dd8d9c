"""The app of `test_stop`: an agent whose model says a word and waits, or answers if the environment says so."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai.messages import ModelMessage, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from plait import Agent, Messages, Model, Plait, Prompt, Side, Tasks, Thread, rpc

__all__ = ["Desk", "app", "make_app"]


async def say(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Answer all that was asked, or say a word and wait until the end of the process."""
    asked = [part.content for each in messages for part in each.parts if isinstance(part, UserPromptPart)]
    if "STOP_HANGS" in os.environ:
        yield "Half"
        await asyncio.Event().wait()
    yield f"re {','.join(map(str, asked))}"


class Desk(Thread[dict[str, Any]]):
    initial_state = {}  # noqa: RUF012
    idle_timeout = 0.3
    tasks = Tasks()
    messages = Messages(agent="clerk", live=True)

    @rpc
    async def ask(self, text: str) -> None:
        await self.messages.queue(text)

    @rpc
    async def look(self) -> dict[str, Any]:
        page = await self.messages.list(100)
        return {
            "runs": [each.status for each in await self.tasks.list()],
            "messages": [[each.role, each.content, each.status] for each in page.messages],
        }


def make_app(**options: Any) -> Plait:
    app = Plait(Desk, limits=None, **options)
    app.execution(
        Desk,
        agents=[Agent("clerk", Side("clerk"))],
        models=[Model("script", FunctionModel(stream_function=say))],
        prompts=[Prompt("clerk", "You are a clerk.", "script")],
    )
    return app


app = make_app(store=os.environ.get("PLAIT_STORE", "sqlite:///desk.db"))
