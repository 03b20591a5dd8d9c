"""A chat of several people and a bot. Messages, reminders and minutes are parts of the thread, not of its state."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import replace

from plait import (
    Context,
    Files,
    Message,
    Messages,
    Plait,
    Reject,
    Schedule,
    Source,
    Step,
    Tasks,
    Thread,
    current,
    effect,
    rpc,
    task,
)

PAGES = Path(__file__).parent / "pages"
PAUSE = 0.04
MAX_PEOPLE = 500
# The bot reads this many characters of a message, as the time that a rule takes can grow with their square.
MAX_READ = 2000
# The minutes are written from this many messages at a time, with pauses in which people see the progress.
AT_ONCE = 10
BREATH = 0.3
DAY = 24 * 3600

Id = Annotated[str, Meta(pattern="^[a-z0-9-]{1,32}$")]
Name = Annotated[str, Meta(min_length=1, max_length=40)]


class Person(Struct, frozen=True):
    """The person who writes on a connection. The same person may have several connections."""

    id: Id
    name: Name


class Room(Struct, frozen=True):
    """The people who were here, by the id of their connection, which each message has in its metadata."""

    people: dict[str, Person] = {}


class Chat(Thread[Room]):
    """Pages send messages, which are queued for the bot. It answers messages for which it has a rule."""

    initial_state = Room()
    messages = Messages(agent="bot", live=True)
    files = Files()
    schedule = Schedule()
    tasks = Tasks(live=True)

    def validate_state_change(self, next_state: Room, source: Source) -> None:
        if source != "server":
            raise Reject("only the server changes the list of people")

    @rpc
    def introduce(self, id: Id, name: Name) -> None:
        """Store the name of the person who writes on the caller's connection."""
        connection = current().connection
        if connection is None:
            return
        others = [(each, person) for each, person in self.state.people.items() if each != connection.id]
        people = dict([*others[1 - MAX_PEOPLE :], (connection.id, Person(id, name))])
        self.set_state(lambda state: replace(state, people=people))

    @effect
    async def remind(self, name: str, what: str) -> None:
        """Send a reminder. It is stored together with the removal of its schedule, so it is sent once."""
        await self.messages.inject("assistant", f"{name}, your reminder: {what}", metadata={"reminder": name})

    # Minutes

    @task
    async def write_minutes(self, step: Step, name: str) -> None:
        """Write the messages into a file, and post it if a person agrees; a restart at any point changes nothing."""
        total = await step.do("count", self.count_messages)
        lines: list[str] = []
        for start in range(0, total, AT_ONCE):
            step.status({"for": name, "read": start, "of": total})
            lines += await step.do(f"read from {start}", partial(self.read_messages, start))
            await step.sleep(f"breathe after {start}", BREATH)
        path = await step.do("write", partial(self.write_file, step.id, lines))
        step.status({"for": name, "path": path})
        decision = await step.approval("post", timeout=DAY)
        finish = self.post_minutes if decision.approved else self.discard_minutes
        await step.do("finish", partial(finish, path, name, decision.metadata["by"]))

    async def count_messages(self) -> int:
        return (await self.messages.list(1)).total

    async def read_messages(self, start: int) -> list[str]:
        """Return the lines of the next messages."""
        found = (await self.messages.list(AT_ONCE, start, order="asc")).messages
        said = [(self.find_person(each), " ".join((each.content or "").split())) for each in found]
        return [f"- **{person.name if person else 'Bot'}**: {text}" for person, text in said if text]

    async def write_file(self, run: str, lines: Sequence[str]) -> str:
        text = "\n".join(["# Minutes", "", *lines, ""])
        return (await self.files.write(f"attachments/{run}/minutes.md", text)).path

    def post_minutes(self, path: str, name: str, by: str) -> None:
        file = {"path": path, "name": "minutes.md", "mime": "text/markdown"}
        self.messages.inject("assistant", f"{name}, here are the minutes; {by} has posted them.", attachments=[file])

    def discard_minutes(self, path: str, name: str, by: str) -> None:
        self.files.unlink(path)
        self.messages.inject("assistant", f"{by} has discarded the minutes, {name}.")

    @rpc
    async def decide(self, run: str, approved: bool) -> None:
        """Post the minutes of a run, or discard them; the first decision counts."""
        connection = current().connection
        person = self.state.people.get(connection.id) if connection else None
        by = person.name if person else "Someone"
        await self.tasks.send(run, "post", {"approved": approved, "metadata": {"by": by}})

    @rpc
    async def stop(self, run: str) -> None:
        """End a run that writes minutes."""
        await self.tasks.cancel(run)

    def find_person(self, message: Message) -> Person | None:
        """Return the person who has sent a message."""
        return self.state.people.get(message.metadata.get("connection", ""))


