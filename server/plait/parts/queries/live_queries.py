"""The live queries of a thread: each runs once for all of its readers, and again after a change of what it has read.

A run sees the state and the tables as they are, including changes that are not durable yet, so its result waits until
these are durable, and is dropped if they are lost. A run for all readers has no principal: if it asks for its
principal, its result is dropped, and each principal gets a query of its own.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.actor.logs import log_error
from plait.actor.per_actor import PerActor
from plait.actor.rpc import Asked
from plait.errors import CallFailed, Forbidden, PlaitError, TooMany
from plait.instruments.protocol import tell_limit
from plait.parts.queries.outcome import SHARED, Failure, Outcome, Rows, copy_principal, find_whom, make_rows
from plait.parts.queries.passes import QueryPasses
from plait.state.principal import Principal
from plait.state.reads import ALL, STATE, QueryRun, run_query

__all__ = ["Door", "LiveQueries", "LiveQuery", "QueryReader", "find_queries"]

# The maximum number of queries that a connection reads, and of different ones of a thread.
_MOST_READ: Final = 64
_MOST: Final = 256


class Door(NamedTuple):
    """The way of one protocol to the client of a reader."""

    send: Callable[[bytes], None]
    # Ends the reader with an error.
    fail: Callable[[PlaitError], None]
    # Whether the client has not been sent everything so far.
    is_slow: Callable[[], bool]


class QueryReader:
    """One reader of a query. It is not a turn, so nothing waits for its end."""

    __slots__ = ("connection", "door", "is_behind", "live", "queries", "seen", "told")

    def __init__(self, queries: "LiveQueries", connection: Connection, door: Door, have: str) -> None:
        self.queries = queries
        self.connection = connection
        self.door = door
        # None after the end.
        self.live: LiveQuery | None = None
        # The last result that the client was sent, or the tag of the one that it has from an earlier socket.
        self.seen: Rows | str = have
        # The last outcome that it was sent, and whether it has missed later ones, as the client reads slowly.
        self.told: Outcome | None = None
        self.is_behind = False

    def abandon(self, *, is_closed: bool = False) -> None:
        """End, as the client has stopped reading."""
        self.queries.leave(self)


class LiveQuery:
    """A query with arguments: for all readers, or for one principal."""

    __slots__ = (
        "asked",
        "is_dirty",
        "made",
        "principal",
        "readers",
        "reads",
        "shown",
        "waiting",
        "whom",
    )

    def __init__(self, asked: Asked, whom: Hashable, principal: Principal | None) -> None:
        self.asked = asked
        self.whom = whom
        self.principal = principal
        self.readers: dict[QueryReader, None] = {}
        # The readers that have come since an outcome was shown last.
        self.waiting: dict[QueryReader, None] = {}
        # The outcome of the last run, and the last one that was durable and shown to the readers.
        self.made: Outcome | None = None
        self.shown: Outcome | None = None
        # What the last run has read; None for everything, as after an error.
        self.reads: Mapping[str, set[str]] | None = None
        # Whether it waits to run again.
        self.is_dirty = False

    @property
    def key(self) -> Hashable:
        """The queries with the same key are one."""
        return self.asked, self.whom

    @property
    def newest(self) -> Outcome | None:
        """The shown outcome, unless a newer one is due."""
        return self.shown if self.made is self.shown and not self.is_dirty else None

    def is_touched(self, part: str | None, names: Collection[str] | None) -> bool:
        """Tell whether a write of names in a part may change the result; None stands for all of them."""
        if part is None or self.reads is None:
            return True
        found = self.reads.get(part)
        return found is not None and (names is None or ALL in found or not found.isdisjoint(names))


class LiveQueries:
    """The queries that clients of one thread follow."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._live: dict[Hashable, LiveQuery] = {}
        # How many principals have each query of their own; a shared one counts as one.
        self._asked: Counter[Asked] = Counter()
        self._readers: dict[Connection, dict[QueryReader, None]] = {}
        self._passes = actor.use_service(QueryPasses)

    # Readers

    def open(self, asked: Asked, connection: Connection, door: Door, *, have: str = "") -> QueryReader:
        """Add a reader, whose client has the result with the tag `have`. Raises TooMany."""
        own = self._readers.get(connection, {})
        if len(own) >= _MOST_READ:
            raise self._refuse(f"the connection follows {_MOST_READ} queries, which is the limit")
        reader = QueryReader(self, connection, door, have)
        self._enter(reader, asked)
        if reader.live is not None:
            self._readers.setdefault(connection, own)[reader] = None
        return reader

    def leave(self, reader: QueryReader) -> None:
        """Remove a reader, if it is there."""
        self._take_out(reader)
        if (own := self._readers.get(reader.connection)) is not None:
            own.pop(reader, None)
            if not own:
                del self._readers[reader.connection]

    def resume(self, connection: Connection) -> None:
        """Send a connection what it has missed, as it has caught up."""
        for reader in self._find(connection):
            if reader.is_behind and reader.live is not None:
                self._serve(reader, reader.live)

    def review(self, connection: Connection) -> None:
        """Apply the new rights of a connection: end its readers, or run their queries for its new principal."""
        whom = find_whom(connection.principal)
        for reader in self._find(connection):
            if not connection.rights.may_call:
                self._end(reader, Forbidden("Forbidden"))
            elif reader.live is not None and reader.live.whom not in (SHARED, whom):
                self._move(reader)

    # Runs

    def touch(self, part: str | None, names: Collection[str] | None) -> None:
        """Run the queries soon that have read what is written; None stands for all names, and for all parts."""
        for live in self._live.values():
            if not live.is_dirty and live.is_touched(part, names):
                self._mark(live)

    # Inside

    def _run(self, live: LiveQuery) -> None:
        """Run a query; send its outcome when everything that the run has seen is durable."""
        if not live.is_dirty or not live.readers:
            return
        live.is_dirty = False
        at = self._actor.state.history.current.version
        run, query = QueryRun(self._actor.thread, live.principal), live.asked.query
        outcome: Outcome | None
        try:
            args, kwargs = live.asked.arguments(self._actor.limits)
            work = partial(query.reads, self._actor.thread, *args, **kwargs)
            outcome = make_rows(query.name, run_query(self._actor.state, run, work), live.whom, at)
            live.reads = run.reads
            if STATE in run.reads and self._actor.state.shown_states is not None:
                self._actor.state.shown_states.check_query(self._actor.state.history.current)
        except Exception as error:
            outcome, failure, live.reads = None, error, None
        if run.has_asked and live.whom is SHARED:
            query.is_personal = True
            for reader in tuple(live.readers):
                self._move(reader)
            return
        if outcome is None:
            outcome = Failure(live.whom, at, self._explain(query.name, failure))
        if live.made is None or not outcome.is_like(live.made):
            live.made = outcome
            self._actor.state.after(partial(self._show, live, outcome))
        elif live.made is live.shown:
            self._show_to(live, live.waiting, live.made)

    def _show(self, live: LiveQuery, outcome: Outcome, failure: PlaitError | None) -> None:
        if failure is None:
            live.shown = outcome
            self._show_to(live, live.readers, outcome)
        elif live.made is outcome:
            live.made = live.shown  # The loss has marked all queries, which run again.

    def _show_to(self, live: LiveQuery, readers: Iterable[QueryReader], outcome: Outcome) -> None:
        readers, live.waiting = tuple(readers), {}
        for reader in readers:
            if reader.live is live:
                self._deliver(reader, outcome)

    def _explain(self, name: str, error: Exception) -> PlaitError:
        """Return the error that readers get; log the first one of its class."""
        actor, logged = self._actor, self._passes.logged
        place = (actor.key.kind, name, type(error))
        if isinstance(error, PlaitError):
            if place not in logged:
                logged[place] = ""
                log_error(error, actor.key, None)
            return error
        if actor.host.failures.shows_text or place not in logged:
            logged[place] = str(actor.explain(error))
        return CallFailed(logged[place])

    def _find(self, connection: Connection) -> Sequence[QueryReader]:
        return tuple(self._readers.get(connection, ()))

    def _refuse(self, message: str) -> TooMany:
        error = TooMany(message, limit="queries")
        tell_limit(self._actor.instruments, error)
        return error

    def _enter(self, reader: QueryReader, asked: Asked) -> None:
        principal: Principal | None = None
        whom: Hashable = SHARED
        if asked.query.is_personal:
            principal = reader.connection.principal
            whom = find_whom(principal)
        live = self._live.get(key := (asked, whom))
        if live is None:
            if asked not in self._asked and len(self._asked) >= _MOST:
                raise self._refuse(f"{_MOST} queries of the thread are followed, which is the limit")
            live = self._live[key] = LiveQuery(asked, whom, copy_principal(principal, whom))
            self._asked[asked] += 1
            self._actor.state.on_touch = self.touch
            self._mark(live)
        elif live.is_dirty:  # A new reader does not wait for further changes.
            self._passes.add(self, partial(self._run, live), for_change=False)
        live.readers[reader] = None
        reader.live = live
        self._serve(reader, live)

    def _serve(self, reader: QueryReader, live: LiveQuery) -> None:
        """Send the newest outcome to a reader, or the next one if that is due."""
        if (newest := live.newest) is not None:
            self._deliver(reader, newest)
        else:
            live.waiting[reader] = None

    def _take_out(self, reader: QueryReader) -> None:
        live, reader.live = reader.live, None
        if live is not None:
            del live.readers[reader]
            live.waiting.pop(reader, None)
            if not live.readers:
                del self._live[live.key]
                self._asked[live.asked] -= 1
                if not self._asked[live.asked]:
                    del self._asked[live.asked]
                if not self._live:
                    self._actor.state.on_touch = None

    def _move(self, reader: QueryReader) -> None:
        """Move a reader to the query of its own principal."""
        live = reader.live
        assert live is not None
        self._take_out(reader)
        try:
            self._enter(reader, live.asked)
        except PlaitError as error:
            self._end(reader, error)

    def _end(self, reader: QueryReader, error: PlaitError) -> None:
        self.leave(reader)
        reader.door.fail(error)

    def _mark(self, live: LiveQuery) -> None:
        live.is_dirty = True
        self._passes.add(self, partial(self._run, live), for_change=live.made is not None)

    def _deliver(self, reader: QueryReader, outcome: Outcome) -> None:
        """Send an outcome to a reader for whom it was made, unless the client has it or reads slowly."""
        connection = reader.connection
        if not connection.rights.may_call:
            self._end(reader, Forbidden("Forbidden"))
        elif outcome.whom is not SHARED and outcome.whom != find_whom(connection.principal):
            self._move(reader)
        elif reader.door.is_slow():
            reader.is_behind = True
        elif outcome is not reader.told:
            reader.is_behind, reader.told = False, outcome
            chunk = outcome.chunk(reader.seen)
            if isinstance(outcome, Rows):
                reader.seen = outcome
            reader.door.send(chunk)


find_queries: Final = PerActor[LiveQueries](LiveQueries).of
"""Returns the live queries of an awake thread."""
