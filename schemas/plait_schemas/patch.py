"""JSON Patch (RFC 6902) operations `add`, `remove` and `replace`, and the JSON pointers that they go to."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from plait_schemas.members import attributes

__all__ = [
    "Op",
    "Owned",
    "PatchError",
    "apply",
    "decode_ops",
    "escape",
    "find",
    "index_in",
    "is_index",
    "own",
    "parse",
]


class Op(msgspec.Struct, frozen=True):
    """One JSON Patch operation; `path` is a JSON pointer, and a `remove` has no value.

    An `add` that has `moved` puts an element of a list where it has moved to: the `remove` right before it has taken it
    out of the same list.
    """

    op: Literal["add", "remove", "replace"]
    path: str
    value: Any = msgspec.UNSET
    moved: bool | msgspec.UnsetType = msgspec.UNSET


class PatchError(ValueError):
    """An operation that does not fit the document it is applied to."""


decode_ops = msgspec.json.Decoder(list[Op]).decode


def escape(key: str) -> str:
    """Return `key` as one part of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1") if "~" in key or "/" in key else key


def parse(pointer: str) -> list[str]:
    """Return the parts of a JSON pointer, unescaped."""
    if not pointer:
        return []
    if pointer[0] != "/":
        raise PatchError(f"a JSON pointer starts with a slash: {pointer!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/")]


def is_index(part: str) -> bool:
    """Tell whether a part of a JSON pointer may be the index of an element."""
    return part.isascii() and part.isdigit() and (part[0] != "0" or part == "0") and len(part) < 16


# Apply


Owned = dict[int, Any]
"""The containers that were copied, by their ids, which are theirs as long as they are kept here."""


def apply(document: Any, ops: Iterable[Op], owned: Owned | None = None) -> Any:
    """Return `document`, a tree of dicts and lists, with `ops` carried out in order.

    The document is left as it was: only what lies on the way to a change is copied, once, all else is shared. But
    what earlier calls have copied, and noted in `owned`, is changed in place. Raises PatchError when a path does not
    exist.
    """
    owned = {} if owned is None else owned
    for op in ops:
        if op.value is msgspec.UNSET and op.op != "remove":
            raise PatchError(f"{op.op} {op.path!r} has no value")
        document = _apply(document, parse(op.path), op, owned)
    return document


def _apply(node: Any, parts: list[str], op: Op, owned: Owned) -> Any:
    if not parts:
        if op.op == "remove":
            raise PatchError("the whole document cannot be removed")
        return op.value
    head, rest = parts[0], parts[1:]
    if isinstance(node, dict):
        return _apply_to_object(node, head, rest, op, owned)
    if isinstance(node, list):
        return _apply_to_array(node, head, rest, op, owned)
    raise PatchError(f"{op.path!r} leads into a value that has no members")


def _apply_to_object(node: dict[str, Any], key: str, rest: list[str], op: Op, owned: Owned) -> dict[str, Any]:
    if key not in node and (rest or op.op != "add"):
        raise PatchError(f"{op.path!r} does not exist")
    value = _apply(node[key], rest, op, owned) if rest else op.value
    copy: dict[str, Any] = own(node, owned)
    if op.op == "remove" and not rest:
        del copy[key]
    else:
        copy[key] = value
    return copy


def _apply_to_array(node: list[Any], part: str, rest: list[str], op: Op, owned: Owned) -> list[Any]:
    index = index_in(node, part, op, is_last=not rest)
    value = _apply(node[index], rest, op, owned) if rest else op.value
    copy: list[Any] = own(node, owned)
    if rest or op.op == "replace":
        copy[index] = value
    elif op.op == "add":
        copy.insert(index, value)
    else:
        del copy[index]
    return copy


def own(node: Any, owned: Owned) -> Any:
    """Return a container that may be changed: the node itself if it is a copy already."""
    if id(node) in owned:
        return node
    copy = node.copy()
    owned[id(copy)] = copy
    return copy


def index_in(array: Sequence[Any], part: str, op: Op, *, is_last: bool) -> int:
    """Return where a part of an operation's path, which may be the last one, leads in an array. Raises PatchError."""
    adds = is_last and op.op == "add"
    if part == "-" and adds:
        return len(array)
    if not is_index(part):
        raise PatchError(f"{op.path!r}: {part!r} is not an array index")
    if (index := int(part)) >= len(array) + adds:
        raise PatchError(f"{op.path!r} is past the end of the array")
    return index


# Reading


def find(document: Any, parts: Sequence[str]) -> Any:
    """Return what is at a place of a document, or of a tree of Structs that stands for one; UNSET for nothing."""
    for part in parts:
        if isinstance(document, dict):
            document = document.get(part, msgspec.UNSET)
        elif isinstance(document, list | tuple) and is_index(part) and int(part) < len(document):
            document = document[int(part)]
        elif (names := attributes(document)) is not None and part in names:
            document = getattr(document, names[part])
        else:
            return msgspec.UNSET
    return document