async def bot(ctx: Context[Chat]) -> None:
    """Answer the queued messages, a word at a time; an answer is stored together with its question, or neither is."""
    chat = ctx.thread
    is_alone = len({person.id for person in chat.state.people.values()}) < 2
    has_helped = False
    while taken := await chat.messages.take(limit=1):
        message = taken[0]
        text = await answer(chat, message)
        if text is None and not has_helped and (is_alone or re.search(r"\bbot\b", read(message), re.I)):
            text, has_helped = HELP, True
        if text is None:
            continue  # People talk to each other.
        async with chat.messages.stream(metadata={"for": message.id}) as stream:
            for word in re.findall(r"\s*\S+", text):
                stream.append(word)
                await asyncio.sleep(PAUSE)
        await ctx.flush()


def add_chat(app: Plait) -> None:
    """Add the bot of the chat to an app."""
    app.agent("bot", thread=Chat)(bot)


# Answers of the bot


class Asked(NamedTuple):
    """A message that a rule has matched."""

    chat: Chat
    name: str
    match: re.Match[str]


async def answer(chat: Chat, message: Message) -> str | None:
    """Return the bot's answer to a message; None if it has no rule for the message."""
    person = chat.find_person(message)
    for pattern, rule in RULES:
        if match := re.search(pattern, read(message), re.I | re.S):
            return await rule(Asked(chat, person.name if person else "Someone", match))
    return None


def read(message: Message) -> str:
    return (message.content or "")[:MAX_READ]


async def remind(asked: Asked) -> str:
    number, unit, what = (asked.match[group].strip() for group in ("number", "unit", "what"))
    asked.chat.schedule.after(int(number) * SECONDS[unit.lower()], "remind", asked.name, what[:500])
    return f"I will remind you in {number} {unit.lower()}{'' if number == '1' else 's'}, {asked.name}: {what[:500]}"


async def show_reminders(asked: Asked) -> str:
    planned = await asked.chat.schedule.list("remind")
    lines = [f"• {name}: {what}" for name, what in (each.args for each in planned[:10])]
    return "\n".join([f"I keep {len(planned)} of them:", *lines]) if lines else "There are no reminders."


async def cancel_reminders(asked: Asked) -> str:
    planned = await asked.chat.schedule.list("remind")
    for each in planned:
        asked.chat.schedule.cancel(each.id)
    return f"I have cancelled {len(planned)} of them." if planned else "There were no reminders."


async def begin_minutes(asked: Asked) -> str:
    if any(not run.ended_at for run in await asked.chat.tasks.list("write_minutes")):
        return "I am at it."
    asked.chat.tasks.run("write_minutes", asked.name)
    return f"I am writing the minutes, {asked.name}. One of you decides whether I post them."


async def count(asked: Asked) -> str:
    last = min(int(asked.match[1]), 500)
    return f"{', '.join(map(str, range(1, last + 1)))}. That is {last}."


async def recall(asked: Asked) -> str:
    page = await asked.chat.messages.list(20)
    lines = [
        f"• {' '.join(each.content.split())[:80]}" for each in page.messages if each.role == "user" and each.content
    ]
    return "\n".join([f"Of {page.total} messages so far, these were the last from people:", *lines[:-1][-5:]])


async def tell(asked: Asked) -> str:
    return STORY


async def fail(asked: Asked) -> str:
    raise RuntimeError("the bot was asked to fail")


HELP: Final = """\
I am a bot with a few rules. Try these:
• Remind me in 10 seconds to look up
• What are the reminders? Cancel the reminders
• Write the minutes
• Tell us a story
• Count to 50
• What did we say?
• Fail, bot! (The server calls me five times, and then gives your message up.)
If you are two, I am silent unless I have a rule, or am called “bot”."""
STORY: Final = """\
A bell hung in a tower, in a town without watches. So people asked the bell: “Ring when the bread is done.” \
It rang when the bread was done.

One night the tower burned down. In the morning the smith made a new bell, and hung it into a new tower. It had never \
heard of any bread. But at noon it rang, and there was bread.

“How did you know?” asked the baker.

“You told the tower,” said the bell. “I only do the ringing.”"""
SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
IN: Final = r"in (?P<number>\d{1,4}) (?P<unit>second|minute|hour|day)s?"
# The first rule that matches the message answers it.
RULES: Final[list[tuple[str, Callable[[Asked], Awaitable[str]]]]] = [
    (rf"\bremind (?:me|us) {IN}[,:]?\s+(?:to |about |of |that )?(?P<what>\S.*)", remind),
    (rf"\bremind (?:me|us) (?:to |about |of |that )?(?P<what>\S.*?) {IN}\b", remind),
    (r"\b(?:cancel|forget)\b.*\breminders?\b", cancel_reminders),
    (r"\breminders\b", show_reminders),
    (r"\bwrite (?:the |our )?minutes\b", begin_minutes),
    (r"\bcount to (\d{1,4})\b", count),
    (r"\bwhat did (?:i|we)\b", recall),
    (r"\bstory\b", tell),
    (r"\bfail\b.*\bbot\b", fail),
]

app = Plait(Chat, static=PAGES, secret=token_hex())
add_chat(app)
