"""Finds the edits that turn one list into another, by the identity of the elements and not by their positions."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import attrgetter, itemgetter
from typing import Final, Literal, NamedTuple, Protocol, cast

from plait_schemas.elements import Id, has_repeated
from plait_schemas.subsequence import find_increasing

__all__ = ["Budget", "Edit", "Lists", "edits"]

_Name = Id | bytes
"""The identity of an element: its id, or, if it has none, its JSON."""

_Pair = tuple[int, int]

_InPlace = Literal["change", "replace"]

_MOST_EDITS: Final = 64
"""A list is edited if it needs at most this many edits, even if little of it stays; at most this many elements move."""

_MOST_COMPARED: Final = 24_000
_WITHOUT_ID: Final = 3
"""The most elements that one diff compares, and how many an element without an id counts as."""


class Budget:
    """The number of elements with ids that one diff may still align."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _MOST_COMPARED

    def spend(self, count: int) -> bool:
        """Spend `count` and return True; if less is left, spend nothing and return False."""
        if count > self.left:
            return False
        self.left -= count
        return True


class Edit(NamedTuple):
    """One edit, at the index `at` of the list after the earlier edits; `old` and `new` are indices in the two lists.

    "change" keeps an element, which differs inside. "in" inserts, unchanged, the element that the "out" right before it
    has removed. An index is -1 if the edit has no old or no new element.
    """

    kind: Literal["change", "replace", "remove", "add", "out", "in"]
    at: int
    old: int
    new: int


