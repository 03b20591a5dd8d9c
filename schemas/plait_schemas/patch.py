"""JSON Patch (RFC 6902) operations `add`, `remove` and `replace`, `splice` in a text, and the JSON pointers to them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from plait_schemas import codec
from plait_schemas.codec import HALF_PAIR, decoded
from plait_schemas.members import attributes
from plait_schemas.text import Region, in_order, spliced

__all__ = [
    "Op",
    "Owned",
    "PatchError",
    "apply",
    "check_splice",
    "compact",
    "decode_ops",
    "escape",
    "find",
    "index_in",
    "is_index",
    "own",
    "parse",
    "read_op",
    "read_ops",
    "region_of",
    "splice",
    "splice_text",
    "splices",
    "text_at",
    "walk",
    "without_own",
]


class Op(msgspec.Struct, frozen=True):
    """One operation of JSON Patch, or a `splice`; `path` is a JSON pointer.

    A `remove` has no value. An `add` with `moved` moves an element of a list: the `remove` right before it has removed
    the element from the same list.

    A `splice` removes `remove` characters of a text, beginning at `at`, and inserts `insert` there; 0 and "" are left
    out. Characters are Unicode code points. Only a splice in a push may have `own`: the same client has inserted the
    character before `at`.
    """

    op: Literal["add", "remove", "replace", "splice"]
    path: str
    value: Any = msgspec.UNSET
    moved: bool | msgspec.UnsetType = msgspec.UNSET
    at: int | msgspec.UnsetType = msgspec.UNSET
    remove: int | msgspec.UnsetType = msgspec.UNSET
    insert: str | msgspec.UnsetType = msgspec.UNSET
    own: bool | msgspec.UnsetType = msgspec.UNSET


class PatchError(ValueError):
    """An operation that does not fit the document it is applied to."""


class _UndecodedOp(msgspec.Struct, frozen=True):
    """An operation whose value is still JSON."""

    op: Literal["add", "remove", "replace", "splice"]
    path: str
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    moved: bool | msgspec.UnsetType = msgspec.UNSET
    at: int | msgspec.UnsetType = msgspec.UNSET
    remove: int | msgspec.UnsetType = msgspec.UNSET
    insert: str | msgspec.UnsetType = msgspec.UNSET
    own: bool | msgspec.UnsetType = msgspec.UNSET


decode_ops = msgspec.json.Decoder(list[Op]).decode
_decode_op = msgspec.json.Decoder(Op).decode
_decode_undecoded = msgspec.json.Decoder(_UndecodedOp).decode
_split = msgspec.json.Decoder(list[msgspec.Raw]).decode


def read_ops(data: bytes) -> list[Op]:
    """Decode operations that were stored or encoded by this server; large values stay JSON."""
    if len(data) < codec.LARGE:
        return decode_ops(data)
    return [read_op(text, codec.read_value) for text in _split(data)]


def read_op(text: msgspec.Raw, read_value: Callable[[msgspec.Raw], Any]) -> Op:
    """Decode an operation; if it is large, its value is what `read_value` makes of the JSON."""
    if len(text) < codec.LARGE:
        return _decode_op(text)
    op = _decode_undecoded(text)
    value = op.value if isinstance(op.value, msgspec.UnsetType) else read_value(op.value)
    return Op(op.op, op.path, value, op.moved, op.at, op.remove, op.insert, op.own)


def escape(key: str) -> str:
    """Return `key` as one part of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1") if "~" in key or "/" in key else key


def parse(pointer: str) -> list[str]:
    """Return the parts of a JSON pointer, unescaped."""
    if not pointer:
        return []
    if pointer[0] != "/":
        raise PatchError(f"a JSON pointer starts with a slash, unlike {pointer!r}")
    parts = pointer[1:].split("/")
    return [part.replace("~1", "/").replace("~0", "~") for part in parts] if "~" in pointer else parts


def is_index(part: str) -> bool:
    """Tell whether a part of a JSON pointer may be the index of an element."""
    return part.isascii() and part.isdigit() and (part[0] != "0" or part == "0") and len(part) < 16


# Apply


_CONTAINERS: Final = (dict, list)

_MOST_REWRITTEN: Final = 10_000
"""The longest insertion that `compact` rewrites for a splice inside of it; appending to one costs nothing."""

Owned = dict[int, Any]
"""The containers that were copied, by their ids; keeping them here keeps the ids valid."""


