"""One awake thread, which its node starts, watches and stops."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextvars import Context
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from plait.actor.connection import Connection, Party
from plait.actor.events import Events
from plait.actor.handle import Handle, HasState
from plait.actor.hooks import Hooks
from plait.actor.kind import Kind
from plait.actor.logs import Failures
from plait.actor.outcome import Done
from plait.actor.per_actor import PerActor, Service
from plait.actor.programs import terminate_programs
from plait.actor.relatives import Relatives
from plait.actor.sockets import Sockets
from plait.actor.thread import Thread
from plait.actor.turn import Turn
from plait.actor.turns import TurnRunner
from plait.actor.usage import Usage
from plait.author_code import call_now
from plait.clock import read_wall_clock
from plait.errors import InvalidState, PlaitError, StoreError, Terminated, Unavailable
from plait.instruments.protocol import Instruments
from plait.limits import Limits
from plait.state.card import CARD, Card
from plait.state.change_log import ChangeLog
from plait.state.commit import Commit
from plait.state.merger import Merger
from plait.state.push_log import PushLog
from plait.state.state_history import StateHistory
from plait.state.thread_records import Records, read_record
from plait.state.timer import Timer
from plait.state.transaction import Transaction
from plait.store.protocol import Store, StoredThread
from plait.store.thread_rows import Record, RecordRange, ThreadKey
from plait_schemas.codec import encode_json

__all__ = ["MARK", "TIMER_INTERVAL", "Actor", "ActorHost", "AgentRuns", "find_actor"]

TIMER_INTERVAL: Final = 30.0
"""Seconds after which the timer of a thread reads the clock again."""

MARK: Final = RecordRange(CARD[0])
"""The records of the thread itself, which are read when it wakes: the mark of a terminated thread, and the card."""

# The key of the mark.
_TERMINATED: Final = "terminated"

T = TypeVar("T", bound=HasState[Any])
S = TypeVar("S", bound=Service)


class _Termination(msgspec.Struct, frozen=True):
    """The mark of a terminated thread: the time, in microseconds since the epoch."""

    at: int


_decode_termination: Final = msgspec.json.Decoder(_Termination).decode


class AgentRuns(Protocol):
    """The agents of an app, which its threads run; `Runs` describes the methods."""

    is_draining: bool

    def attempt(self, actor: "Actor", name: str, queue: object) -> Awaitable[bool]: ...

    def interrupt_attempt(self, actor: "Actor", attempt: object) -> None: ...

    def terminate(self, actor: "Actor") -> None: ...

    @property
    def threads(self) -> Collection[ThreadKey]: ...

    def has_run(self, thread: ThreadKey | None = None) -> bool: ...

    def cut_off(self, thread: ThreadKey | None = None) -> None: ...


class ActorHost(NamedTuple):
    """The services that a node gives to all of its actors."""

    store: Store
    limits: Limits
    # Turns exceptions into the errors that clients get.
    failures: Failures
    instruments: Instruments
    runs: AgentRuns
    # Return a handle to a thread of a class, and the class of a kind.
    make_handle: Callable[[type[Any], str], Handle[Any]]
    find_class: Callable[[str], type[Thread[Any]]]
    destroy: Callable[[ThreadKey], Awaitable[None]]
    # Called when the store has refused a change of a thread, as this process no longer owns the thread.
    drop: Callable[["Actor", StoreError], None]
    # Makes the node check an actor soon, as it is used.
    watch: Callable[["Actor"], None]
    # The id of the process, and a lock for work that may have crashed an earlier process: it runs one at a time.
    process: str
    suspects: asyncio.Lock
    # Services that the parts of all threads share, by class; closed when the node stops.
    services: dict[type[Service], Service]
    timer_interval: float = TIMER_INTERVAL


class Actor:
    """Runs one thread. The node creates it when the thread wakes, and drops it when the thread goes to sleep."""

    __slots__ = (
        "due",
        "ending_turns",
        "events",
        "hooks",
        "host",
        "instruments",
        "is_ending",
        "key",
        "kind",
        "limits",
        "log",
        "loop",
        "parts",
        "records",
        "relatives",
        "sockets",
        "state",
        "terminated_at",
        "thread",
        "timer",
        "turns",
        "usage",
    )

    def __init__(
        self, key: ThreadKey, kind: Kind, stored: StoredThread | None, host: ActorHost, events: Events, *, fence: int
    ) -> None:
        self.loop = loop = asyncio.get_running_loop()
        self.key = key
        self.kind = kind
        self.host = host
        self.limits = host.limits
        self.instruments = host.instruments
        self.events = events
        self.thread: Thread[Any] = object.__new__(kind.cls)
        self.sockets = Sockets(self, self.thread)
        history = self._make_history(stored, fence)
        self.log = ChangeLog(key, host.store, history, instruments=host.instruments)
        self.state = self._make_state(history, stored)
        # Calls the parts that are due. Writes contain their times once all parts are loaded.
        self.timer = Timer(loop, host.timer_interval)
        due = None if stored is None else stored.due
        self.state.due = due or 0
        self.usage = Usage(self.state, self.timer, kind.expires_after, due, watch=partial(host.watch, self))
        self.turns = self.state.turns = TurnRunner(self)
        if self.state.views is not None:
            self.state.views.turns = self.turns
        self.hooks = Hooks(self, self.thread, self.turns, self.events)
        if self.hooks.has("on_state_changed"):
            self.sockets.on_change = self.hooks.post_change
        if self.hooks.has("card"):
            self.state.card = self._make_card()
        self.records = Records(key, host.store, self.state, instruments=host.instruments)
        # The values that other packages keep on this actor, as declared with PerActor; None without any.
        self.parts: dict[PerActor[Any], Any] | None = None
        # The time at which the node checks the thread again, unless it is used before.
        self.due = inf
        # The time of the termination, in microseconds since the epoch; None without one.
        self.terminated_at: int | None = None
        # The family of the thread; None without one.
        self.relatives: Relatives | None = None
        # Whether the thread is being destroyed: messages of clients are neither handled nor answered.
        self.is_ending = False
        # The turn that destroys the thread, and the turns that wait for that turn.
        self.ending_turns: Sequence[Turn] = ()
        self.thread._actor = self
        call_now(self.thread.__init__)  # type: ignore[misc]

    @property
    def is_shutting_down(self) -> bool:
        """Whether the server is shutting down."""
        return self.host.runs.is_draining

    @property
    def is_unused(self) -> bool:
        """Whether the thread may be stopped: it has no connection, no turn runs, and every change is durable."""
        return not self.sockets and not self.usage.holds and self.is_idle and not self.timer.is_due

    @property
    def is_idle(self) -> bool:
        """Whether no turn runs, and every change is durable."""
        return self.turns.is_idle and self.state.is_durable

    def load(self, records: Sequence[Record]) -> None:
        """Read the records of the thread itself when it wakes. Raises CorruptThread."""
        for record in records:
            if record.key == _TERMINATED:
                self.terminated_at = read_record(record, self.key, _decode_termination).at
        if self.state.card is None and any(record.key == CARD[1] for record in records):
            self.state.card = self._make_card()
        if self.state.card is not None:
            self.state.card.load(records)

    def make_handle(self, kind: type[T], name: str) -> Handle[T]:
        """Make a handle to another thread."""
        return self.host.make_handle(kind, name)

    def use_service(self, cls: type[S]) -> S:
        """Return the service of a class that the parts of all threads of the node share; make it first if needed."""
        if (found := self.host.services.get(cls)) is None:
            found = self.host.services[cls] = cls()
        assert isinstance(found, cls)
        return found

    async def destroy(self) -> None:
        """Destroy this thread, as `Node.destroy` does. Raises Readonly, as `check_may_write` does."""
        await self.host.destroy(self.key)

    def explain(self, error: BaseException, connection: Connection | None = None) -> PlaitError:
        """Return the error that a client gets, as `Failures.explain` does."""
        return self.host.failures.explain(error, self.key, connection)

    # Work of parts

    def begin(self, name: str, work: Callable[[], object], done: Done, *, is_used: bool = True) -> Turn:
        """Begin server work outside of the mailbox, as a turn without a cause; by default, it is a use of the thread.

        `done` is called with the result or error of the work when the changes before its end are durable. If the turn
        is cancelled because the server shuts down, the error is Unavailable.
        """
        self.usage.renew(is_used=is_used)
        turn = Turn(name, work, actor=self, is_use=is_used)
        self.turns.begin(turn, done, is_gated=True, is_concurrent=True, context=Context())
        return turn

    def run_agent(self, agent: str, queue: object = None) -> Awaitable[bool]:
        """Run an agent that takes no input, in the calling turn; drop its writes if it does not end by itself.

        The run is an attempt to handle `queue`. Raises ValueError at once if the thread has no such agent. Awaiting the
        result returns whether the run was interrupted, and raises the exception of the agent, but Uncounted if the
        run was interrupted or did not begin.
        """
        return self.host.runs.attempt(self, agent, queue)

    def check_active(self) -> None:
        """Raise Terminated if the thread takes no new work."""
        if self.terminated_at is not None:
            raise Terminated(f"{self.key} was terminated")

    def terminate(self) -> Commit:
        """Stop taking new work, as `Thread.terminate` does."""
        with Transaction(self.state, self.key) as transaction:
            if is_first := self.terminated_at is None:
                mark = Record(CARD[0], _TERMINATED, encode_json(_Termination(at := read_wall_clock())))
                self.records.write([mark], undo=partial(setattr, self, "terminated_at", None))
                self.terminated_at = at
                for part in self.timer.parts:
                    part.terminate()
        assert transaction.commit is not None
        if is_first and self.hooks.has("on_terminated"):
            transaction.commit.then(lambda failure: failure or self.turns.post("on_terminated"))
        self.host.runs.terminate(self)
        terminate_programs(self)
        return transaction.commit

    async def start(self, user: str | None = None, prepare: "Callable[[Actor], None] | None" = None) -> None:
        """Give a new thread its initial state, `prepare` it, and run `on_start`, for its creator `user`.

        Returns when all of this is durable. Raises the exception of `on_start`, and the error of a write that has
        failed.
        """
        if not self.state.history.current.has_state and self.kind.has_initial_state:
            try:
                self.state.start(call_now(self.kind.initial_state))
            except InvalidState as error:  # A mistake of the author; an InvalidState would blame the client.
                raise TypeError(f"{self.kind.cls.__name__}.initial_state does not fit its type: {error}") from error
        creator = None if user is None or self.state.is_stored else Party(user)
        first = None if prepare is None or self.state.is_stored else partial(prepare, self)
        await self.hooks.run("on_start", party=creator, prepare=first)

    async def stop(self) -> None:
        """Run `on_stop`, wait until every change is durable, and refuse further changes."""
        self.timer.stop()
        # Work that runs while the thread stops does not count as a use.
        is_used, last_used = self.usage.marked_until > 0, self.usage.last_used
        try:
            try:
                await self.hooks.run("on_stop")
            except Exception as error:
                self.turns.report(error, None)
            await self.wait_until_idle()
            if is_used:
                self.usage.rest(self.loop.time() - last_used)
            self.state.store_due()
            await self.state.wait_until_durable()
        finally:
            self.abort()

    def tell_created(self) -> None:
        """Call the listeners of `thread.created`, if there are any, in a turn that runs concurrently with others."""
        if self.events.has("thread.created"):
            work = partial(self.events.emit, "thread.created", self.thread)
            # An empty context, as the writes of listeners do not belong to the run that has begun the thread.
            self.turns.begin_beside(Turn("thread.created", work, actor=self), Context())

    def sweep(self, now: float) -> float:
        """Expire turns, free memory while the thread is idle, and return the time at which it may be stopped if unused.

        Returns `inf` while the thread is in use, as it becomes active again when the use ends.
        """
        if not self.turns.mailbox.is_idle:
            self.turns.time_out(now, self.thread.turn_timeout)
            # `on_start` runs in threads that are only read, too.
            self.usage.renew(is_used=self.usage.marked_until > 0)
        elif not self.state.is_durable:
            self.usage.watch()
        elif self.is_unused:
            self.state.history.forget()
            return self.usage.find_stop(now, self.thread.idle_timeout)
        else:
            return self.usage.find_mark(now)
        return inf

    async def wait_until_idle(self) -> None:
        """Wait until all turns have ended and every change is durable, or has failed; connections may stay open."""
        while not self.is_idle:
            await self.turns.wait()
            await self.state.wait_until_durable()

    def abort(self) -> None:
        """Cancel all turns and refuse further connections and changes."""
        self.timer.stop()
        self.sockets.close(Unavailable("the thread has been stopped"))
        self.sockets.presence.close()
        self.state.close()
        self.turns.cancel()
        self.state.history.release()

    def drop(self, error: PlaitError, *, is_awake: bool) -> None:
        """Close the sockets at once, so that their clients reconnect, and refuse further changes.

        The turns of a thread that is awake are cancelled, except for `on_close`.
        """
        self.timer.stop()
        self.sockets.close(error)
        self.state.close()
        if is_awake:
            self.turns.cancel()
        self.sockets.expel(error)
        self.sockets.presence.close()

    async def finish(self) -> None:
        """Wait until the turns of a dropped or destroyed thread have ended; cancel them if this task is cancelled."""
        try:
            await self.wait_until_idle()
        finally:
            self.turns.cancel()
            self.state.history.release()

    # Inside

    def _make_history(self, stored: StoredThread | None, fence: int) -> StateHistory:
        return StateHistory(
            self.key,
            self.kind.state_type,
            stored,
            retention=self.kind.cls.retention,
            state_version=self.kind.state_version,
            fence=fence,
            on_stored=self.tell_created,
        )

    def _make_state(self, history: StateHistory, stored: StoredThread | None) -> Merger:
        state = Merger(
            history,
            self.kind.state_type,
            self.host.store,
            self.limits,
            self.kind.rules(self.thread),
            on_commit=self.sockets.send_seen if callable(self.kind.readable) else self.sockets.send_change,
            on_lost=partial(self.host.drop, self),
            instruments=self.instruments,
        )
        state.clients = PushLog(self.log, () if stored is None else stored.clients)
        return state

    def _make_card(self) -> Card:
        make = partial(self.state.ask, self.thread.card) if self.hooks.has("card") else None
        return Card(make, self.limits, self.turns, lambda: [part.find_facts(self) for part in self.kind.shown])


def find_actor(turn: Turn) -> Actor | None:
    """Return the actor of a turn; None if the turn runs at another node."""
    return turn.actor if isinstance(turn.actor, Actor) else None
