"""The messages of Pydantic AI as messages of a thread, and back."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    repair_messages,
)

from plait.agents.execution.model_attempts import CallPiece, Piece, Thought
from plait.parts.messages.message import Message, OwnMetadata, make_call, make_own, read_call, read_own

__all__ = ["NAME", "Known", "find_piece", "find_text", "link", "read_history", "read_messages", "write_message"]

NAME: Final = "pydantic_ai"
"""The member of plait's metadata of a message that has the data for which the message has no field."""

# The role of each part with content. Other parts are for agents only, except calls of tools.
_ROLES: Final = {
    "system-prompt": "system",
    "user-prompt": "user",
    "tool-return": "tool",
    "retry-prompt": "tool",
    "text": "assistant",
}
_CALL: Final = "tool-call"

Part = dict[str, Any]

Known = dict[str, tuple[Sequence[Message], list[ModelMessage], bool]]
"""Read rounds, by the ids of their first messages: what was read, what it became, and whether it is whole."""


def find_text(event: object) -> str | None:
    """Return the text that an event of a model's answer adds; None if it adds none."""
    match event:
        case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return text
    return None


def find_piece(event: object) -> Piece | None:
    """Return what an event of a model's answer adds to it; None if that is nothing to show."""
    match event:
        case (
            PartStartEvent(part=ThinkingPart(content=text))
            | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text))
        ):
            return Thought(text) if text else None
        case PartStartEvent(index=at, part=ToolCallPart(tool_name=name, args=args)):
            return CallPiece(at, "" if args is None else _write_arguments(args), name)
        case PartDeltaEvent(index=at, delta=ToolCallPartDelta(args_delta=str(text))):
            return CallPiece(at, text)
    return find_text(event)


def write_message(message: ModelMessage, *, is_said: bool = False) -> list[dict[str, Any]]:
    """Return a message of Pydantic AI as the arguments of one `inject` or more.

    The parts of a request are messages, and so are the texts and calls of a response together, with `is_said` texts by
    themselves. Each message has its parts in its metadata, and the first one has the rest, except the instructions of a
    request: each run gets them from its agent. Prompts come first.
    """
    (whole,) = ModelMessagesTypeAdapter.dump_python([message], mode="json")
    parts: list[Part] = whole.pop("parts")
    whole = {key: value for key, value in whole.items() if value is not None and key != "instructions"}
    groups = _group_request(parts) if whole["kind"] == "request" else _group_response(parts, is_said=is_said)
    written = []
    for number, places in enumerate(groups):
        fields, kept = _write_parts([parts[at] for at in places])
        metadata = {"at": places, "parts": kept} if number else {"message": whole, "at": places, "parts": kept}
        written.append({**fields, "metadata": make_own({NAME: metadata})})
    return written


def link(metadata: OwnMetadata, first: str | None) -> OwnMetadata:
    """Return the metadata of a message that belongs to the one with the id `first`, which was written before it."""
    return metadata if first is None else make_own({NAME: {**metadata.own[NAME], "of": first}})


def read_messages(found: Sequence[Message]) -> list[ModelMessage]:
    """Return messages of a thread as those of Pydantic AI, also messages that others have written."""
    return ModelMessagesTypeAdapter.validate_python(_make_messages(found)[0])


def read_history(seen: Sequence[Message], known: Known) -> list[ModelMessage]:
    """Return the view of a model in messages that all providers accept: each call has a result.

    Rounds that are as they were in an earlier call with `known` are not read again.
    """
    read: list[ModelMessage] = []
    fits = True
    for messages in _split(seen):
        id = messages[0].id
        if id not in known or known[id][0] != messages:
            made, is_whole = _make_messages(messages)
            known[id] = messages, repair_messages(ModelMessagesTypeAdapter.validate_python(made)), is_whole
        _, found, is_whole = known[id]
        fits = fits and (not read or (is_whole and _follows(found, read[-1])))
        read += found
    return read if fits else repair_messages(read_messages(seen))


def _follows(found: Sequence[ModelMessage], before: ModelMessage) -> bool:
    """Whether messages begin with a response to the one before them."""
    return bool(found) and found[0].kind == "response" and before.kind == "request" and bool(before.parts)


