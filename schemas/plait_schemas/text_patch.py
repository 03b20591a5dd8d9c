"""Finds the differences between two JSON texts, without decoding the parts that are equal.

Texts are split one level at a time, into members that are still texts; only members that differ are split further.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import compress, count, islice
from operator import ne
from typing import Any, Final

import msgspec

from plait_schemas.align import Budget, edits
from plait_schemas.codec import decode_json, encode_json
from plait_schemas.diff import BoundedOps, TooManyOps, replace
from plait_schemas.elements import ID_KEYS, Id, Keys, has_repeated
from plait_schemas.likeness import is_same_element, outline, shares_ids
from plait_schemas.patch import Op, escape
from plait_schemas.text_diff import TextComparison

__all__ = ["Read", "TextDiff"]

Read = Callable[[bytes, str], Any]
"""Decodes a new text, which is at a JSON pointer; raises any exception to refuse it."""

_Members = Mapping[str, msgspec.Raw]

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode

_canonical: Final = msgspec.json.Encoder(order="deterministic").encode

# The parts of texts shorter than this are not kept for the next comparison.
_WORTH_KEEPING: Final = 4096

_MOST_PARTS: Final = 100_000
"""A list with more commas is replaced without splitting it; how many objects a state has is bounded by its weight."""

_OPENING: Final = (b"{", b"[")


class TextDiff:
    """Compares each JSON text of a sequence with the one before it, and keeps the parts of the last one.

    `keys` says which members identify the elements of lists, if those are not the usual ones, and which strings are
    texts.
    """

    __slots__ = ("_kept", "_keys", "_known", "_lists", "_texts")

    def __init__(self, keys: Keys | None = None) -> None:
        self._keys = keys
        # By JSON pointer: a text, and its members or elements. `_known` is of the previous text, and `_kept` of this
        # one.
        self._known: dict[str, tuple[bytes, Any]] = {}
        self._kept: dict[str, tuple[bytes, Any]] = {}
        # The budgets that are left for comparing texts and aligning lists; None before the first text or list.
        self._texts: TextComparison | None = None
        self._lists: Budget | None = None

    def diff(self, old: bytes, new: bytes, read: Read, *, most: int | None = None) -> list[Op]:
        """Return the operations that turn the JSON text `old` into `new`; none if both mean the same.

        If there would be more than `most`, the result is one operation that replaces the whole.

        `old` must be valid JSON. `read` gets every part of `new` that is not literally in `old`, so that `new` is valid
        if it raises nothing. Raises msgspec.DecodeError when `new` is not structured as JSON.
        """
        self._known, self._kept = self._kept, {}
        self._texts = self._lists = None
        ops = BoundedOps(most)
        try:
            ops.expect(1)
            self._diff(old, new, "", read, ops)
        except TooManyOps:
            return [Op("replace", "", read(new, ""))]
        finally:
            self._known = {}
        return ops

    def _diff(self, old: bytes, new: bytes, path: str, read: Read, ops: BoundedOps) -> None:
        if old == new:
            return
        opening = old[:1]
        if opening not in _OPENING or opening != new[:1]:
            self._replace(old, new, path, read, ops)
        elif opening == b"{":
            before, members = self._old(old, path, _members), self._new(new, path, _members)
            is_small = len(old) < _WORTH_KEEPING
            if len(new) != _length(members) or (not is_small and self._may_have_spaces(old, path, before)):
                compact = msgspec.json.format(old, indent=-1), msgspec.json.format(new, indent=-1)
                if compact != (old, new):
                    self._diff(*compact, path, read, ops)  # Only the spaces differ.
                    return
                # An object has two members of the same name: check the first, too, which the diff would skip.
                read(new, path)
            self._diff_objects(before, members, path, read, ops)
        elif _is_crowded(old) or _is_crowded(new):
            ops.append(Op("replace", path, read(new, path)))
        else:
            self._diff_arrays(self._old(old, path, _elements), new, path, read, ops)

    def _replace(self, old: bytes, new: bytes, path: str, read: Read, ops: BoundedOps) -> None:
        value = read(new, path)
        if old[:1] in _OPENING or new[:1] in _OPENING or (old.isdigit() and new.isdigit()):
            # They differ. Comparing decoded integers would cost the square of their length.
            ops.append(Op("replace", path, value))
            return
        before = decode_json(old)
        if encode_json(value) == encode_json(before):
            return
        if self._keys is None:
            ops.append(Op("replace", path, value))
            return
        if self._texts is None:
            self._texts = TextComparison()
        ops.extend(replace(before, value, path, self._keys, self._texts))

    def _old(self, text: bytes, path: str, split: Callable[[bytes], Any]) -> Any:
        known = self._known.get(path)
        return known[1] if known is not None and known[0] == text else split(text)

    def _may_have_spaces(self, text: bytes, path: str, members: _Members) -> bool:
        known = self._known.get(path)
        return (known is None or known[0] != text) and len(text) != _length(members)

    def _new(self, text: bytes, path: str, split: Callable[[bytes], Any]) -> Any:
        parts = split(text)
        if len(text) >= _WORTH_KEEPING:
            self._kept[path] = (text, parts)
        return parts

    def _diff_objects(self, old: _Members, new: _Members, path: str, read: Read, ops: BoundedOps) -> None:
        removed: Sequence[str] = ()
        before: Iterable[msgspec.Raw | None] = old.values()
        if [*old] != [*new]:
            before = map(old.get, new)
            if not old.keys() <= new.keys():
                removed = [key for key in old if key not in new]
        different = list(compress(new, map(ne, before, new.values())))
        ops.expect(len(removed) + len(different))
        for key in removed:
            ops.append(Op("remove", f"{path}/{escape(key)}"))
        for key in different:
            place, text = f"{path}/{escape(key)}", bytes(new[key])
            if key in old:
                self._diff(bytes(old[key]), text, place, read, ops)
            else:
                ops.append(Op("add", place, read(text, place)))

    def _diff_arrays(self, old: Sequence[msgspec.Raw], new: bytes, path: str, read: Read, ops: BoundedOps) -> None:
        elements = self._new(new, path, _elements)
        start, end = 0, min(len(old), len(elements))
        while start < end and old[start] == elements[start]:
            start += 1
        tail = 0
        while tail < end - start and old[-1 - tail] == elements[-1 - tail]:
            tail += 1
        key = None if self._keys is None else self._keys.at(path)
        if start + tail + 1 == len(old) == len(elements):
            before, after = bytes(old[start]), bytes(elements[start])
            if _have_one_id(before, after, key):
                self._diff(before, after, f"{path}/{start}", read, ops)
                return
        if self._lists is None:
            self._lists = Budget()
        found = edits(_Lists(old, elements, start, tail, key), start + tail, self._lists)
        if found is None:
            ops.append(Op("replace", path, read(new, path)))
            return
        ops.expect(len(found))
        for kind, index, at, to in found:
            place = f"{path}/{start + index}"
            if kind == "change":
                self._diff(bytes(old[start + at]), bytes(elements[start + to]), place, read, ops)
            elif kind == "remove" or kind == "out":  # noqa: PLR1714 (mypy knows by it what else there is)
                ops.append(Op("remove", place))
            elif kind == "in":
                ops.append(Op("add", place, decode_json(old[start + at]), moved=True))
            elif kind == "replace":
                self._replace(bytes(old[start + at]), bytes(elements[start + to]), place, read, ops)
            else:
                ops.append(Op("add", place, read(bytes(elements[start + to]), place)))


class _Lists:
    """Two lists of texts without their common beginning and end."""

    __slots__ = ("_both", "_ids", "_key", "_lists", "_new", "_old", "_repeats")

    def __init__(
        self, old: Sequence[msgspec.Raw], new: Sequence[msgspec.Raw], start: int, tail: int, key: str | None
    ) -> None:
        self._lists = old, new
        self._old = old[start : len(old) - tail]
        self._new = new[start : len(new) - tail]
        self._both: set[bytes] | None = None
        self._repeats: bool | None = None
        self._key = key
        self._ids: tuple[list[Id | None], list[Id | None]] | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        return len(self._old), len(self._new)

    @property
    def ids(self) -> tuple[list[Id | None], list[Id | None]]:
        if self._ids is None:
            self._ids = _ids_of(list(map(bytes, self._old)), self._key), _ids_of(list(map(bytes, self._new)), self._key)
        return self._ids

    def id_at(self, place: int) -> tuple[Id | None, Id | None]:
        (old,), (new,) = (_ids_of([bytes(each[place])], self._key) for each in (self._old, self._new))
        return old, new

    def find_different(self, most: int) -> list[int] | None:
        found = list(islice(compress(count(), map(ne, self._old, self._new)), most + 1))
        return found if len(found) <= most else None

    def old_name(self, index: int) -> bytes:
        return self._name(bytes(self._old[index]))

    def new_name(self, index: int) -> bytes:
        return self._name(bytes(self._new[index]))

    def _name(self, text: bytes) -> bytes:
        if self._both is None:
            self._both = set(map(bytes, self._old)).intersection(map(bytes, self._new))
        # Texts that are literally equal, and integers, are not decoded.
        is_known = text.isdigit() or (text in self._both and text[:1] in b"{[")
        return text if is_known else _canonical(decode_json(text))

    def find_changed(self, pairs: Sequence[tuple[int, int]]) -> set[int]:
        return {at for at, to in pairs if self._old[at] != self._new[to]}

    def is_same(self, old: int, new: int) -> bool:
        before, after = bytes(self._old[old]), bytes(self._new[new])
        if before[:1] + after[:1] not in (b"{{", b"[["):
            return False
        return is_same_element(decode_json(before), decode_json(after))

    def outlines(self, old: Sequence[int], new: Sequence[int]) -> tuple[list[bytes | None], list[bytes | None]]:
        olds, news = (decode_json(self._old[at]) for at in old), (decode_json(self._new[at]) for at in new)
        return list(map(outline, olds)), list(map(outline, news))

    def shares_ids(self, old: int, new: int) -> bool:
        return shares_ids(decode_json(self._old[old]), decode_json(self._new[new]))

    def repeats(self) -> bool:
        if self._repeats is None:
            self._repeats = any(has_repeated(list(map(bytes, each))) for each in self._lists)
        return self._repeats


@lru_cache(maxsize=256)
def _identity(key: str | None) -> tuple[Callable[[bytes], Any], Callable[[bytes], Any]]:
    """Return decoders for an object and for a list of objects, which decode only the members that may hold an id."""
    names = ID_KEYS if key is None else (key,)
    fields = [(f"field_{at}", Any, None) for at in range(len(names))]
    renamed = {field: name for (field, _, _), name in zip(fields, names, strict=True)}
    kind = msgspec.defstruct("Identity", fields, rename=renamed)
    one = msgspec.json.Decoder(kind).decode
    many = msgspec.json.Decoder(list[kind]).decode  # type: ignore[valid-type]
    return one, many


def _ids_of(texts: Sequence[bytes], key: str | None) -> list[Id | None]:
    one, many = _identity(key)
    if not texts or texts[0][:1] != b"{":
        return [None if text[:1] != b"{" else _id_of(one(text)) for text in texts]
    try:
        elements = many(b"[%b]" % b",".join(texts))
    except msgspec.ValidationError:
        return [None if text[:1] != b"{" else _id_of(one(text)) for text in texts]
    return [each.field_0 if type(each.field_0) is str else _id_of(each) for each in elements]


def _have_one_id(old: bytes, new: bytes, key: str | None) -> bool:
    if old[:1] + new[:1] != b"{{":
        return False
    one, _ = _identity(key)
    id = _id_of(one(old))
    return id is not None and id == _id_of(one(new))


def _id_of(identity: Any) -> Id | None:
    for field in identity.__struct_fields__:
        value: Any = getattr(identity, field)
        if type(value) is str or type(value) is int:
            return value
    return None


def _is_crowded(text: bytes) -> bool:
    """Tell whether taking a list apart costs too much. Each element has at least two bytes, with its comma."""
    return len(text) > 2 * _MOST_PARTS and text.count(b",") > _MOST_PARTS


def _length(members: _Members) -> int:
    return sum(map(len, members.values())) + len(encode_json(list(members))) + len(members)
