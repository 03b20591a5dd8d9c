"""Renders messages as UI messages, and finds the chunks between what a page has and what it is to have. No I/O.

Nothing is stored for pages: an answer is what lies between a question and the next one, and its id is that of the
question with a suffix.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import compress
from operator import attrgetter, not_
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from plait.parts.messages.message import STATUS, Message, read_call, read_own
from plait.web.http.chat.parts import STEP, Approval, Chunk, Part, UIMessage, make_chunks

__all__ = [
    "ANSWER",
    "Group",
    "Link",
    "Shown",
    "find_chunks",
    "find_group",
    "find_questions",
    "is_question",
    "render",
    "render_page",
]

ANSWER: Final = ".answer"
"""The suffix of the id of an answer, after that of its question."""

Forks = Mapping[str, Sequence[Message]]

Link = Callable[[str], str]
"""Returns the URL of a file of the thread."""

# What results of calls say that a person has refused.
_REFUSED: Final = "a person has refused the call"
_place: Final = attrgetter("position")
_RANKS: Final = {"input-streaming": 0, "input-available": 1, "approval-requested": 1}


class Shown(NamedTuple):
    """A part, and the id of what it shows; the id is empty for what a page has told."""

    id: str
    part: Part


class Group(NamedTuple):
    """A question, whether the agent has taken it, the messages after it, and whether another question follows them."""

    question: Message
    is_taken: bool
    messages: Sequence[Message] = ()
    is_followed: bool = False


def is_question(message: Message) -> bool:
    """Whether a message begins a group: one of a person."""
    return message.role == "user" and not message.depth and message.subagent_id is None


def find_questions(found: Mapping[str, Message]) -> tuple[list[Message], list[Message]]:
    """Return the questions that an agent has taken, and those that wait, in order."""
    taken = _find_taken(found)
    questions = [each for each in _order(found, taken) if is_question(each)]
    waits = [each.status == "pending" and each.id not in taken for each in questions]
    return [*compress(questions, map(not_, waits))], [*compress(questions, waits)]


def find_group(found: Mapping[str, Message], id: str) -> Group | None:
    """Return a question with its answer; None if it is not there."""
    if (question := found.get(id)) is None:
        return None
    taken = _find_taken(found)
    if question.status == "pending" and id not in taken:
        return Group(question, is_taken=False)
    order = [each for each in _order(found, taken) if each.status != "pending" or each.id in taken]
    after = order[order.index(question) + 1 :]
    end = next((at for at, each in enumerate(after) if is_question(each)), None)
    return Group(question, True, after[:end], is_followed=end is not None)


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
    found = {each.id: each for each in messages}
    taken, waiting = find_questions(found)
    pending = {each.id for each in waiting}
    shown: list[UIMessage] = []
    groups: list[tuple[Message | None, list[Message]]] = [(None, [])]
    for each in _order(found, _find_taken(found)):
        if each.id in pending:
            continue
        if is_question(each):
            groups.append((each, []))
        else:
            groups[-1][1].append(each)
    for question, answer in groups:
        if question is not None:
            shown.append(_render_question(question, link, forks))
        parts = [each.part for each in render(answer, awaited, link)]
        # With a question after it, an answer that begins later would be last.
        if parts or (waiting and question is not None and question is taken[-1]):
            id = answer[0].id if question is None else f"{question.id}{ANSWER}"
            shown.append(UIMessage(id, "assistant", parts, _describe(answer[0], forks) if answer else UNSET))
    return [*shown, *(_render_question(each, link, forks) for each in waiting)]


# Inside


def _find_taken(found: Mapping[str, Message]) -> dict[str, Message]:
    """Return the first streaming messages by the ids of the pending ones that their runs have taken."""
    streaming = sorted((each for each in found.values() if each.taken), key=_place, reverse=True)
    return {id: each for each in streaming for id in each.taken}


def _order(found: Mapping[str, Message], taken: Mapping[str, Message]) -> list[Message]:
    """Return messages in order: what a run has taken stands before what it streams, and gets its place later."""

    def place(message: Message) -> tuple[bool, float, int]:
        by = taken.get(message.id)
        if by is not None and message.status == "pending":
            return False, by.position - 0.5, message.position
        return message.status == "pending", message.position, 0

    return sorted(found.values(), key=place)


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
    except msgspec.DecodeError:
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
