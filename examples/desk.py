"""A shop's desk: two agents that call a model and tools, hand the customer over, and ask before they pay money back."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from secrets import token_hex
from typing import Any

from pydantic_ai.messages import ModelMessage, TextPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from plait import (
    Agent,
    Files,
    Handoff,
    Messages,
    Model,
    Plait,
    Prompt,
    Side,
    Tasks,
    Thread,
    ToolResult,
    Values,
    tool,
)

PAGES = Path(__file__).parent / "pages"
PAUSE = 0.04
DAY = 24 * 3600
ORDERS = {7: ("a kite", 2500), 8: ("a drum", 4900), 9: ("a bell", 1200)}


class Desk(Thread[dict[str, Any]]):
    """Pages send messages, decide about calls that wait for approval, and stop the agents."""

    initial_state = {}  # noqa: RUF012
    values = Values()
    files = Files()
    tasks = Tasks(live=True)
    messages = Messages(agent="desk", live=True)


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
    if not isinstance(said, str):
        name, arguments = said
        yield {0: DeltaToolCall(name, json.dumps(arguments), tool_call_id=f"call_{token_hex(6)}")}
        return
    for word in re.findall(r"\s*\S+", said):
        yield word
        await asyncio.sleep(PAUSE)


def decide(messages: list[ModelMessage], tools: set[str]) -> str | tuple[str, dict[str, Any]]:
    """Return a text, or the call of a tool."""
    question, results = read(messages)
    last = results[-1] if results else None
    number = int(found[0]) if (found := re.search(r"\d{1,6}", question)) else 0
    if "story" in question:
        return STORY
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
            case UserPromptPart(content=str(text)):
                question, results = text.lower(), []
            case ToolReturnPart():
                results.append(part)
            case TextPart() if part.content:
                results = []
    return question, results


def is_paid(result: ToolReturnPart) -> bool:
    return "on their way" in str(result.content)


HELP = "I can find an order, and have it paid back. Try “Where is order 7?” or “Refund order 8, please”."
STORY = """\
A bell hung in a tower, in a town without watches. So people asked the bell: “Ring when the bread is done.” \
It rang when the bread was done. One night the tower burned down. In the morning the smith made a new bell, and hung \
it into a new tower. It had never heard of any bread. But at noon it rang, and there was bread. “How did you know?” \
asked the baker. “You told the tower,” said the bell. “I only do the ringing.”"""

# With a key of a provider, its model answers: DESK_MODEL=openai:gpt-5.
MODEL = os.environ.get("DESK_MODEL") or FunctionModel(stream_function=say, model_name="rules")


def authorize(principal: object, thread: object, action: str) -> bool:
    """Allow everybody to approve; in a real shop, only the staff may."""
    return action != "destroy"


app = Plait(Desk, static=PAGES, secret=token_hex(), authorize=authorize)
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
        ),
        Prompt(
            "cashier",
            "You pay orders back. For all else, hand the customer back to the desk.",
            "fast",
            [find_order, pay_back, Handoff("desk", name="to_desk")],
        ),
    ],
)
