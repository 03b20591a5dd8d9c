"""A shop's desk: two agents that call a model and tools, hand the customer over, and ask before they pay money back."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from random import choice
from secrets import token_hex
from typing import Any

from msgspec import Struct
from pydantic_ai.messages import ModelMessage, TextPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel

from plait import (
    Agent,
    Files,
    Handoff,
    Message,
    MessageHooks,
    Messages,
    Model,
    Plait,
    Principal,
    Prompt,
    Side,
    Tasks,
    Thread,
    ThreadKey,
    ToolResult,
    Values,
    query,
    tool,
)

from .cards import authenticate

PAGES = Path(__file__).parent / "pages"
PAUSE = 0.04
DAY = 24 * 3600
ORDERS = {7: ("a kite", 2500), 8: ("a drum", 4900), 9: ("a bell", 1200)}


class Order(Struct, frozen=True):
    """An order of the shop."""

    number: int
    what: str
    cents: int
    is_paid_back: bool


class Case(Struct, frozen=True):
    """A conversation with a customer."""

    title: str = ""


async def name_case(desk: "Desk", message: Message) -> None:
    """Name a conversation after its first question."""
    if message.role == "user" and not desk.state.title:
        desk.update("/title", " ".join((message.content or "A file").split())[:60])


class Desk(Thread[Case]):
    """Pages send messages, edit them, decide about calls that wait for approval, and stop the agents."""

    listed = True
    initial_state = Case()
    can_write = ()
    values = Values()
    files = Files()
    tasks = Tasks(live=True)
    messages = Messages(agent="desk", live=True, hooks=MessageHooks(after_create_message=name_case))

    @query
    def orders(self) -> list[Order]:
        """Return the orders; each is paid back at most once in a conversation."""
        return [Order(each, *ORDERS[each], self.values.has(f"paid back {each}").value) for each in sorted(ORDERS)]

    def card(self, state: Case) -> dict[str, Any]:
        """Return what customers see of a conversation in the list of theirs."""
        return {"title": state.title, "status": self.messages.status, "last": self.messages.last}


@tool(idempotent=True)
async def find_order(desk: Desk, number: int) -> str:
    """Find an order by its number."""
    if number not in ORDERS:
        return f"There is no order {number}."
    what, cents = ORDERS[number]
    paid_back = await desk.values.get(f"paid back {number}")
    return f"Order {number}: {what}, {cents / 100:.2f} €{', paid back' if paid_back else ''}."


@tool(needs_approval=True, approval_timeout=DAY)
async def pay_back(desk: Desk, number: int) -> ToolResult:
    """Pay an order back, and write a receipt."""
    what, cents = ORDERS[number]
    text = f"Receipt\n\nOrder {number}: {what}\nPaid back: {cents / 100:.2f} €\n"
    receipt = await desk.files.write(f"attachments/{token_hex(6)}/receipt-{number}.txt", text)
    await desk.values.set(f"paid back {number}", value=True)
    return ToolResult(f"{cents / 100:.2f} € are on their way.", attachments=[receipt.path])


# The model that answers without a key


async def say(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Follow a few rules, a word at a time, as a model would."""
    said = decide(messages, {each.name for each in info.function_tools})
    if isinstance(said, str):
        for word in split(said):
            yield word
            await asyncio.sleep(PAUSE)
        return
    name, arguments = said
    for word in split(THOUGHTS.get(name, "")):
        yield {0: DeltaThinkingPart(content=word)}
        await asyncio.sleep(PAUSE)
    yield {1: DeltaToolCall(name, json.dumps(arguments), tool_call_id=f"call_{token_hex(6)}")}


def split(text: str) -> list[str]:
    return re.findall(r"\s*\S+", text)


def decide(messages: list[ModelMessage], tools: set[str]) -> str | tuple[str, dict[str, Any]]:
    """Return a text, or the call of a tool."""
    question, results = read(messages)
    last = results[-1] if results else None
    number = int(found[0]) if (found := re.search(r"\d{1,6}", question)) else 0
    if "story" in question:
        return f"{choice(BEGINNINGS)} {STORY}"
    if re.search(r"refund|money|pay", question):
        if number not in ORDERS:
            return "Which order? I know 7, 8 and 9."
        if "pay_back" not in tools:
            return ("to_billing", {})
        if last is None or last.tool_name != "pay_back":
            return ("pay_back", {"number": number})
        return f"{last.content} The receipt is attached." if is_paid(last) else "I have not paid it back."
    if number:
        return str(last.content) if last is not None else ("find_order", {"number": number})
    return HELP


def read(messages: list[ModelMessage]) -> tuple[str, list[ToolReturnPart]]:
    """Return the last question, and the results after it."""
    question, results = "", list[ToolReturnPart]()
    for part in (part for each in messages for part in each.parts):
        match part:
            case UserPromptPart(content=content):
                texts = [content] if isinstance(content, str) else [each for each in content if isinstance(each, str)]
                question, results = " ".join(texts).lower(), []
            case ToolReturnPart():
                results.append(part)
            case TextPart() if part.content:
                results = []
    return question, results


def is_paid(result: ToolReturnPart) -> bool:
    return "on their way" in str(result.content)


HELP = "I can find an order, and have it paid back. Try “Where is order 7?” or “Refund order 8, please”."
THOUGHTS = {
    "find_order": "The question names an order. I look it up before I say anything about it.",
    "to_billing": "This is about money. Only billing can pay it back, so I hand the customer over.",
    "pay_back": "The order is in the books. A payment cannot be taken back, so a person has to approve it.",
}
BEGINNINGS = ("Here is one.", "With pleasure.", "I know only this one.")
STORY = """\
A bell hung in a tower, in a town without watches. So people asked the bell: “Ring when the bread is done.” \
It rang when the bread was done. One night the tower burned down. In the morning the smith made a new bell, and hung \
it into a new tower. It had never heard of any bread. But at noon it rang, and there was bread. “How did you know?” \
asked the baker. “You told the tower,” said the bell. “I only do the ringing.”"""

# With a key of a provider, its model answers: DESK_MODEL=openai:gpt-5.
MODEL = os.environ.get("DESK_MODEL") or FunctionModel(stream_function=say, model_name="rules")


def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
    """Return whether anybody may do this. In a real shop, only the staff may approve."""
    return action not in ("destroy", "list")


def add_desk(app: Plait) -> None:
    """Add the agents of the desk to an app."""
    app.execution(
        Desk,
        agents=[Agent("desk", Side("clerk")), Agent("billing", Side("cashier"))],
        models=[Model("fast", MODEL)],
        prompts=[
            Prompt(
                "clerk",
                "You help the customers of a shop. Hand a customer who wants money back over to billing.",
                "fast",
                [find_order, Handoff("billing", name="to_billing")],
                thoughts=True,
            ),
            Prompt(
                "cashier",
                "You pay orders back. For all else, hand the customer back to the desk.",
                "fast",
                [find_order, pay_back, Handoff("desk", name="to_desk")],
                thoughts=True,
            ),
        ],
    )


app = Plait(Desk, static=PAGES, secret=token_hex(), authenticate=authenticate, authorize=authorize)
add_desk(app)
