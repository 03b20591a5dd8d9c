"""The interface of metrics and traces, `Instruments`, and the class that ignores everything."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from plait.errors import PlaitError, StoreError, TurnTimeout

__all__ = [
    "HTTP_METHODS",
    "NO_INSTRUMENTS",
    "TRACE",
    "Instruments",
    "NoInstruments",
    "find_outcome",
    "tell_limit",
    "telling_store_errors",
]

HTTP_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "POST", "PATCH", "DELETE"})
"""HTTP methods that are counted separately; all others, which a client may invent, are counted together."""

TRACE: Final = "plait.trace"
"""The key of the trace in the scope of an HTTP request."""


class Instruments(Protocol):
    """Methods that plait calls to measure and trace a server. Subclass `NoInstruments` and override some.

    The methods run in the event loop, so they must not wait for anything; their arguments are positional. The first
    exception of each method is logged; otherwise exceptions are ignored.

    Requests, messages, turns and changes have a trace: any value that `…_began` or `change_made` returns. The trace is
    passed to the methods that mark the end, and is the `parent` of everything that the request or turn causes.
    `traceparent` is the W3C header of the request, or of the request that opened the socket, unless it is longer than
    any valid one.

    An outcome is `ok`, the code of an error, `error` for an exception that is not plait's, `timeout` or `cancelled`.
    """

    def request_began(self, kind: str, name: str, method: str, traceparent: str | None) -> Any:
        """Called when an HTTP request for a thread arrives, and returns its trace."""
        return None

    def request_ended(self, trace: Any, status: int) -> None:
        """Called when the answer to a request is sent, or when its client has disconnected, with the status 499.

        The status is 500 if there is no answer for another reason, such as an exception.
        """
        return

    def message_began(self, kind: str, name: str, type: str, traceparent: str | None) -> Any:
        """Called for a `join`, `push`, `call` or `message` on a socket, and returns its trace.

        For a `join`, this is called when the client is authenticated and the thread is awake, and not if either fails.
        """
        return None

    def message_ended(self, trace: Any, outcome: str) -> None:
        """Called when a message is answered, or when the turn that it caused has ended."""
        return

    def turn_began(self, kind: str, name: str, turn: str, waited: float, parent: Any) -> Any:
        """Called when a turn begins after it has waited for some seconds, and returns its trace.

        `turn` is the name of a hook, `rpc` and the name of a method, or `destroy`. `on_start`, `on_stop` and `on_close`
        have no parent. A turn that is caused by code outside of turns has only the parent that `find_parent` returns.
        """
        return None

    def turn_ended(self, trace: Any, seconds: float, outcome: str) -> None:
        """Called when a turn has ended, by the task that began it."""
        return

    def make_traceparent(self, trace: Any) -> str | None:
        """Called when a turn calls a thread of another node; returns the W3C header for the trace, if there is one."""
        return None

    def enter_trace(self, traceparent: str) -> None:
        """Called in a new context, to make the trace of a call from another node the current one."""
        return

    def find_parent(self) -> Any:
        """Called when code outside of this app's turns uses a thread, and returns the parent of the turns it causes."""
        return None

    def step_began(self, kind: str, name: str, task: str, step: str, parent: Any) -> Any:
        """Called when an attempt at a step of a task begins, and returns its trace."""
        return None

    def step_ended(self, trace: Any, seconds: float, outcome: str) -> None:
        """Called when an attempt at a step has ended, by the task that began it; `ok` when its result is durable."""
        return

    def task_slept(self, kind: str, task: str, seconds: float) -> None:
        """Called when a run of a task goes on after it has slept, or waited for an event or its next attempt."""
        return

    def task_ended(self, kind: str, task: str, status: str) -> None:
        """Called when the end of a run of a task is durable: `done`, `failed` or `cancelled`."""
        return

    def change_made(self, kind: str, name: str, size: int, parent: Any) -> Any:
        """Called when a change of `size` bytes is made, before it is durable; returns its trace."""
        return None

    def change_committed(self, trace: Any, seconds: float, batch: int) -> None:
        """Called when a change is durable; `batch` is the number of writes in its transaction."""
        return

    def change_failed(self, trace: Any, code: str) -> None:
        """Called when a change could not be stored."""
        return

    def change_sent(self, trace: Any, connections: int) -> None:
        """Called when a durable change is sent, with the number of connections that follow the state.

        Connections that read too slowly get the change later, together with others. The source is not counted.
        """
        return

    def socket_opened(self, protocol: str) -> None:
        """Called when a socket is open; `protocol` is `plait.v1` or `cloudflare`."""
        return

    def socket_closed(self, protocol: str, code: int) -> None:
        """Called when a socket is closed, with the code, which may be the peer's."""
        return

    def joined(self, kind: str, protocol: str, sent: str) -> None:
        """Called when a socket or an event stream (`events`) has joined.

        `sent` is the data that the client got: `snapshot`, `changes` or `nothing`.
        """
        return

    def woke(self, kind: str, seconds: float) -> None:
        """Called when a thread has woken."""
        return

    def slept(self, kind: str) -> None:
        """Called when a thread that had woken is no longer awake."""
        return

    def push_answered(self, kind: str, outcome: str) -> None:
        """Called for each push: `outcome` is `accepted`, `rebased`, `repeated`, or the code of its error."""
        return

    def reader_lagged(self, kind: str) -> None:
        """Called when a client reads too slowly, so that changes are held back from it."""
        return

    def loop_blocked(self, kind: str, turn: str, seconds: float) -> None:
        """Called after a turn has blocked the event loop; `kind` and `turn` are empty for code outside of turns."""
        return

    def limit_hit(self, limit: str) -> None:
        """Called when a client has exceeded a limit: a field of `Limits`."""
        return

    def measure_cluster(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Called once with a function that returns the current metrics of a node and its links, in any OS thread."""
        return

    def store_failed(self, code: str) -> None:
        """Called when the store could not read or write."""
        return


class NoInstruments(Instruments):
    """Ignores everything; the base of instruments that use some of the methods."""


NO_INSTRUMENTS: Final = NoInstruments()


@contextmanager
def telling_store_errors(instruments: Instruments) -> Iterator[None]:
    """Report a StoreError of the block to the instruments, for reads and writes outside of awake threads."""
    try:
        yield
    except StoreError as error:
        instruments.store_failed(error.code)
        raise


def tell_limit(instruments: Instruments, error: BaseException) -> None:
    """Report the limit that an error is about, if there is one."""
    if isinstance(error, PlaitError) and error.limit is not None:
        instruments.limit_hit(error.limit)


def find_outcome(error: BaseException | None) -> str:
    """Return the outcome of a turn or a message that has ended with `error`."""
    match error:
        case None:
            return "ok"
        case TurnTimeout():
            return "timeout"
        case asyncio.CancelledError():
            return "cancelled"
        case PlaitError():
            return error.code
        case _:
            return PlaitError.code
