"""Converts changes to plain JSON Patch (RFC 6902), which has no operations inside of texts."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from plait.store.thread_rows import ChangeRow
from plait_schemas.codec import encode_json
from plait_schemas.patch import Op, Owned, apply, decode_ops, find, parse

__all__ = ["to_json_patch"]


def to_json_patch(document: Any, rows: Iterable[ChangeRow], *, most: int) -> list[ChangeRow]:
    """Return the first changes of a document, with each splice replaced by the whole resulting text.

    As texts may be long, the result ends with the change at which the operations reach `most` bytes. A change whose
    texts have more than `most` characters replaces the whole document. Raises PatchError.
    """
    found: list[ChangeRow] = []
    owned: Owned = {}
    left = most
    for row in rows:
        document, ops = _write_out(document, decode_ops(row.ops), owned, most)
        found.append(replace(row, ops=encode_json(ops)))
        left -= len(found[-1].ops)
        if left <= 0:
            break
    return found


def _write_out(document: Any, ops: Iterable[Op], owned: Owned, most: int) -> tuple[Any, list[Op]]:
    """Return a document after operations, and the operations with whole texts of at most `most` characters in total.

    Consecutive splices become one operation for each text.
    """
    found: list[Op] = []
    for is_inside, run in groupby(ops, lambda op: op.op == "splice"):
        same = list(run)
        document = apply(document, same, owned)
        if most < 0:
            continue
        if not is_inside:
            found += same
            continue
        for path in dict.fromkeys(op.path for op in same):
            text = find(document, parse(path))
            found.append(Op("replace", path, text))
            most -= len(text)
    return document, found if most >= 0 else [Op("replace", "", document)]
