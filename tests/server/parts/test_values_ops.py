"""Operations on values: what is appended to which JSON."""

import msgspec
from tests.cases import each_case
from tests.server.agents.lab import Lab
from tests.server.parts.files_lab import count_calls

from plait.parts.values_ops import Push
from plait_schemas.codec import decode_json


@each_case("most", [None, 2])
@each_case("text", ["[]", "[ ]", "[1] ", " [1]", "[1 , 2]", '["," , [3,4]]'])
async def test_a_push_to_a_list_with_blanks_is_read_after_a_wake(lab: Lab, text: str, most: int | None) -> None:
    thread = await lab.thread()
    await thread.values.set("list", msgspec.Raw(text.encode()))
    await thread.values.push("list", 3, most)
    await lab.sleep()
    assert await lab.values() == {"list": [*decode_json(text.encode()), 3][-(most or 9) :]}


def test_a_push_splits_no_list_that_has_room() -> None:
    long = b"[" + b",".join([b"1"] * 10_000) + b"]"
    assert count_calls(lambda: Push("list", b"1", 20_000).append(long)) < 10
