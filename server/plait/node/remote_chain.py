"""The chain of turns that wait for a call, in the form in which it travels to another node.

At that node, a turn of another process gets a stand-in, and a turn of the node itself is found again. So a call that
comes back to a thread of its chain runs inline, and rights, the limit of calls and lost changes work as in one process.
"""

from collections.abc import Iterable
from typing import cast
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from plait.actor.connection import Connection, Party, Rights
from plait.actor.transport import Transport
from plait.actor.turn import Turn, current_turn, find_client_turn
from plait.actor.turns import find_trace
from plait.agents.run_queue import find_party
from plait.instruments.protocol import Instruments
from plait.state.principal import Principal
from plait.store.thread_rows import ThreadKey

__all__ = ["Chain", "Chains"]


class _Client(msgspec.Struct, frozen=True, array_like=True):
    """The client for which a turn runs, and whether it may write to its thread."""

    connection: str | None
    principal: str | None
    readonly: bool
    party: str


class _Caller(msgspec.Struct, frozen=True, array_like=True):
    """A turn: its process, its number there, its thread and its name."""

    process: str
    number: int
    key: ThreadKey
    name: str
    is_running: bool
    # The client, if it asked for this very turn.
    client: _Client | None
    # The id of the principal for whom any other turn runs, such as a hook.
    user: str | None = None


class Chain(msgspec.Struct, frozen=True, array_like=True):
    """The turns that wait for a call, the nearest first, and the client's turn that has caused it."""

    turns: list[_Caller] = []
    origin: _Caller | None = None
    traceparent: str | None = None


class _RemoteTurn(Turn):
    """Stands for a turn of another process."""

    process: str = ""
    number: int = 0


class _RemoteActor:
    """The thread of a turn of another process."""

    thread = None
    is_shutting_down = False

    def __init__(self, key: ThreadKey, instruments: Instruments) -> None:
        self.key = key
        self.instruments = instruments


class _Party(str):
    """The party of a turn of another process, with the same `repr` as in that process."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Chains:
    """Reads and writes the chains of calls of one node. `process` is set before the first call."""

    def __init__(self, instruments: Instruments, process: str = "") -> None:
        self.process = process
        self._instruments = instruments
        # The turns of this process that were part of a chain, and their numbers.
        self._turns: WeakValueDictionary[int, Turn] = WeakValueDictionary()
        self._numbers: WeakKeyDictionary[Turn, int] = WeakKeyDictionary()
        self._last_number = 0

    def make(self) -> Chain:
        """Return the chain of the calling code."""
        turn, origin = current_turn(), find_client_turn()
        return Chain(
            [] if turn is None else [self._describe(each) for each in turn.chain()],
            None if origin is None else self._describe(origin),
            self._instruments.make_traceparent(find_trace(self._instruments)),
        )

    def enter(self, chain: Chain) -> Turn | None:
        """Make the calling context, which must be new, a part of the caller's chain; return the waiting turn, if any.

        The turn's `may_have_stored` says afterwards whether the call may have stored something.
        """
        if chain.traceparent is not None:
            self._instruments.enter_trace(chain.traceparent)
        origin = None if chain.origin is None else self._find(chain.origin) or self._stand_in(chain.origin)
        turn = self._link(chain.turns, origin)
        if turn is not None:
            turn.trace = self._instruments.find_parent()
            turn.enter()
        elif chain.origin is not None:
            outside = self._stand_in(chain.origin)
            outside.is_running = outside.by_client = False
            outside.origin = origin
            outside.enter()
        return turn

    # Inside

    def _link(self, callers: Iterable[_Caller], origin: Turn | None) -> Turn | None:
        """Return the turn of the first caller, with the others as its parents."""
        first: Turn | None = None
        last: Turn | None = None
        for caller in callers:
            found = None if last is None else self._find(caller)
            turn = found or self._stand_in(caller)
            if first is None:
                first, turn.origin = turn, origin
            if last is not None:
                last.parent = turn
            if found is not None:
                break  # This turn already has the further callers as its parents.
            last = turn
        return first

    def _find(self, caller: _Caller) -> Turn | None:
        return self._turns.get(caller.number) if caller.process == self.process else None

    def _describe(self, turn: Turn) -> _Caller:
        if isinstance(turn, _RemoteTurn):
            process, number = turn.process, turn.number
        else:
            process, number = self.process, self._find_number(turn)
        client = _describe_client(turn) if turn.by_client else None
        user = None if turn.by_client else turn.user
        return _Caller(process, number, turn.actor.key, turn.name, turn.is_running, client, user)

    def _find_number(self, turn: Turn) -> int:
        if (number := self._numbers.get(turn)) is None:
            self._last_number = number = self._last_number + 1
            self._numbers[turn], self._turns[number] = number, turn
        return number

    def _stand_in(self, caller: _Caller) -> _RemoteTurn:
        client = caller.client
        turn = _RemoteTurn(
            caller.name,
            _refuse,
            actor=_RemoteActor(caller.key, self._instruments),
            connection=None if client is None else _make_connection(client),
            by_client=client is not None,
        )
        turn.process, turn.number = caller.process, caller.number
        turn.is_running = caller.is_running and caller.process != self.process
        if client is not None:
            turn.party = _Party(client.party)
        elif caller.user is not None:
            turn.party = Party(caller.user)
        return turn


def _describe_client(turn: Turn) -> _Client:
    connection = turn.connection
    if connection is None:
        return _Client(None, None, readonly=False, party=repr(find_party(turn)))
    principal = connection.principal
    return _Client(connection.id, None if principal is None else principal.id, turn.is_readonly, repr(find_party(turn)))


def _make_connection(client: _Client) -> Connection | None:
    """Return a connection with the identity and the rights of a client at another node. Nothing is sent to it."""
    if client.connection is None:
        return None
    principal = None if client.principal is None else Principal(client.principal)
    rights = Rights(principal, may_write=not client.readonly)
    return Connection(client.connection, cast(Transport, None), lambda _: None, rights=rights)


def _refuse() -> None:
    raise AssertionError("a turn of another process runs there")
