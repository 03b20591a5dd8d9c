"""One operation while it is rebased: the parts of its place, and its effect on the elements around it."""

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from plait_schemas.codec import decoded
from plait_schemas.elements import id_of
from plait_schemas.patch import Op, Owned, PatchError, apply, escape, find, is_index, parse, region_of, splices
from plait_schemas.shape import Shape
from plait_schemas.text import UNKNOWN, Region, goes_on, transform_both

__all__ = ["MOST_REGIONS", "SCALARS", "Step", "is_of", "is_pair", "is_place", "leads_through", "pointer"]


_CONTAINERS: Final = (dict, list, tuple, msgspec.Struct, msgspec.Raw)
SCALARS: Final = (str, int, float, type(None), msgspec.UnsetType)
"""Values that have no members, or are unknown."""

MOST_REGIONS: Final = 300
"""The most regions that one splice may have: each costs time again for each operation of others."""


class Step:
    """One operation while it is rebased, with the parts of its place."""

    __slots__ = (
        "_given",
        "_op",
        "_owned",
        "_place",
        "_value",
        "is_contested",
        "is_done",
        "is_element",
        "is_gone",
        "is_moved",
        "is_own",
        "moves",
        "name",
        "parts",
        "regions",
    )

    def __init__(self, op: Op) -> None:
        self._value = op.value
        # Whether the operation inserts, at its new place, the element that the operation before it has removed.
        self.is_moved = op.moved is True
        # The containers of the value that were copied, and may be changed in place.
        self._owned: Owned | None = None
        self.name: Literal["add", "remove", "replace", "splice"] = op.op
        self._op = op
        # The place of the step, at first the place of the given operation. The list is replaced, and never changed.
        self.parts = self._place = parse(op.path)
        # Whether the place is an element of an array, and whether the operation inserts or removes one, so that the
        # elements after it move. If the array is unknown, a part that looks like an index counts as one. A splice is
        # inside of an element.
        is_splice = op.op == "splice"
        self.is_element = not is_splice and bool(self.parts) and is_place(self.parts[-1])
        self.moves = self.is_element and op.op in ("add", "remove")
        # The regions of a splice: several if others have written in between.
        self.regions: Sequence[Region] = (region_of(op),) if is_splice else ()
        self._given = self.regions
        # Whether the operation continues an insertion of the same client, and so stays before others' insertions at its
        # place.
        self.is_own = op.own is True
        self.is_contested = False
        # Whether the operation has no effect any longer, because its place is gone or was overwritten.
        self.is_gone = False
        # Whether the operation has no effect because others have done exactly the same.
        self.is_done = False

    @property
    def pointer(self) -> str:
        return self._op.path if self.parts is self._place else pointer(self.parts)

    @property
    def has_value(self) -> bool:
        """Whether the value that it puts at its place is known."""
        if self.name == "splice":
            return all(UNKNOWN not in insert for _, _, insert in self.regions)
        return self._value is not msgspec.UNSET

    def may_mean_another(self, other: "Step") -> bool:
        """Tell whether it may mean another element than the one that `other` has put at the same place of a list.

        A scalar is identified by its place, as a cell of a board is, unless the operation removes it. An insertion
        before the element means no element.
        """
        if self.name != "replace":
            return self.name == "remove"
        if isinstance(self._value, SCALARS) or isinstance(other._value, SCALARS):
            return False
        id = id_of(self._decode())
        return id is None or id != id_of(other._decode())

    def ops(self) -> list[Op]:
        """Return the operation; a splice with several regions becomes several."""
        if self.name == "splice" and self.regions is self._given and self.parts is self._place:
            return [self._op]
        return self._ops_at(self.pointer)

    def _ops_at(self, place: str) -> list[Op]:
        if self.name == "splice":
            return splices(place, self.regions, own=self.is_own)
        if self.is_moved:
            return [Op(self.name, place, self._value, moved=True)]
        return [Op(self.name, place, self._value)]

    def pass_text(self, other: "Step") -> None:
        """Transform this splice and an earlier one of the same text, so that each can be applied after the other."""
        if len(self.regions) + len(other.regions) > MOST_REGIONS:
            self.is_contested = self.is_gone = True
            return
        self.is_own = self.is_own and goes_on(self.regions, other.regions)
        self.regions, other.regions = transform_both(self.regions, other.regions, yields=not self.is_own)
        self.is_gone = self.is_done = not self.regions
        other.is_gone = not other.regions

    def take_in(self, inner: "Step") -> None:
        """Apply an operation inside the value that this one puts at its place; mark it as gone if it does not fit.

        An operation that leads to an element of a list never fits: the element at its index may be another one. As with
        members that others have removed, a missing member is added, or need not be removed.
        """
        rest = inner.parts[len(self.parts) :]
        if self.is_element or _leads_to_element(self._decode(), rest, is_end=inner.name == "add"):
            inner.is_gone = True
            return
        if isinstance(find(self._value, rest[:-1]), dict) and find(self._value, rest) is msgspec.UNSET:
            if inner.name == "remove":
                inner.is_gone = inner.is_done = True
                return
            inner.name = "add"
        if self._owned is None:
            self._owned = {}
        try:
            self._value = apply(self._value, [Op(inner.name, pointer(rest), inner._decode())], self._owned)
        except PatchError:
            inner.is_gone = True

    def take_along(self, inner: "Step", rest: list[str]) -> None:
        """Apply an operation to the element that this one inserts, or inside it at `rest`."""
        if self._value is msgspec.UNSET:
            return
        if not rest and inner.name != "splice":
            self._value = inner._value
            return
        if self._owned is None:
            self._owned = {}
        try:
            inner._decode()
            self._value = apply(self._decode(), inner._ops_at(pointer(rest)), self._owned)
        except PatchError:
            inner.is_gone = True

    def _decode(self) -> Any:
        """Return its value; a large one is decoded only when it is needed."""
        self._value = decoded(self._value)
        return self._value

    def look_up(self, shape: Shape, *, has_happened: bool | None = None, is_exact: bool = False) -> None:
        """Find out whether its container is an array.

        `has_happened` says whether the shape is the one after the operation. If that is known, `-` is replaced by the
        index that it stands for. A `replace` is only looked up if it has happened, and if its value is a container or
        `is_exact`.
        """
        if not self.moves and not (
            self.is_element and has_happened and (is_exact or isinstance(self._value, _CONTAINERS))
        ):
            return
        container = shape.look(self.parts[:-1])
        self.is_element = not isinstance(container, dict | msgspec.Struct)
        self.moves &= self.is_element
        if self.moves and has_happened is not None and self.parts[-1] == "-" and isinstance(container, list | tuple):
            self.parts = [*self.parts[:-1], str(len(container) - has_happened)]


