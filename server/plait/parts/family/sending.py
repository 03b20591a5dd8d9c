"""Sends the items of a thread to its parent and its children, each target for itself."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, Final

from msgspec.structs import replace

from plait.actor.actor import Actor
from plait.actor.connection import Party
from plait.actor.logs import about
from plait.actor.outcome import Done
from plait.actor.turn import Turn, current_turn, latest_turn
from plait.clock import read_due_clock
from plait.errors import Conflict, Indeterminate, PlaitError, TooMany, is_outage
from plait.parts.family.calls import end_calls
from plait.parts.family.rows import (
    EVERY_CHILD,
    Birth,
    Handed,
    Head,
    Item,
    Question,
    Row,
    Status,
    find_key,
)
from plait.parts.family.store import HEAD, Changes, FamilyStore
from plait.parts.part import find_parts
from plait.state.commit import Commit
from plait.state.timer import Timed
from plait.state.transaction import Transaction

__all__ = ["MOST_CHILDREN", "MOST_WAITING", "ItemSender"]

log = logging.getLogger("plait.family")

MOST_CHILDREN: Final = 10_000
"""The maximum number of children of a thread."""

MOST_WAITING: Final = 10_000
"""The maximum number of items of a thread that wait for others."""

# The due time of a thread with items: at once.
_DUE: Final = 2
# The maximum number of targets to which a thread sends at the same time.
_MOST_AT_ONCE: Final = 64
# The pauses after failures, in microseconds.
_SHORTEST: Final = 100_000
_LONGEST: Final = 60_000_000
# The seconds for which a thread that is destroyed waits until another thread is told.
_PATIENCE: Final = 5.0

Deliver = Callable[[str, Sequence[Item]], Awaitable[str]]
"""Takes items to a thread, which applies them; returns why the items are refused for good, empty if they are not."""


class ItemSender(Timed):
    """Sends the waiting items of one thread, as a part of its timer."""

    def __init__(self, actor: Actor, store: FamilyStore, deliver: Deliver) -> None:
        self._actor = actor
        self._store = store
        self._deliver = deliver
        # The targets to which items can be sent, and those to which they are being sent, with the turns that do so.
        self._ready: dict[str, None] = {}
        self._busy: dict[str, Turn] = {}
        # The targets that have failed, and a heap of the times of their next turns.
        self._paused: set[str] = set()
        self._pauses: list[tuple[int, str]] = []
        # The callers that wait for births, by child.
        self._births: dict[str, set[asyncio.Future[None]]] = {}

    def load(self) -> None:
        """Begin with the stored items."""
        self._ready = dict.fromkeys(self._store.targets)

    # Called by the timer of the thread

    @property
    def times(self) -> tuple[int, int]:
        """The thread must be awake while items wait; they can be sent at once, after a pause, or when a call ends."""
        due = _DUE if self._store.outbox else 0
        if len(self._busy) >= _MOST_AT_ONCE:
            return due, 0
        return due, _DUE if self._ready else self._pauses[0][0] if self._pauses else 0

    def on_due(self, now: int) -> None:
        """Begin to send to the targets whose turn it is."""
        while self._pauses and self._pauses[0][0] <= now:
            _, to = heappop(self._pauses)
            self._paused.discard(to)
            self._ready[to] = None
        while self._ready and len(self._busy) < _MOST_AT_ONCE:
            to = next(iter(self._ready))
            del self._ready[to]
            turn = self._busy[to] = self._actor.begin(
                "family", partial(self._send, to), partial(self._end, to), is_used=False
            )
            first = next(iter(self._store.outbox.find(to).values()), None)
            if first is not None and isinstance(first.body, Birth):  # The child is created for its user.
                turn.party = Party(first.body.user)

    def terminate(self) -> None:
        """Tell the parent, in an open transaction; items that wait for other threads are still sent."""
        if parent := self._store.head.parent:
            self.post([Item(parent, Status("terminated"))])

    # Writing

    def post(self, items: Sequence[Item]) -> Commit:
        """Store items, and the rows of new children, as one write. Raises TooMany and TooLarge."""
        store, number, epoch, now = self._store, self._store.outbox.last, self._actor.state.epoch, read_due_clock()
        rows, changes = dict[str, Row](), dict[str | int, Head | Row | Item | None]()
        for item in items:
            body = item.body
            if item.to == EVERY_CHILD and all(row.child.is_destroyed for row in store.rows.values()):
                continue
            if isinstance(body, Birth):
                row = rows.get(item.to, store.rows.get(item.to))
                if row is None or row.child.is_destroyed:
                    row = Row(body.child, handed=number)
                    rows[item.to] = row if body.call is None else row.ask(body.call)
                    body = replace(body, parts=dict(self._find_handed_down()), is_known=False)
                elif item.to in rows or self._has_birth(item.to):
                    continue
                else:
                    body = replace(body, is_known=True)
            if isinstance(body, Question):
                row = rows.get(item.to) or store.rows[item.to]
                rows[item.to] = replace(row.ask(body.call), child=replace(row.child, status="running"))
            number += 1
            changes.update(self._merge(Item(item.to, body, epoch, number, now)))
        more = sum(1 if isinstance(item, Item) else -1 for item in changes.values())
        # A status is always told, so that each thread can be terminated.
        if len(store.outbox) + more > MOST_WAITING and not all(isinstance(item.body, Status) for item in items):
            raise TooMany(f"{MOST_WAITING:,} items of {self._actor.key} wait for other threads", retry_after=1.0)
        changes.update(self._make_room(rows.keys()), **rows)
        commit = store.write(changes)
        new = [item for item in changes.values() if isinstance(item, Item)]
        if (turn := current_turn()) is not None and turn.births is not None:
            turn.births = (*turn.births, *(item.number for item in new if item.is_birth))
        commit.then(partial(self._release, number, [item.to for item in new]))
        return commit

    def _merge(self, new: Item) -> Changes:
        """Return the changes that add an item; it replaces a waiting status, and objects for all children merge."""
        changes: dict[str | int, Head | Row | Item | None] = {new.number: new}
        waiting = self._store.outbox.find(new.to).values()
        if isinstance(new.body, Status):
            for item in waiting:
                if isinstance(item.body, Status) and item.body.text != "terminated":
                    changes[item.number] = None
        if new.to == EVERY_CHILD and waiting:
            handed = {row.handed for row in self._store.rows.values() if not row.child.is_destroyed}
            for earlier, later in pairwise([*waiting, new]):
                match earlier.body, later.body:
                    # No child has got the first object without the second one.
                    case Handed(role=role, body=first), Handed(role=other, body=second) if role == other and not any(
                        earlier.number <= number < later.number for number in handed
                    ):
                        body = replace(later.body, body={**first, **second})
                        return {**changes, earlier.number: None, later.number: replace(later, body=body)}
        return changes

    def _make_room(self, new: Collection[str]) -> Changes:
        """Return the changes that remove the oldest destroyed children, if new ones have no room. Raises TooMany."""
        rows = self._store.rows
        if (excess := len(rows) + sum(each not in rows for each in new) - MOST_CHILDREN) <= 0 or not new:
            return {}
        removed = [each for each, row in rows.items() if row.child.is_destroyed and each not in new][:excess]
        if len(removed) < excess:
            raise TooMany(f"{self._actor.key} has {MOST_CHILDREN:,} children that are not destroyed")
        return dict.fromkeys(removed)

    def _find_handed_down(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the values that the parts of this thread give to a new child."""
        for part in find_parts(self._actor.kind.cls).values():
            if (body := part.hand_down(self._actor)) is not None:
                yield part.role, body

    def _release(self, number: int, targets: Sequence[str], error: BaseException | None) -> None:
        """Allow that items are sent, because they are durable."""
        if error is None:
            self._store.outbox.stored = max(self._store.outbox.stored, number)
            for to in self._store.lacking if EVERY_CHILD in targets else targets:
                if to not in self._busy and to not in self._paused:
                    self._ready[to] = None
            timer = self._actor.timer
            # Even while the thread wakes, if its `on_start` waits.
            if (self._births or timer.is_started) and not self._actor.is_ending:
                self.on_due(read_due_clock())
            timer.arm(self)

    # Sending

    async def _send(self, to: str) -> None:
        """Send the durable items for a thread, in calls one after another."""
        store = self._store
        while items := store.outbox.take(to, store.find_handed(to)):
            refusal = await self._deliver(to, items)
            waiting = store.outbox.find(to, store.find_handed(to))
            numbers = [item.number for item in items if item.number in waiting]
            if not numbers:  # The child was destroyed, or this thread is being destroyed and sent the items twice.
                row = store.rows.get(to)
                if items[0].is_birth and not refusal and row is not None and row.child.is_destroyed:
                    key = find_key(to)  # A birth that was sent twice has created the child again.
                    await self._actor.host.make_handle(self._actor.host.find_class(key.kind), key.name).destroy()
            elif refusal:
                self.give_up(to, refusal)
            else:
                self._remove(to, numbers)

    def _remove(self, to: str, numbers: Sequence[int]) -> None:
        """Remove delivered items; for items for every child, the row notes which of them its child has got."""
        own, row = self._store.outbox.find(to), self._store.rows.get(to)
        changes: dict[str | int, Head | Row | Item | None] = {number: None for number in numbers if number in own}
        if row is not None and (row.child.status == "starting" or len(changes) < len(numbers)):
            status = "running" if row.child.status == "starting" else row.child.status
            changes[to] = replace(row, child=replace(row.child, status=status), handed=numbers[-1])
        self._store.write(changes)
        self._resolve(to)

    def give_up(self, to: str, refusal: str) -> None:
        """Remove all items for a thread that takes none.

        The child counts as destroyed, and is born again if it was spawned again; or it cannot become a child.
        """
        store, items = self._store, self._store.outbox.find(to)
        log.info("%s takes nothing from %s: %s", to, self._actor.key, refusal, extra=about(self._actor.key))
        births = [item for item in items.values() if isinstance(item.body, Birth)]
        is_refused = any(item.is_birth for item in births)
        with Transaction(self._actor.state, self._actor.key):
            end_calls(self._actor, store, to, refusal)
            if (row := store.rows.get(to)) is None:
                head = Head(sent=store.head.sent) if to == store.head.parent else store.head
                store.write({**dict.fromkeys(items), HEAD: head})
            elif is_refused:
                store.write({**dict.fromkeys(items), to: None})
            else:
                store.write({to: replace(row, child=replace(row.child, status="destroyed"), calls={})})
                self.post(births)
        error = Conflict(f"{to} cannot be a child of {self._actor.key}: {refusal}")
        if is_refused and not self._resolve(to, error):
            self._actor.turns.report(error, None)

    def _end(self, to: str, _: object, error: BaseException | None) -> None:
        self._busy.pop(to, None)
        outbox, handed = self._store.outbox, self._store.find_handed(to)
        first = next(iter(outbox.find(to, handed).values()), None)
        if error is None or first is None:
            if first is not None and outbox.take(to, handed):
                self._ready[to] = None
            self._resolve(to)  # Otherwise the birth was removed, because the child was destroyed.
        else:
            now = read_due_clock()
            # The pause doubles with each failure, and needs no count, which would be lost when the thread sleeps.
            pause = min(_LONGEST, max(_SHORTEST, now - first.written_at))
            heappush(self._pauses, (now + pause, to))
            self._paused.add(to)
            if isinstance(error, Exception) and not is_outage(error):
                text = "items for %s could not be delivered, and are sent again in %.3g s"
                log.warning(text, to, pause / 1e6, exc_info=error, extra=about(self._actor.key))
                self._resolve(to, error)
        if not self._actor.is_ending:
            self._actor.timer.arm(self)

    # Births

    async def wait_for_birth(self, reference: str) -> None:
        """Wait until a child is born, unless it was born before.

        Raises Conflict if the child cannot be born, and the error of creating it; a birth that raised is tried again.
        """
        if self._has_birth(reference):
            future: asyncio.Future[None] = self._actor.loop.create_future()
            waiting = self._births.setdefault(reference, set())
            waiting.add(future)
            try:
                await future
            finally:
                waiting.discard(future)
        row = self._store.rows.get(reference)
        if row is None or row.child.is_destroyed:
            raise Conflict(f"{reference} is not a child of {self._actor.key}, or was destroyed")

    async def wait_until_born(self, *children: str) -> None:
        for child in children:
            # The code that bears the child, or destroys this thread, must not wait for the birth.
            is_own = child in self._busy and latest_turn() is self._busy[child]
            if is_own or not self._has_birth(child) or self._actor.is_ending:
                continue
            try:
                async with asyncio.timeout(self._actor.thread.turn_timeout):
                    await self.wait_for_birth(child)
            except Exception as error:  # Its `on_start` may raise anything.
                reason = f": {error}" if isinstance(error, PlaitError) else ""
                raise Indeterminate(f"{child} was spawned, but is not born yet{reason}") from error

    async def wait_for_births(self, turn: Turn) -> None:
        await self.wait_until_born(*self._find_unborn(turn))

    def answer(self, turn: Turn, done: Done, result: Any, error: BaseException | None) -> None:
        if error is not None or not self._find_unborn(turn):
            done(result, error)
            return

        async def wait() -> Any:
            await self.wait_for_births(turn)
            return result

        # The changes of the turn are durable: an error must not say that they are not.
        self._actor.begin("births", wait, done, is_used=False).has_stored = True

    def _find_unborn(self, turn: Turn) -> list[str]:
        """Return the children whose births a turn has begun, and that still wait."""
        outbox = self._store.outbox
        return [outbox[number].to for number in turn.births or () if number in outbox]

    def _has_birth(self, reference: str) -> bool:
        return any(isinstance(item.body, Birth) for item in self._store.outbox.find(reference).values())

    def _resolve(self, reference: str, error: Exception | None = None) -> bool:
        """Resume the callers that wait for a birth, unless it still waits; return whether there are any."""
        if reference not in self._births or (error is None and self._has_birth(reference)):
            return False
        waiting = [future for future in self._births.pop(reference) if not future.done()]
        for future in waiting:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
        return bool(waiting)

    # Destroying

    async def flush(self) -> None:
        """Send the waiting items, because the thread is about to be destroyed; each target once."""
        await self._try(self._send_all())

    async def say_destroyed(self) -> None:
        """Tell the parent that the thread was destroyed."""
        if parent := self._store.head.parent:
            item = Item(parent, Status("destroyed"), self._actor.state.epoch, self._store.outbox.last + 1)
            await self._try(self._deliver(parent, [item]))

    async def _send_all(self) -> None:
        await self._actor.state.wait_until_durable()
        sent = await asyncio.gather(*map(self._send, self._store.targets), return_exceptions=True)
        for error in filter(None, sent):
            raise error

    async def _try(self, work: Awaitable[object]) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                await work
        except Exception as error:
            text = "a thread that is destroyed could not tell others: %s"
            log.info(text, error, exc_info=error, extra=about(self._actor.key))
