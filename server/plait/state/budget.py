"""Counts and bounds the processor time of a push or an undo, during which nothing else can run."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from plait.errors import Conflict
from plait.limits import RateLimiter, TokenBucket
from plait.state.types import MOST_MOVED, TOO_MANY_MOVED, count_moved
from plait.store.thread_rows import ChangeRow
from plait_schemas.patch import Op, Owned, apply, decode_ops, find, parse
from plait_schemas.rebase import Rebased, rebase
from plait_schemas.step import is_place

__all__ = ["FREE_OPS", "MOST_PAIRS", "PUSH_BUDGET", "Budget"]

# Costs are in microseconds, roughly. These are the maximum costs of an undo, which is rare, and of a push.
_MOST: Final = 150_000
PUSH_BUDGET: Final = 100_000
_PER_MESSAGE: Final = 100
_PER_PAIR: Final = 4
MOST_PAIRS: Final = PUSH_BUDGET // _PER_PAIR
_MOVED_PER_COST: Final = 1_000
# Characters of texts that are copied.
_COPIED_PER_COST: Final = 10_000
# Up to FREE_OPS operations of a push are free; if it has more, _OPS_PER_MESSAGE of them count as one message.
FREE_OPS: Final = 100
_OPS_PER_MESSAGE: Final = 50
_PLACES_PER_COST: Final = 4
_ELEMENTS_PER_COST: Final = 4
# Tracing the original places of this many operations takes as long as rebasing one operation over another.
_PLACES_PER_PAIR: Final = 4


class Budget:
    """The cost of one undo or one push: counted, bounded, and charged to its sender as a number of messages.

    Raises Conflict when the cost exceeds the bound.
    """

    def __init__(self, most: int = _MOST, limiter: RateLimiter | TokenBucket | None = None) -> None:
        self._left: float = most
        self._limiter = limiter

    def decode(self, row: ChangeRow) -> list[Op]:
        """Charge for decoding the operations of a change, and return them."""
        self._take(5 + len(row.ops) // 100)
        return decode_ops(row.ops)

    def apply(self, document: Any, ops: Iterable[Op], owned: Owned) -> Any:
        """Charge for `apply`, and call it."""
        for op in ops:
            self._take(5 + _estimate_cost(document, [op], owned))
            document = apply(document, [op], owned)
        return document

    def rebase(self, ops: Sequence[Op], over: Sequence[Op], document: Any) -> Rebased:
        """Charge for `rebase`, and call it."""
        if over:
            self._take(20 + 3 * (len(ops) + len(over)))
            self.charge_rebase(ops, len(over))
            both = [*ops, *over]
            if any(op.op != "replace" and is_place(op.path.rpartition("/")[2]) for op in both):
                self._take(_estimate_cost(document, both))  # Rebasing walks the arrays on their paths.
        return rebase(ops, over, document, self.charge_places)

    def charge_rebase(self, ops: Sequence[Op], others: int, *, traces: bool = False) -> None:
        """Charge for rebasing operations over `others` operations; with `traces`, for tracing their origins, too."""
        if traces:
            moving = sum(op.op != "replace" and is_place(op.path.rpartition("/")[2]) for op in ops)
            others += moving // _PLACES_PER_PAIR
        if others:
            self._take(_PER_PAIR * len(ops) * others)

    def charge_places(self, count: int) -> None:
        """Charge for transforming two splices with `count` regions in total."""
        self._take(count / _PLACES_PER_COST)

    def charge_elements(self, count: int) -> None:
        """Charge for finding the ids of the elements of a list."""
        self._take(count / _ELEMENTS_PER_COST)

    def charge_parts(self, ops: Sequence[Op], rebased: Sequence[Op], document: Any) -> None:
        """Charge for the texts that are copied by splices of a rebase; `charge_ops` has not counted these splices."""
        if len(rebased) > len(ops):
            self._take(_count_copied(document, rebased[len(ops) :]) / _COPIED_PER_COST)

    def charge_ops(self, ops: Sequence[Op], tree: Any) -> None:
        """Charge for applying the operations of a push: for copied texts and, if there are many, for moved elements."""
        if copied := _count_copied(tree, ops):
            self._take(copied / _COPIED_PER_COST)
        if len(ops) <= FREE_OPS:
            return
        if self._limiter is not None:
            self._limiter.charge(len(ops) / _OPS_PER_MESSAGE)
        moved = count_moved(tree, ops)
        self._take(min(moved, MOST_MOVED) / _MOVED_PER_COST)
        if moved > MOST_MOVED:
            raise Conflict(TOO_MANY_MOVED)

    def _take(self, cost: float) -> None:
        if self._limiter is not None:
            self._limiter.charge(min(cost, self._left) / _PER_MESSAGE)
        self._left -= cost
        if self._left < 0:
            raise Conflict("too many changes to merge at once; get the current state and make the change again")


def _count_copied(document: Any, ops: Sequence[Op]) -> int:
    """Return the number of characters that splices copy, as each splice copies its whole text."""
    lengths: dict[str, int] = {}
    copied = 0
    for op in ops:
        if op.op == "splice":
            if op.path not in lengths:
                text = find(document, parse(op.path))
                lengths[op.path] = len(text) if isinstance(text, str) else 0
            copied += lengths[op.path]
    return copied


def _estimate_cost(document: Any, ops: Sequence[Op], owned: Collection[int] = ()) -> int:
    """Return the cost of copying the containers on the operations' paths, except owned ones, and of moving elements."""
    copied: dict[int, int] = {}
    moved = 0
    for op in ops:
        node, length = document, 0
        for part in parse(op.path):
            if not isinstance(node, dict | list | tuple):
                break
            if id(node) not in owned:
                copied[id(node)] = len(node)
            length = 0 if isinstance(node, dict) else len(node)
            node = find(node, [part])
        moved += 0 if op.op == "replace" else length
    return sum(copied.values()) // 250 + moved // 2_000