def _split(seen: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Yield messages in rounds: each begins with an answer, and ends before the next one."""
    start, is_asked = 0, False
    for at, each in enumerate(seen):
        if each.role != "assistant":
            is_asked = True
        elif is_asked and "of" not in read_own(each).get(NAME, {}):
            yield seen[start:at]
            start, is_asked = at, False
    if start < len(seen):
        yield seen[start:]


def _make_messages(found: Sequence[Message]) -> tuple[list[dict[str, Any]], bool]:
    """Return the data from which messages of Pydantic AI are made, and whether no message belongs to an earlier round.

    Others may come between an answer and its thoughts.
    """
    made: list[dict[str, Any]] = []
    ids, is_whole = {each.id for each in found}, True
    # The parts of each message that has several, by their places, by the id of the first one.
    open: dict[str, dict[int, Part | None]] = {}
    for each in found:
        kept = read_own(each).get(NAME, {})
        is_whole = is_whole and kept.get("of", each.id) in ids
        if kept and not _fits(each, kept):
            made += _make_plain(each)
            continue
        if "message" in kept:
            places: dict[int, Part | None] = {}
            open[each.id] = places
            made.append({**kept["message"], "parts": places})
        elif (others := open.get(kept.get("of", ""))) is not None:
            places = others
        else:
            made += _make_plain(each)
            continue
        places.update(zip(kept["at"], _read_parts(each, kept["parts"]), strict=True))
    for message in made:
        if isinstance(places := message["parts"], dict):
            message["parts"] = [part for _, part in sorted(places.items()) if part is not None]
    return made, is_whole


def _fits(message: Message, kept: Mapping[str, Any]) -> bool:
    """Whether a message still is as it was written: it has its calls, and is no answer of the other side."""
    is_answer = kept.get("message", {}).get("kind") == "response"
    calls = sum(part["part_kind"] == _CALL for part in kept["parts"])
    return not (is_answer and message.role == "user") and calls == len(message.tool_calls or ())


def _group_request(parts: Sequence[Part]) -> list[list[int]]:
    """Return the places of each message's part, the prompts first, since they are there before the rest."""
    return [[at] for at in sorted(range(len(parts)), key=lambda at: parts[at]["part_kind"] != "user-prompt")] or [[]]


def _group_response(parts: Sequence[Part], *, is_said: bool) -> list[list[int]]:
    texts = [at for at, part in enumerate(parts) if part["part_kind"] == "text"]
    calls = [at for at, part in enumerate(parts) if part["part_kind"] == _CALL]
    others = [at for at in range(len(parts)) if at not in (*texts, *calls)]
    groups = [texts, calls, others] if is_said else [[*texts, *calls], others]
    return [group for group in groups if group] or [[]]


def _write_parts(parts: Sequence[Part]) -> tuple[dict[str, Any], list[Part]]:
    """Return the fields of a message that has some parts, and the data of the parts that the fields cannot hold."""
    texts = [part for part in parts if part["part_kind"] in _ROLES]
    calls = [part for part in parts if part["part_kind"] == _CALL]
    kept = [_shorten(part, is_only=len(texts) == 1) for part in parts]
    if not texts:
        return {"role": "assistant", "tool_calls": _write_calls(calls), "silent": not calls}, kept
    role, first = _ROLES[texts[0]["part_kind"]], texts[0]
    fields: dict[str, Any] = {"role": role, "content": _read_contents(texts), "tool_calls": _write_calls(calls)}
    if role == "tool" and first["tool_name"] is None:  # Such a part tells the model what is wrong with its answer.
        return fields | {"role": "user", "silent": True}, kept
    if role == "tool":
        return fields | {"name": first["tool_name"], "tool_call_id": first["tool_call_id"]}, kept
    return fields | {"silent": role == "system"}, kept


def _write_calls(calls: Sequence[Part]) -> list[dict[str, Any]] | None:
    return [
        make_call(part["tool_call_id"], part["tool_name"], _write_arguments(part["args"])) for part in calls
    ] or None


def _write_arguments(args: Any) -> str:
    return args if isinstance(args, str) else json.dumps(args or {}, ensure_ascii=False)


def _shorten(part: Part, *, is_only: bool) -> Part:
    """Return a part without the data that its message has in its fields."""
    told: set[str] = set()
    if part["part_kind"] == _CALL:
        told = {"tool_call_id", "tool_name"} | ({"args"} if isinstance(part["args"], str) else set())
    elif part["part_kind"] in _ROLES and is_only and isinstance(part["content"], str):
        told = {"content"}
    return {
        key: value
        for key, value in part.items()
        if key not in told and (value is not None or key in ("args", "content"))
    }


def _read_parts(message: Message, kept: Sequence[Part]) -> list[Part | None]:
    """Return the parts of a message, None for a missing one; the first part has the content if it was changed."""
    texts = [part for part in kept if part["part_kind"] in _ROLES]
    said = message.content or ""
    is_changed = _read_contents(texts, said) != said
    calls = list(map(read_call, message.tool_calls or ()))
    parts: list[Part | None] = []
    for part in kept:
        if part["part_kind"] == _CALL:
            id, name, arguments = calls.pop(0)
            parts.append({"tool_call_id": id, "tool_name": name, "args": arguments, **part})
        elif part["part_kind"] not in _ROLES:
            parts.append(part)
        elif not is_changed:
            parts.append({"content": said, **part})
        else:
            parts.append({**part, "content": said} if part is texts[0] else None)
    return parts


def _read_contents(texts: Sequence[Part], said: str = "") -> str:
    """Return the joined content of parts; `said` is the content of a part that has none."""
    return "".join(_read_text(part.get("content", said)) for part in texts)


def _read_text(content: Any) -> str:
    """Return a content as a text: the texts in a list, and JSON of all else."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [each.get("content") if isinstance(each, dict) else each for each in content]
        if any(isinstance(each, str) for each in texts):
            return "\n".join(each for each in texts if isinstance(each, str))
    return json.dumps(content, ensure_ascii=False)


def _make_plain(message: Message) -> list[dict[str, Any]]:
    """Return the messages that the fields of a message make; none if the fields are empty."""
    at = {"timestamp": message.created_at / 1_000_000}
    text = message.content or ""
    if message.role == "assistant":
        parts: list[Part] = [{"part_kind": "text", "content": text}] if text else []
        for id, name, arguments in map(read_call, message.tool_calls or ()):
            parts.append({"part_kind": _CALL, "tool_name": name, "args": arguments, "tool_call_id": id})
        return [{"kind": "response", "parts": parts, **at}] if parts else []
    part: Part = {"part_kind": f"{message.role}-prompt", "content": text, **at}
    if message.role == "tool":
        part |= {
            "part_kind": "tool-return",
            "tool_name": message.name or "",
            "tool_call_id": message.tool_call_id or "",
        }
    return [{"kind": "request", "parts": [part]}]