def apply(document: Any, ops: Iterable[Op], owned: Owned | None = None) -> Any:
    """Return `document`, a tree of dicts and lists, after `ops` were applied in order.

    The document itself is not changed: the containers on the way to a change are copied once, all others are shared.
    Containers in `owned`, which earlier calls have copied, are changed in place. Raises PatchError when a path does not
    exist.
    """
    owned = {} if owned is None else owned
    for op in ops:
        if op.op == "splice":
            whole = Op("replace", op.path, splice_text(op, find(document, parse(op.path))))
            document = _apply(document, parse(op.path), whole, owned)
        elif op.value is msgspec.UNSET and op.op != "remove":
            raise PatchError(f"{op.op} {op.path!r} has no value")
        else:
            document = _apply(document, parse(op.path), op, owned)
    return document


def _apply(document: Any, parts: list[str], op: Op, owned: Owned) -> Any:
    if not parts:
        if op.op == "remove":
            raise PatchError("the whole document cannot be removed")
        return op.value
    root, node, depth = walk(document, parts[:-1], owned)
    part, is_last = parts[depth], depth == len(parts) - 1
    if isinstance(node, dict):
        if part not in node and (not is_last or op.op != "add"):
            raise PatchError(f"{op.path!r} does not exist")
        if op.op == "remove":
            del node[part]
        else:
            node[part] = op.value
    elif isinstance(node, list):
        index = index_in(node, part, op, is_last=is_last)
        if op.op == "replace":
            node[index] = op.value
        elif op.op == "add":
            node.insert(index, op.value)
        else:
            del node[index]
    else:
        raise PatchError(f"{op.path!r} leads into a value that has no members")
    return root


def own(node: Any, owned: Owned) -> Any:
    """Return a copy of a dict or list, to be changed; the node itself if it is already a copy, or not a container."""
    if type(node) is msgspec.Raw:
        node = decoded(node)
        owned[id(node)] = node
    elif isinstance(node, _CONTAINERS) and id(node) not in owned:
        node = node.copy()
        owned[id(node)] = node
    return node


def walk(
    document: Any, parts: Sequence[str], owned: Owned, own: Callable[[Any, Owned], Any] = own
) -> tuple[Any, Any, int]:
    """Copy the containers on the way to a place that is to be changed, up to the last one that exists.

    Returns the document with the copies, the last copy, and how many parts lead to it; `own` makes the copies.
    """
    node = root = own(document, owned)
    for depth, part in enumerate(parts):
        if isinstance(node, dict) and part in node:
            node[part] = node = own(node[part], owned)
        elif isinstance(node, list) and is_index(part) and int(part) < len(node):
            node[int(part)] = node = own(node[int(part)], owned)
        else:
            return root, node, depth
    return root, node, len(parts)


def index_in(array: Sequence[Any], part: str, op: Op, *, is_last: bool) -> int:
    """Return the index in an array for a part of an operation's path. Raises PatchError."""
    adds = is_last and op.op == "add"
    if part == "-" and adds:
        return len(array)
    if not is_index(part):
        raise PatchError(f"{op.path!r}: {part!r} is not an array index")
    if (index := int(part)) >= len(array) + adds:
        raise PatchError(f"{op.path!r} is past the end of the array")
    return index


# Texts


def splice(path: str, at: int, remove: int = 0, insert: str = "") -> Op:
    """Return the operation that removes `remove` characters of a text, beginning at `at`, and inserts others there."""
    return Op("splice", path, at=at, remove=remove or msgspec.UNSET, insert=insert or msgspec.UNSET)


def splices(path: str, regions: Sequence[Region], *, own: bool = False) -> list[Op]:
    """Return a change of a text as operations, to be applied in order; with `own`, insertions are marked with it."""
    ops = [splice(path, *region) for region in in_order(regions)]
    if own:
        return [msgspec.structs.replace(op, own=True) if op.insert is not msgspec.UNSET else op for op in ops]
    return ops


def without_own(ops: Sequence[Op]) -> Sequence[Op]:
    """Return operations without `own`, as the server stores them and sends them to other clients."""
    for op in ops:
        if op.own is not msgspec.UNSET:
            return [msgspec.structs.replace(each, own=msgspec.UNSET) for each in ops]
    return ops


