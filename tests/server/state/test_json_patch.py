"""Changes as plain JSON Patch, with whole texts in the place of splices."""

from typing import Any

from tests.cases import each_case

from plait.state.json_patch import to_json_patch
from plait.store.thread_rows import ChangeRow
from plait_schemas.codec import encode_json
from plait_schemas.patch import Op, apply, decode_ops, splice

MOST = 10_000


def row(*ops: Op, version: int = 1) -> ChangeRow:
    return ChangeRow(version, encode_json(ops), "ada", 0)


def test_splices_that_follow_each_other_are_one_operation_for_each_text() -> None:
    change = row(*[splice(path, 0, 0, "z") for _ in range(3) for path in ("/a", "/b")], Op("replace", "/n", 1))
    (found,) = to_json_patch({"a": "", "b": "b", "n": 0}, [change], most=MOST)
    assert decode_ops(found.ops) == [
        Op("replace", "/a", "zzz"),
        Op("replace", "/b", "zzzb"),
        Op("replace", "/n", 1),
    ]


@each_case("between", [[], [Op("replace", "/n", 1)]])
def test_a_change_with_more_than_fits_replaces_the_document(between: list[Op]) -> None:
    document: Any = {"a": "a" * 1_000, "b": "b" * 1_000, "n": 0}
    first = [each for _ in range(200) for path in ("/a", "/b") for each in (splice(path, 0, 0, "z"), *between)]
    rows = [row(*first), row(splice("/a", 0, 200), version=2)]
    found = to_json_patch(document, rows, most=MOST)
    assert sum(len(each.ops) for each in found) < 2 * MOST
    for plain, change in zip(found, rows, strict=True):
        ops = decode_ops(plain.ops)
        assert all(op.op != "splice" for op in ops)
        assert apply(document, ops) == apply(document, decode_ops(change.ops))
        document = apply(document, ops)
