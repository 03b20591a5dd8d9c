"""Changes as plain JSON Patch (RFC 6902), which has no operations inside of texts."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from plait.store.protocol import ChangeRow
from plait_schemas.codec import encode_json
from plait_schemas.patch import Op, Owned, apply, decode_ops, find, parse

__all__ = ["to_json_patch"]


def to_json_patch(document: Any, rows: Iterable[ChangeRow], *, most: int) -> list[ChangeRow]:
    """Return the first changes of a document with the whole text in the place of what is done inside of it.

    They end after the one at which their operations have `most` bytes, as texts may be long. Raises PatchError.
    """
    found: list[ChangeRow] = []
    owned: Owned = {}
    for row in rows:
        ops: list[Op] = []
        for op in decode_ops(row.ops):
            document = apply(document, [op], owned)
            if op.op != "splice":
                ops.append(op)
                continue
            if ops and ops[-1].op == "replace" and ops[-1].path == op.path:
                ops.pop()
            ops.append(Op("replace", op.path, find(document, parse(op.path))))
        found.append(replace(row, ops=encode_json(ops)))
        most -= len(found[-1].ops)
        if most <= 0:
            break
    return found
