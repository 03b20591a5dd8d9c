"""The answers of the assistant: rules that look for a few words, instead of a language model."""

import operator
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from plait import ThreadValues

__all__ = ["Said", "reply"]

TEXTS: Final = Path(__file__).parent / "pages" / "assistant"


class Said(NamedTuple):
    """A question that was asked before."""

    name: str
    question: str
    # Whether the person who asks now also asked this question.
    is_mine: bool


class Asked(NamedTuple):
    """A question, with all data that an answer may need."""

    match: re.Match[str]
    by: str
    before: Sequence[Said]
    values: ThreadValues


async def reply(before: Sequence[Said], question: str, by: str, values: ThreadValues) -> str:
    """Return the answer to a question; `by` is the id of the person who asks, `before` the earlier questions."""
    for pattern, rule in RULES:
        if match := re.search(pattern, question, re.IGNORECASE):
            return await rule(Asked(match, by, before, values))
    return "I have no rule for that. " + read("help")


def read(name: str) -> str:
    """Return a text of the page."""
    return (TEXTS / f"{name}.md").read_text("utf-8")


# Rules


async def help_with(asked: Asked) -> str:
    return read("help")


async def greet(asked: Asked) -> str:
    name = await asked.values.get(f"name {asked.by}")
    return (f"Hello, **{name}**. " if name else "Hello! ") + read("help")


async def count(asked: Asked) -> str:
    last = min(int(asked.match[1]), 1000)
    return f"{', '.join(map(str, range(1, last + 1)))}. That is {last}."


async def calculate(asked: Asked) -> str:
    left, sign, right = asked.match.groups()
    if sign in "/÷" and float(right) == 0:
        return "Division by zero is not defined, not even for me."
    result = OPERATORS[sign](float(left), float(right))
    return f"`{left} {sign} {right}` is **{result:,.10g}**."


async def remember(asked: Asked) -> str:
    name = asked.match[1][:40]
    await asked.values.set(f"name {asked.by}", name)
    return (
        f"Nice to meet you, **{name}**. I keep that in the `values` of this thread: they are stored, "
        "but not sent to any page. Restart the server, and ask me who you are."
    )


async def recall(asked: Asked) -> str:
    name = await asked.values.get(f"name {asked.by}")
    return f"You are **{name}**." if name else "You have not told me. Say “My name is …”."


async def look_back(asked: Asked) -> str:
    mine = [said.question for said in asked.before if said.is_mine]
    others = sorted({said.name for said in asked.before if not said.is_mine})
    lines = [f"- {' '.join(question.split())[:80]}" for question in mine[-8:]]
    start = "\n".join(["You have asked me:", "", *lines]) if mine else "You have not asked me anything before this."
    return f"{start}\n\nI have also talked to {', '.join(others)}." if others else start


async def explain(asked: Asked) -> str:
    return read("workings")


async def tell(asked: Asked) -> str:
    return read("story")


OPERATORS: Final[dict[str, Callable[[float, float], float]]] = {
    "+": operator.add, "-": operator.sub, "\N{MINUS SIGN}": operator.sub,
    "*": operator.mul, "x": operator.mul, "\N{MULTIPLICATION SIGN}": operator.mul,
    "/": operator.truediv, "÷": operator.truediv,
}  # fmt: skip
NUMBER: Final = r"(-?\d{1,12}(?:\.\d{1,6})?)"
# The first rule that matches the question answers it.
RULES: Final[list[tuple[str, Callable[[Asked], Awaitable[str]]]]] = [
    (rf"{NUMBER}\s*([{re.escape(''.join(OPERATORS))}])\s*{NUMBER}", calculate),
    (r"\bcount (?:up )?to (\d+)", count),
    (r"\b(?:my name is|call me|i am called) ([^\s,.!?]+)", remember),
    (r"\b(?:who am i|what is my name|what's my name)\b", recall),
    (r"\bwhat (?:did|have) (?:i|we)\b|\bremember\b", look_back),
    (r"\bstory\b", tell),
    (r"\bhow (?:do|does|are|is)\b|\bwhat are you\b|\bplait\b|\bstop\b|\bqueue\b", explain),
    (r"\b(?:hello|hi|hey|good (?:morning|evening))\b", greet),
    (r"\bhelp\b|\bwhat can you\b", help_with),
]
