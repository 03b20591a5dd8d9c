"""Renders messages as UI messages, and finds the chunks between what a page has and what it is to have. No I/O.

Nothing is stored for pages: an answer is what lies between a question and the next one, and its id is that of the
question with a suffix.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from plait.parts.messages.message import STATUS, Message, read_call, read_own
from plait.web.http.chat.parts import STEP, Approval, Chunk, Part, UIMessage, make_chunks
from plait_schemas.codec import NOT_JSON

__all__ = [
    "ANSWER",
    "Group",
    "Link",
    "Shown",
    "find_chunks",
    "is_question",
    "render",
    "render_page",
    "split",
]

ANSWER: Final = ".answer"
"""The suffix of the id of an answer, after that of its question."""

Forks = Mapping[str, Sequence[Message]]

Link = Callable[[str], str]
"""Returns the URL of a file of the thread."""

# What results of calls say that a person has refused.
_REFUSED: Final = "a person has refused the call"
_RANKS: Final = {"input-streaming": 0, "input-available": 1, "approval-requested": 1}


class Shown(NamedTuple):
    """A part, and the id of what it shows; the id is empty for what a page has told."""

    id: str
    part: Part


class Group(NamedTuple):
    """A question and the messages of its answer; the first group of a conversation has no question."""

    question: Message | None
    messages: list[Message]


def is_question(message: Message) -> bool:
    """Whether a message begins a group: one of a person."""
    return message.role == "user" and not message.depth and message.subagent_id is None


def split(messages: Collection[Message]) -> tuple[list[Group], list[Message]]:
    """Return the groups of a conversation, in order, and the questions that wait.

    A pending question that a run has taken stands before what the run streams, and gets its place later.
    """
    streaming = sorted((each for each in messages if each.taken), key=lambda each: each.position, reverse=True)
    places = {id: each.position - 0.5 for each in streaming for id in each.taken}
    groups, waiting = [Group(None, [])], list[Message]()

    def place(message: Message) -> tuple[bool, float, int]:
        is_pending = message.status == "pending"
        taken = places.get(message.id) if is_pending else None
        return is_pending and taken is None, taken or message.position, message.position

    for each in sorted(messages, key=place):
        if not is_question(each):
            groups[-1].messages.append(each)
        elif each.status == "pending" and each.id not in places:
            waiting.append(each)
        else:
            groups.append(Group(each, []))
    if waiting:  # What has failed since then was an attempt at a waiting question, which follows.
        since, last = min(each.position for each in waiting), groups.pop()
        kept = [each for each in last.messages if each.status != "failed" or each.position < since]
        groups.append(last._replace(messages=kept))
    return groups, waiting


def render(messages: Sequence[Message], awaited: Collection[str], link: Link) -> list[Shown]:
    """Return the parts of an answer; calls in `awaited` wait for approval."""
    results = {each.tool_call_id: each for each in messages if each.role == "tool"}
    thoughts = {each.parent_id: each for each in messages if each.depth and each.name == "reasoning"}
    said = [each for each in messages if each.role == "assistant" and not each.depth and not each.silent]
    shown: list[Shown] = []
    for each in said:
        if each.status == "failed" and each is not said[-1]:
            continue  # Another attempt has followed, which says the same again.
        shown.append(Shown(f"{each.id}/step", Part(type=STEP)))
        if (thought := thoughts.get(each.id)) is not None:
            shown.append(Shown(f"{thought.id}/reasoning", _make_text("reasoning", thought)))
        if each.content:
            shown.append(Shown(f"{each.id}/text", _make_text("text", each)))
        shown += _render_files(each, link)
        shown += _render_calls(each, results, awaited, link)
    return shown


def find_chunks(before: Sequence[Shown], after: Sequence[Shown]) -> tuple[list[Chunk], Sequence[Shown]] | None:
    """Return the chunks that lead from what a page has to what it is to have, and what it has then.

    None if steps before its last one have changed, which no chunk can tell.
    """
    chunks: list[Chunk] = []
    same = next((at for at, pair in enumerate(zip(before, after, strict=False)) if not _grows(*pair)), None)
    kept = min(len(before), len(after)) if same is None else same
    if kept < len(before):
        steps = [at for at, each in enumerate(before) if each.part.type == STEP]
        if not steps or kept < steps[-1]:
            return None
        # An attempt was given up, and perhaps begun again: the page drops the parts of its last step.
        before = before[: steps[-1] + 1]
        chunks.append(Chunk(type="reset-step"))
    for old, new in zip(before, after, strict=False):
        chunks += make_chunks(old.part, new.part, new.id)
    for number, new in enumerate(after[len(before) :], len(before)):
        if number and new.part.type == STEP:
            chunks.append(Chunk(type="finish-step"))
        chunks += make_chunks(None, new.part, new.id)
    return chunks, (after if len(after) >= len(before) else before)


def render_page(messages: Sequence[Message], awaited: Collection[str], link: Link, forks: Forks) -> list[UIMessage]:
    """Return a page of the history, with the ids of the siblings of messages; waiting questions are at its end."""
    shown: list[UIMessage] = []
    groups, waiting = split(messages)
    for question, answer in groups:
        if question is not None:
            shown.append(_render_question(question, link, forks))
        parts = [each.part for each in render(answer, awaited, link)]
        # With a question after it, an answer that begins later would be last.
        if parts or (waiting and question is not None and question is groups[-1].question):
            id = answer[0].id if question is None else f"{question.id}{ANSWER}"
            shown.append(UIMessage(id, "assistant", parts, _describe(answer[0], forks) if answer else UNSET))
    return [*shown, *(_render_question(each, link, forks) for each in waiting)]


# Inside


def _make_text(type: str, message: Message) -> Part:
    return Part(type=type, text=message.content or "", state="streaming" if message.status == "streaming" else "done")


def _render_calls(
    message: Message, results: Mapping[str | None, Message], awaited: Collection[str], link: Link
) -> Iterator[Shown]:
    """Yield the calls that have a result, and the first one that has none: calls are carried out in order."""
    is_open = False
    for id, name, arguments in map(read_call, message.tool_calls or ()):
        result = results.get(id)
        if result is None and is_open:
            continue
        part = Part(type=f"tool-{name}", tool_call_id=id, input=_decode(arguments or "{}"), state="input-available")
        if message.status == "streaming":
            part = replace(part, state="input-streaming", input=UNSET, raw_input=arguments)
        elif result is not None:
            part = _answer(part, result, id)
        elif id in awaited:
            part = replace(part, state="approval-requested", approval=Approval(id))
        is_open |= result is None
        yield Shown(f"{message.id}/{id}", part)
        if result is not None:
            yield from _render_files(result, link)


def _answer(part: Part, result: Message, call: str) -> Part:
    text = result.content or ""
    if read_own(result).get(STATUS) != "error":
        return replace(part, state="output-available", output=_decode(text) if text[:1] in ("{", "[") else text)
    if _REFUSED in text:
        return replace(part, state="output-denied", approval=Approval(call, approved=False))
    return replace(part, state="output-error", error_text=text)


def _decode(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except NOT_JSON:
        return text


def _render_files(message: Message, link: Link) -> Iterator[Shown]:
    for each in message.attachments:
        if (part := _make_file(each, link)) is not None:
            yield Shown(f"{message.id}/{part.url}", part)


def _make_file(attachment: Mapping[str, Any], link: Link) -> Part | None:
    """Return the part of an attachment; None if it has neither a path nor a URL."""
    match attachment:
        case {"path": str(path)}:
            url = link(path)
        case {"url": str(url)}:
            pass
        case _:
            return None
    media_type, name = attachment.get("mime"), attachment.get("name")
    return Part(
        type="file",
        url=url,
        media_type=media_type if isinstance(media_type, str) else "application/octet-stream",
        filename=name if isinstance(name, str) else UNSET,
    )


def _render_question(message: Message, link: Link, forks: Forks) -> UIMessage:
    parts = [each.part for each in _render_files(message, link)]
    if message.content:
        parts.append(Part(type="text", text=message.content))
    return UIMessage(message.id, "user", parts, _describe(message, forks))


def _describe(message: Message, forks: Forks) -> dict[str, Any]:
    """Return the metadata of a message: its time in milliseconds, its sender, and its siblings if it has any."""
    found: dict[str, Any] = {"createdAt": message.created_at // 1000}
    if isinstance(user := message.metadata.get("user"), str):
        found["user"] = user
    if siblings := [each.id for each in forks.get(message.id, ())]:
        found["siblings"] = siblings
    return found


def _grows(before: Shown, after: Shown) -> bool:
    """Whether a part that a page has can become another one."""
    old, new = before.part, after.part
    if old.type == new.type == STEP:
        return True
    if old.type != new.type or before.id not in ("", after.id):
        return False
    if not before.id and "streaming" in f"{old.state} {new.state}":
        return False  # A page cannot continue a text of an earlier stream.
    match old.type:
        case "text" | "reasoning":
            return new.text == old.text if old.state == "done" else str(new.text).startswith(str(old.text))
        case "file":
            return old.url == new.url
    ranks = [_RANKS.get(str(each.state), 2) for each in (old, new)]
    is_same = ranks[0] < 2 or (old.state, old.output) == (new.state, new.output)
    return old.tool_call_id == new.tool_call_id and ranks[0] <= ranks[1] and is_same
