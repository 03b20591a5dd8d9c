"""The protocol's pages have every frame, and only such as the other side takes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
import pytest
from tests.cases import each_case

from plait_schemas.codes import BAD_FRAME, DESTROYED, FORBIDDEN, NOT_FOUND, OUTDATED, REPLACED, UNAUTHENTICATED
from plait_schemas.frames import decode_client, decode_server
from plait_schemas.frames import encode as encode_frame
from plait_schemas.messages import SUBPROTOCOL, UNANSWERED, ClientMessage, ServerMessage
from plait_schemas.patch import apply
from plait_schemas.rebase import rebase

PAGE = "\n".join(path.read_text() for path in sorted((Path(__file__).parents[2] / "docs").glob("protocol*.md")))
UNIONS = {"client": ClientMessage, "server": ServerMessage}
DECODERS: dict[str, Callable[[str], Any]] = {"client": decode_client, "server": decode_server}


class Example(NamedTuple):
    """A frame of the page, and the side that sends it."""

    side: str
    text: str

    def decode(self) -> Any:
        """Return the frame, as the other side reads it."""
        return DECODERS[self.side](self.text)


EXAMPLES = [
    Example(*found) for found in re.findall(r"^```json (client|server)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
]
each_example = each_case("example", EXAMPLES)


def defaults(frame: msgspec.Struct) -> dict[str, Any]:
    """Return the values with which fields may be left out, by their names on the wire."""
    found = {}
    for field in msgspec.structs.fields(frame):
        if field.default is not msgspec.NODEFAULT:
            found[field.encode_name] = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            found[field.encode_name] = field.default_factory()
    return found


def test_every_block_of_json_says_which_side_sends_it() -> None:
    assert len(EXAMPLES) == len(re.findall(r"^```json", PAGE, re.MULTILINE)) > 20


@each_example
def test_an_example_is_a_frame_of_its_side_with_all_its_fields(example: Example) -> None:
    frame = example.decode()
    written, again = json.loads(example.text), json.loads(encode_frame(frame))
    may_be_left_out = {name for name, value in defaults(frame).items() if name in written and written[name] == value}
    assert {name: value for name, value in written.items() if name not in may_be_left_out} == again


@pytest.mark.parametrize("side", UNIONS)
def test_every_frame_has_an_example(side: str) -> None:
    shown = {type(example.decode()) for example in EXAMPLES if example.side == side}
    assert [frame.__name__ for frame in get_args(UNIONS[side]) if frame not in shown] == []


@pytest.mark.parametrize("side", UNIONS)
def test_every_field_is_in_an_example_or_named_in_the_text(side: str) -> None:
    shown: set[tuple[str, str]] = set()
    for example in EXAMPLES:
        if example.side == side:
            written = json.loads(example.text)
            shown |= {(written["type"], name) for name in written}
    missing = [
        f"{frame.__name__}.{field.encode_name}"
        for frame in get_args(UNIONS[side])
        for field in msgspec.structs.fields(frame)
        if (frame.__struct_config__.tag, field.encode_name) not in shown and f"`{field.encode_name}`" not in PAGE
    ]
    assert missing == []


def test_the_examples_of_operations_have_all_four() -> None:
    ops = [op["op"] for example in EXAMPLES for op in json.loads(example.text).get("ops", ())]
    assert set(ops) == {"add", "remove", "replace", "splice"}


def test_the_example_of_two_who_write_in_one_text_ends_as_the_page_says() -> None:
    at = next(at for at, each in enumerate(EXAMPLES) if '"remove": 8' in each.text)
    push, changes, ack = (each.decode() for each in EXAMPLES[at : at + 3])
    newer = apply({"note": "the old word here"}, changes.ops)
    assert rebase(push.ops, changes.ops, newer).ops == list(ack.ops)
    assert f"`{json.dumps(apply(newer, ack.ops)['note'])}`" in PAGE


def test_the_page_has_the_numbers_and_names_of_the_code() -> None:
    assert f"`{SUBPROTOCOL}`" in PAGE
    assert f"At most {UNANSWERED} pushes" in PAGE
    for code in (BAD_FRAME, UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, REPLACED, OUTDATED, DESTROYED):
        assert f"| {code} |" in PAGE