class Lists(Protocol):
    """Two lists without their common beginning and end."""

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of elements in the old and in the new list."""
        ...

    @property
    def ids(self) -> tuple[Sequence[Id | None], Sequence[Id | None]]:
        """The ids of the old and of the new elements."""
        ...

    def old_name(self, index: int) -> bytes:
        """Return the JSON of an old element, with sorted keys."""
        ...

    def new_name(self, index: int) -> bytes:
        """Return the JSON of a new element, with sorted keys."""
        ...

    def id_at(self, place: int) -> tuple[Id | None, Id | None]:
        """Return the ids of the old and of the new element at one place."""
        ...

    def find_different(self, most: int) -> list[int] | None:
        """Return the places at which two lists of one length differ; None if there are more than `most`."""
        ...

    def find_changed(self, pairs: Sequence[_Pair]) -> Collection[int]:
        """Return the old indices of the pairs whose JSON differs."""
        ...

    def is_same(self, old: int, new: int) -> bool:
        """Tell whether two elements without ids at one place look like one element that was changed."""
        ...

    def outlines(self, old: Sequence[int], new: Sequence[int]) -> tuple[Sequence[bytes | None], Sequence[bytes | None]]:
        """Return the outlines that `is_same` compares; None for an element that is not an object."""
        ...

    def shares_ids(self, old: int, new: int) -> bool:
        """Tell whether lists in two objects have elements with the same id."""
        ...

    def repeats(self) -> bool:
        """Tell whether the old or the new list, with its ends, has equal elements."""
        ...


def edits(lists: Lists, around: int, budget: Budget) -> list[Edit] | None:
    """Return the edits, in order; None to replace the list as a whole.

    Lists that exceed the `budget` are not aligned: only a few changed elements are found in them.

    `around` is how many elements are left out of the lists at their ends. Elements are the same if they have the same
    id, or, without ids, the same JSON; an id that several elements have identifies none. The elements that stay are a
    longest sequence that is in the same order in both lists. Between two of these, if both lists have equally many
    elements there, elements without ids that have not moved are changed in their places: inside, if they are certainly
    the same, otherwise by replacing them.
    """
    if lists.sizes == (1, 1):
        return _one(lists)
    if not _spend(lists, budget):
        return _in_their_places(lists)
    old, new = _names(lists)
    if len(old) == len(new) and _have_places(old, new, lists):
        places = [at for at, (mine, other) in enumerate(zip(old, new, strict=True)) if mine != other]
    else:
        places = None
    pairs, moved = _match(_number_repeated(old), _number_repeated(new))
    if places is not None and len(places) <= len(old) + len(new) - 2 * len(pairs):
        found = [Edit("change" if lists.is_same(at, at) else "replace", at, at, at) for at in places]
        kept = len(old) - len(places)
    elif len(moved) > _MOST_EDITS:
        return None
    else:
        found = _make_edits(lists, (old, new), pairs, moved)
        kept = len(pairs)
    count = sum(edit.kind != "change" for edit in found)
    # If one list contains the other, all of that stays.
    is_grown = around > 0 and not (old and new)
    return None if count > _MOST_EDITS and count > 4 * (kept + around) and not is_grown else found


def _spend(lists: Lists, budget: Budget) -> bool:
    if (count := sum(lists.sizes)) > budget.left:
        return False
    return budget.spend(count + (_WITHOUT_ID - 1) * sum(ids.count(None) for ids in lists.ids))


def _in_their_places(lists: Lists) -> list[Edit] | None:
    """Return the edits if the lists have the same length and ids, and few elements differ; otherwise None."""
    places = lists.find_different(_MOST_EDITS) if lists.sizes[0] == lists.sizes[1] else None
    if places is None:
        return None
    found: list[Edit] = []
    for at in places:
        old, new = lists.id_at(at)
        if old != new:
            return None
        found.append(Edit("change" if old is not None or lists.is_same(at, at) else "replace", at, at, at))
    return found


def _one(lists: Lists) -> list[Edit]:
    """Return the edits for lists of one element each."""
    old, new = lists.ids[0][0], lists.ids[1][0]
    if old != new:
        return [Edit("remove", 0, 0, -1), Edit("add", 0, -1, 0)]
    # Naming a large element is slow, so it comes last.
    if old is not None or lists.is_same(0, 0) or (name := lists.old_name(0)) == (other := lists.new_name(0)):
        return [Edit("change", 0, 0, 0)]
    if _is_own(lists, name, other):
        return [Edit("remove", 0, 0, -1), Edit("add", 0, -1, 0)]
    return [Edit("replace", 0, 0, 0)]


# Names


def _names(lists: Lists) -> tuple[list[_Name], list[_Name]]:
    old_ids, new_ids = lists.ids
    repeated = _find_repeated(old_ids) | _find_repeated(new_ids)
    return _name_all(old_ids, lists.old_name, repeated), _name_all(new_ids, lists.new_name, repeated)


def _find_repeated(ids: Sequence[Id | None]) -> set[Id]:
    present = [id for id in ids if id is not None]
    found: set[Id] = set()
    if has_repeated(present):
        seen: set[Id] = set()
        for id in present:
            (found if id in seen else seen).add(id)
    return found


def _name_all(ids: Sequence[Id | None], name: Callable[[int], bytes], repeated: set[Id]) -> list[_Name]:
    if not repeated and None not in ids:
        return [*cast("Sequence[Id]", ids)]
    return [id if id is not None and id not in repeated else name(at) for at, id in enumerate(ids)]


def _number_repeated(names: list[_Name]) -> list[_Name]:
    """Return the names, with a number added to each that repeats an earlier one."""
    if not has_repeated(names):
        return names
    counts: dict[_Name, int] = {}
    numbered: list[_Name] = []
    for name in names:
        counts[name] = count = counts.get(name, -1) + 1
        numbered.append(b"%b#%d" % (name, count) if count and isinstance(name, bytes) else name)
    return numbered


def _have_places(old: Sequence[_Name], new: Sequence[_Name], lists: Lists) -> bool:
    """Tell whether elements differ only by their places, as on a board: they are scalars or rows, and some repeat."""
    return all(isinstance(name, bytes) and name[:1] != b"{" for name in (*old, *new)) and lists.repeats()


# Elements that stay


def _match(old: Sequence[_Name], new: Sequence[_Name]) -> tuple[list[_Pair], list[_Pair]]:
    """Return the pairs of elements that stay, and the pairs of those that have moved."""
    if old == new:
        return [(at, at) for at in range(len(old))], []
    places = {name: at for at, name in enumerate(new)}
    found = [(at, places[name]) for at, name in enumerate(old) if name in places]
    pairs = find_increasing(found)
    if len(pairs) == len(found):
        return pairs, []
    staying = {old for old, _ in pairs}
    return pairs, [pair for pair in found if pair[0] not in staying]


# Edits between them


def _make_edits(
    lists: Lists, names: tuple[Sequence[_Name], Sequence[_Name]], pairs: list[_Pair], moved: list[_Pair]
) -> list[Edit]:
    """Return the edits: those that remove elements, then those that move some, then those that add and change some."""
    places, removed, added = _gaps(lists, names, pairs, moved)
    changed = lists.find_changed([*pairs, *moved])
    staying = sorted([*pairs, *((old, new) for _, old, new in places)]) if places else pairs
    later = [Edit("add", new, -1, new) for new in added] + [Edit(kind, new, old, new) for kind, old, new in places]
    if changed:
        later += [Edit("change", new, old, new) for old, new in (*pairs, *moved) if old in changed]
    return [
        *(Edit("remove", old, old, -1) for old in reversed(removed)),
        *(_moves(len(names[0]), removed, staying, moved) if moved else ()),
        *sorted(later, key=_at),
    ]


_at: Final = attrgetter("at")
_new_index: Final = itemgetter(1)


def _gaps(
    lists: Lists, names: tuple[Sequence[_Name], Sequence[_Name]], pairs: Sequence[_Pair], moved: Sequence[_Pair]
) -> tuple[list[tuple[_InPlace, int, int]], list[int], list[int]]:
    """Return the elements between pairs: those that change in their places, those removed, and those added."""
    goes, comes = {old for old, _ in moved}, {new for _, new in moved}
    places: list[tuple[_InPlace, int, int]] = []
    removed: list[int] = []
    added: list[int] = []
    twins: set[int] | None = None
    at = to = 0
    for end, new_end in (*pairs, (len(names[0]), len(names[1]))):
        if end == at and new_end == to:
            at, to = end + 1, new_end + 1
            continue
        has_places = end - at == new_end - to
        for old, new in zip(range(at, end), range(to, new_end), strict=True) if has_places else ():
            is_there = old not in goes and new not in comes
            kind = _in_place(lists, (names[0][old], names[1][new]), old, new) if is_there else None
            if kind == "change":
                twins = _twins(lists, [*pairs, *moved]) if twins is None else twins
                if old in twins and not lists.shares_ids(old, new):
                    kind = "replace"
            if kind is not None:
                places.append((kind, old, new))
            else:
                removed.append(old)
                added.append(new)
        if not has_places:
            removed += range(at, end)
            added += range(to, new_end)
        at, to = end + 1, new_end + 1
    if moved:
        return places, [old for old in removed if old not in goes], [new for new in added if new not in comes]
    return places, removed, added


def _twins(lists: Lists, known: Sequence[_Pair]) -> set[int]:
    """Return the old elements outside the known pairs that look like another old or new element outside of them."""
    olds, news = ({pair[side] for pair in known} for side in (0, 1))
    unknown = [at for at in range(len(lists.ids[0])) if at not in olds]
    outlines, others = lists.outlines(unknown, [at for at in range(len(lists.ids[1])) if at not in news])
    counts = Counter(outlines) | Counter(others)
    return {at for at, outline in zip(unknown, outlines, strict=True) if outline is not None and counts[outline] > 1}


def _in_place(lists: Lists, names: tuple[_Name, _Name], old: int, new: int) -> _InPlace | None:
    """Return how an element turns into the new one at its place; None to remove it and add the other."""
    name, other = names
    if not (isinstance(name, bytes) and isinstance(other, bytes)):
        return None
    if lists.is_same(old, new):
        return "change"
    return None if _is_own(lists, name, other) else "replace"


def _is_own(lists: Lists, name: bytes, other: bytes) -> bool:
    """Tell whether one of two scalars is an element by itself, not the value of a place: a string that is unique.

    A tag is one; a number has a place, as in a point.
    """
    return b'"' in (name[:1], other[:1]) and not lists.repeats()


def _moves(count: int, removed: Sequence[int], staying: Sequence[_Pair], moved: Sequence[_Pair]) -> Iterator[Edit]:
    """Yield the edits that bring each moved element to its place, right after the element before it.

    `staying` is sorted.
    """
    gone = set(removed)
    there = [old for old in range(count) if old not in gone] if gone else list(range(count))
    places = [new for _, new in staying]
    last: _Pair | None = None
    for old, new in sorted(moved, key=_new_index):
        before = bisect_left(places, new) - 1
        previous = staying[before] if before >= 0 else None
        if last is not None and (previous is None or last[1] > previous[1]):
            previous = last
        start = there.index(old)
        end = 0 if previous is None else there.index(previous[0]) + 1
        end -= start < end
        if start != end:
            there.insert(end, there.pop(start))
            yield Edit("out", start, old, -1)
            yield Edit("in", end, old, new)
        last = (old, new)