def region_of(op: Op) -> Region:
    """Return the region of a splice. Raises PatchError if it could fit no text."""
    at = op.at
    remove = 0 if op.remove is msgspec.UNSET else op.remove
    insert = "" if op.insert is msgspec.UNSET else op.insert
    if op.value is not msgspec.UNSET:
        raise PatchError(f"splice {op.path!r} has a value")
    if at is msgspec.UNSET:
        raise PatchError(f"splice {op.path!r} has no position `at`")
    if type(at) is not int or type(remove) is not int or not isinstance(insert, str):
        raise PatchError(f"splice {op.path!r}: a place and a number of characters are integers, and a text is a string")
    if at < 0 or remove < 0:
        raise PatchError(f"splice {op.path!r}: {min(at, remove)} is negative")
    return at, remove, insert


def text_at(document: Any, op: Op) -> str:
    """Return the text that a splice changes. Raises PatchError if there is none, or the splice does not fit it."""
    text: str = find(document, parse(op.path))
    check_splice(op, text)
    return text


def check_splice(op: Op, text: Any) -> Region:
    """Return the region of a splice. Raises PatchError if it does not fit `text`, the value at its place or UNSET."""
    at, remove, insert = region_of(op)
    if text is msgspec.UNSET:
        raise PatchError(f"splice {op.path!r}: there is no text")
    if not isinstance(text, str):
        raise PatchError(f"splice {op.path!r}: the value is not a text")
    if at > len(text):
        raise PatchError(f"splice {op.path!r}: position {at} is past the end of a text of {len(text)}")
    if at + remove > len(text):
        raise PatchError(
            f"splice {op.path!r}: {remove} characters from position {at} on reach past the end of a text of {len(text)}"
        )
    try:
        insert.encode()
    except UnicodeEncodeError:
        raise PatchError(f"splice {op.path!r}: {HALF_PAIR}") from None
    return at, remove, insert


def splice_text(op: Op, text: Any) -> str:
    """Return a text after a splice. Raises PatchError if the splice does not fit it."""
    return spliced(text, (check_splice(op, text),))


def compact(ops: Iterable[Op]) -> list[Op]:
    """Return operations in which consecutive splices that touch each other are joined.

    Text that was typed or streamed becomes one splice. Empty splices are left out.
    """
    found: list[Op] = []
    run: _Run | None = None
    for op in ops:
        if op.op == "splice":
            if run is None or not run.take(op):
                found += () if run is None else run.ops()
                run = _Run(op)
            continue
        if run is not None:
            found += run.ops()
            run = None
        found.append(op)
    return found if run is None else found + run.ops()


class _Run:
    """Consecutive splices of one text that are joined."""

    __slots__ = ("_at", "_inserted", "_length", "_path", "_removed")

    def __init__(self, op: Op) -> None:
        self._path = op.path
        self._at, self._removed, insert = region_of(op)
        self._inserted = [insert]
        self._length = len(insert)

    def take(self, op: Op) -> bool:
        """Join a splice to this one; return False if it does not touch it."""
        at, remove, insert = region_of(op)
        end = self._at + self._length
        if op.path != self._path or at > end or at + remove < self._at:
            return False
        if at == end:
            self._removed += remove
            self._inserted.append(insert)
            self._length += len(insert)
            return True
        if at < self._at and at + remove < end:
            return False  # If both were joined, insertions of others before this text would come after it.
        if self._length > _MOST_REWRITTEN:
            return False
        text = "".join(self._inserted)
        text = text[: max(at - self._at, 0)] + insert + text[max(at + remove - self._at, 0) :]
        self._removed += max(self._at - at, 0) + max(at + remove - end, 0)
        self._at, self._inserted, self._length = min(self._at, at), [text], len(text)
        return True

    def ops(self) -> list[Op]:
        insert = "".join(self._inserted)
        return [splice(self._path, self._at, self._removed, insert)] if self._removed or insert else []


# Reading


def find(document: Any, parts: Sequence[str]) -> Any:
    """Return the value at a place of a document, or of a tree of Structs that stands for one; UNSET for none.

    Large parts of the document that are still JSON are decoded on the way, and stored decoded in their containers.
    """
    document = decoded(document)
    for part in parts:
        if isinstance(document, dict):
            node = document.get(part, msgspec.UNSET)
            if type(node) is msgspec.Raw:
                document[part] = node = decoded(node)
            document = node
        elif isinstance(document, list | tuple) and is_index(part) and int(part) < len(document):
            node = document[int(part)]
            if type(node) is msgspec.Raw:
                node = decoded(node)
                if isinstance(document, list):
                    document[int(part)] = node
            document = node
        elif (names := attributes(document)) is not None and part in names:
            document = decoded(getattr(document, names[part]))
        else:
            return msgspec.UNSET
    return document
