"""Reads what `useChat` sends: the message that matters, of all that the page has, and its files. No I/O."""

import base64
import binascii
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import unquote, unquote_to_bytes

import msgspec

from plait.errors import InvalidArguments
from plait.limits import Limits, check_json, check_weight
from plait.state.types import parse_json_error
from plait.store.record_checks import is_key
from plait.web.http.chat.parts import Part, UIMessage
from plait_schemas.codec import NOT_JSON

__all__ = ["Body", "DataFile", "Place", "Question", "read_body", "read_question"]

T = TypeVar("T")

_LONGEST_ID: Final = 200
_DATA: Final = "data:"


class Place(NamedTuple):
    """A place in a body, such as `messages[3].parts[0].url`."""

    steps: tuple[str, ...]

    def refuse(self, why: str) -> InvalidArguments:
        """Return the error for what is at the place."""
        text = "".join(f"[{each}]" if each.isdecimal() else f".{each}" for each in self.steps)
        path = "".join(f"/{each}" for each in self.steps)
        return InvalidArguments(f"{text.removeprefix('.') or 'the body'}: {why}", path=path)

    def inside(self, *steps: str | int) -> "Place":
        """Return a place in this one."""
        return Place((*self.steps, *map(str, steps)))


class Body(NamedTuple):
    """The message for which a page asks something: a question, or an answer with calls that people have answered."""

    trigger: str
    # The message that an edit replaces, or that is continued.
    message_id: str | None
    message: UIMessage
    place: Place
    # The message as JSON.
    raw: bytes


class DataFile(NamedTuple):
    """A file in a data URL."""

    url: str
    mime: str | None
    name: str
    place: Place

    def decode(self) -> bytes:
        """Return the content. Raises InvalidArguments."""
        head, comma, data = self.url.partition(",")
        if not comma:
            raise self.place.refuse("a data URL has a comma before its data")
        content = unquote_to_bytes(data)
        if not head.endswith(";base64"):
            return content
        try:
            return base64.b64decode(content, validate=True)
        except binascii.Error as error:
            raise self.place.refuse(f"the data is not base64: {error}") from None


class Question(NamedTuple):
    """The text of a user's message, the attachments that exist, and the files that must be stored."""

    text: str
    attachments: list[dict[str, Any]]
    files: list[DataFile]


class _Head(msgspec.Struct):
    id: str
    role: str


class _Body(msgspec.Struct, rename="camel"):
    messages: list[_Head]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: str | None = None


class _Messages(msgspec.Struct):
    messages: list[msgspec.Raw]


def read_body(data: bytes, limits: Limits) -> Body:
    """Return what a page asks for. Raises InvalidArguments and TooLarge."""
    # The heads first: a body of millions of other values is refused at once.
    body, place = _decode(data, _Body, Place(())), Place(("messages",))
    at = len(body.messages) - 1
    if at < 0:
        raise place.refuse("there is no message")
    if (id := body.message_id) is not None:
        at = next((at for at, each in enumerate(body.messages) if (each.id, each.role) == (id, "assistant")), at)
    raw, place = bytes(_decode(data, _Messages, Place(())).messages[at]), place.inside(at)
    check_json("the message", raw, limits)
    check_weight("message", raw, limits)
    message = _decode(raw, UIMessage, place)
    if not is_key(message.id) or len(message.id) > _LONGEST_ID:
        raise place.inside("id").refuse(f"an id has 1 to {_LONGEST_ID} characters, and no control characters")
    return Body(body.trigger, id, message, place, raw)


def read_question(body: Body, files: str) -> Question:
    """Return the question of a user's message; `files` is the beginning of the URLs of the thread's files."""
    message, place = body.message, body.place
    if message.role != "user":
        raise place.inside("role").refuse(f"the last message is the user's, not of {message.role!r}")
    question = Question(
        "\n".join(str(each.text) for each in message.parts if each.type == "text" and each.text), [], []
    )
    for number, each in enumerate(message.parts):
        at = place.inside("parts", number)
        match each:
            case Part(type="text", text=str()):
                pass
            case Part(type="file", url=str(url)):
                name = each.filename if isinstance(each.filename, str) else ""
                mime = each.media_type if isinstance(each.media_type, str) else None
                known = {key: value for key, value in (("name", name), ("mime", mime)) if value}
                if url.startswith(_DATA):
                    question.files.append(DataFile(url, mime, name, at.inside("url")))
                elif url.startswith(files):
                    question.attachments.append({"path": unquote(url.removeprefix(files)), **known})
                elif url.startswith(("https://", "http://")):
                    question.attachments.append({"url": url, **known})
                else:
                    raise at.inside("url").refuse("the URL of a file begins with data:, https: or http:")
            case Part(type="text" | "file" as type):
                raise at.inside("text" if type == "text" else "url").refuse("it is missing")
            case _:
                raise at.inside("type").refuse(f"a user's message has text and files, not {each.type[:80]!r}")
    if not question.text and not question.attachments and not question.files:
        raise place.inside("parts").refuse("there is neither text nor a file")
    return question


def _decode(data: bytes | msgspec.Raw, type: type[T], place: Place) -> T:
    try:
        return msgspec.json.decode(data, type=type)
    except NOT_JSON as error:
        message, path = parse_json_error(error)
        raise place.inside(*path.split("/")[1:]).refuse(message) from None
