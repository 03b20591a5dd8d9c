"""The operations that undo others."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from plait_schemas.patch import Op, Owned, apply, find, parse, region_of, splices, text_at
from plait_schemas.shape import Shape
from plait_schemas.step import SCALARS
from plait_schemas.text import UNKNOWN
from plait_schemas.text import invert as invert_text

__all__ = ["invert", "taking_back"]


def invert(document: Any, ops: Iterable[Op]) -> list[Op]:
    """Return the operations that lead back to `document` after `ops` were applied to it. Raises PatchError."""
    inverse: list[Op] = []
    owned: Owned = {}
    for op in ops:
        # Invert the operation before it is applied: a value that it removes is not changed by later ones.
        if op.op == "splice":
            inverse += splices(op.path, invert_text(text_at(document, op), (region_of(op),)))
        else:
            parts = parse(op.path)
            _take_back(op, parts, find(document, parts[:-1]), find(document, parts), inverse)
        document = apply(document, [op], owned)
    return inverse[::-1]


def taking_back(ops: Iterable[Op], document: Any) -> list[Op]:
    """Return the inverse of those operations that fit a document, for other operations to be rebased over.

    The inverse has no values, which may be large, and only the number of a text's characters. An operation that leads
    into an unknown value is left out.
    """
    shape = Shape(document)
    inverse: list[Op] = []
    for op in ops:
        parts = parse(op.path)
        container, there = shape.look(parts[:-1]), shape.look(parts)
        if op.op == "splice":
            if there is not msgspec.UNSET:
                at, remove, insert = region_of(op)
                inverse += splices(op.path, [(at, len(insert), UNKNOWN * remove)])
            continue
        if op.op == "add" and parts:
            fits = not isinstance(container, SCALARS)
        else:
            fits = op.op == "add" or there is not msgspec.UNSET
        if fits:
            _take_back(op, parts, container, there, inverse)
            shape.do(op.op, parts, op.value)
    return [op if op.op == "splice" else Op(op.op, op.path, moved=op.moved) for op in inverse[::-1]]


def _take_back(op: Op, parts: Sequence[str], container: Any, there: Any, inverse: list[Op]) -> None:
    """Append the inverse of an operation, given its container and the value that was there; a move becomes a move."""
    if not parts:
        back = Op("replace", "", there)
    elif op.op == "remove":
        back = Op("add", op.path, there)
    elif op.op == "add" and isinstance(container, list | tuple):
        index = len(container) if parts[-1] == "-" else parts[-1]
        back = Op("remove", f"{op.path[: op.path.rindex('/')]}/{index}")
    else:
        back = Op("remove", op.path) if there is msgspec.UNSET else Op("replace", op.path, there)
    if op.moved is True and inverse and inverse[-1].op == "add":
        inverse[-1] = Op("add", inverse[-1].path, inverse[-1].value, moved=True)
    inverse.append(back)
