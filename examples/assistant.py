"""A conversation with an assistant: everyone may ask, and everyone watches the answers while they are written."""

import asyncio
import re
from secrets import token_hex
from typing import Annotated, Literal

from msgspec import Meta, Struct

from plait import Context, Interrupted, Plait, Reject, Source, Text, Thread, Values

from .assistant_replies import Said, reply
from .pad import PAGES

PAUSE = 0.04
MAX_TURNS = 60
MAX_WAITING = 10

Id = Annotated[str, Meta(pattern="^[a-z0-9-]{1,32}$")]
Name = Annotated[str, Meta(min_length=1, max_length=40)]
Question = Annotated[str, Meta(min_length=1, max_length=2000)]
Status = Literal["waiting", "answering", "done", "stopped", "cut off"]


class Turn(Struct, frozen=True):
    """A question, and the part of its answer that is written so far."""

    id: Id
    # The id and the name of the person who asked.
    by: Id
    name: Name
    question: Question
    answer: Text = ""
    status: Status = "waiting"
    # The name of the person who has stopped the answer.
    stopped_by: str = ""


class Conversation(Struct, frozen=True):
    """The turns of a conversation, from the oldest kept one to the latest."""

    turns: tuple[Turn, ...] = ()


class Assistant(Thread[Conversation]):
    """Pages add their questions to the state themselves, and can take them back as long as they wait."""

    initial_state = Conversation()
    values = Values()

    def on_start(self) -> None:
        # No answer is running when a thread starts: the server was killed in the middle of this one.
        for turn in self.state.turns:
            if turn.status == "answering":
                self.end(turn.id, "cut off")

    def validate_state_change(self, next_state: Conversation, source: Source) -> None:
        if source == "server":
            return
        before = {turn.id: turn for turn in self.state.turns}
        kept = [turn.id for turn in next_state.turns if turn == before.get(turn.id)]
        added = [turn for turn in next_state.turns if turn.id not in before]
        removed = [turn for id, turn in before.items() if id not in kept]
        if len(kept) + len(added) < len(next_state.turns) or kept != [id for id in before if id in kept]:
            raise Reject("earlier turns cannot be changed")
        if any(turn.status != "waiting" for turn in removed):
            raise Reject("a question can only be taken back while it waits")
        if any((turn.answer, turn.status, turn.stopped_by) != ("", "waiting", "") for turn in added):
            raise Reject("only the assistant can answer")
        if sum(turn.status == "waiting" for turn in next_state.turns) > MAX_WAITING:
            raise Reject(f"{MAX_WAITING} questions are waiting; wait until some are answered")

    # For the agent

    def find(self, id: str) -> int | None:
        """Return the index of a turn."""
        return next((index for index, turn in enumerate(self.state.turns) if turn.id == id), None)

    def begin(self, id: str) -> Turn | None:
        """Begin to answer a question, and return it; None if it is not waiting."""
        index = self.find(id)
        if index is None or self.state.turns[index].status != "waiting":
            return None
        with self.edit() as draft:
            draft.turns[index].status = "answering"
            del draft.turns[: max(0, min(index, len(draft.turns) - MAX_TURNS))]
        return self.state.turns[self.find(id) or 0]

    def write(self, id: str, text: str) -> None:
        """Append to an answer; only the added text is stored and sent."""
        self.append(f"/turns/{self.find(id)}/answer", text)

    def end(self, id: str, status: Status, stopped_by: str = "") -> None:
        """Record how an answer has ended."""
        index = self.find(id)
        with self.transaction():
            self.update(f"/turns/{index}/status", status)
            self.update(f"/turns/{index}/stopped_by", stopped_by)


async def answer(ctx: Context[Assistant], id: Id) -> None:
    """Answer a question, a word at a time, as a language model would; runs of one thread wait for each other."""
    thread = ctx.thread
    turn = thread.begin(id)
    if turn is None:
        return  # The question was taken back, or two pages have asked for the same answer.
    said = [Said(each.name, each.question, is_mine=each.by == turn.by) for each in thread.state.turns]
    status: Status = "cut off"
    stopped_by = ""
    try:
        text = await reply(said[: thread.find(id)], turn.question, turn.by, thread.values)
        for word in re.findall(r"\s*\S+\s*", text):
            thread.write(id, word)
            await ctx.checkpoint()
            await asyncio.sleep(PAUSE)
        status = "done"
    except Interrupted as interrupted:
        # A page interrupts with its person's name as the message; a server that shuts down interrupts without one.
        if isinstance(interrupted.message, str):
            status, stopped_by = "stopped", interrupted.message[:40]
    finally:
        thread.end(id, status, stopped_by)


def add_assistant(app: Plait) -> None:
    """Add the assistant's agent to an app."""
    app.agent("answer", thread=Assistant, wait_timeout=3600)(answer)


# The pages choose the names of threads, so the secret for signed ids need not be kept.
app = Plait(Assistant, static=PAGES, secret=token_hex())
add_assistant(app)