def leads_through(place: Sequence[str], other: Step) -> bool:
    """Tell whether a place is an element, or inside of one, of an array whose elements `other` moves."""
    depth = len(other.parts) - 1
    return other.moves and len(place) > depth and place[:depth] == other.parts[:depth] and is_place(place[depth])


def is_pair(first: Step, second: Step) -> bool:
    """Tell whether two consecutive operations move an element of an array."""
    return (
        second.is_moved
        and first.name == "remove"
        and second.name == "add"
        and first.moves
        and second.moves
        and first.parts[:-1] == second.parts[:-1]
        and "-" not in (first.parts[-1], second.parts[-1])
    )


def is_of(step: Step, out: Step) -> bool:
    """Tell whether an operation changes the element that `out` removes from an array, or a place inside of it."""
    depth = len(out.parts)
    inserts = step.moves and step.name == "add" and len(step.parts) == depth
    return step.parts[:depth] == out.parts and not inserts


def pointer(parts: Sequence[str]) -> str:
    """Return the JSON pointer that has these parts."""
    return "".join(f"/{escape(part)}" for part in parts)


def is_place(part: str) -> bool:
    """Tell whether a part of a pointer may be a place in an array: an index, or the end."""
    return part == "-" or is_index(part)


def _leads_to_element(value: Any, rest: Sequence[str], *, is_end: bool) -> bool:
    """Tell whether a place in a value is an element of a list, or inside of one; `-` at the end of an `add` is not."""
    for depth, part in enumerate(rest):
        if isinstance(value, list | tuple):
            return not (is_end and part == "-" and depth == len(rest) - 1)
        value = find(value, (part,))
    return False
