"""Requests between nodes."""

from typing import Any, Final

import msgspec

from plait.node.json_calls import EncodedArguments
from plait.node.remote_chain import Chain
from plait.store.protocol import Order, ThreadRow
from plait.store.thread_rows import ThreadKey

__all__ = [
    "CallMethod",
    "CallPart",
    "CallThread",
    "Disconnect",
    "Envelope",
    "ExportThread",
    "ForkThread",
    "ImportThread",
    "ListThreads",
    "Listed",
    "OfThread",
    "ReadAwake",
    "ReadMetrics",
    "ReadPeople",
    "ReadState",
    "Request",
    "RunAgent",
    "SetState",
    "StateReply",
    "decode_envelope",
    "encode_envelope",
]


class OfThread(msgspec.Struct, frozen=True, array_like=True):
    """A request about one thread, to the node that owns it."""

    key: ThreadKey


class ReadState(OfThread, frozen=True, tag="state"):
    """Return the state with its version: a StateReply."""


class SetState(OfThread, frozen=True, tag="set"):
    """Set the state, given as JSON: at any version, or only if the thread is still at `epoch` and `version`."""

    json: bytes
    epoch: str | None = None
    version: int = 0


class CallThread(OfThread, frozen=True, tag="thread"):
    """Call one of THREAD_METHODS of the thread itself."""

    method: str
    arguments: EncodedArguments


class CallMethod(OfThread, frozen=True, tag="call"):
    """Call an rpc by its name."""

    method: str
    arguments: EncodedArguments


class RunAgent(OfThread, frozen=True, tag="run"):
    """Run an agent. The input and the attributes are JSON; typed attributes have the module and name of their type."""

    agent: str
    input: bytes
    session_id: str | None
    user_id: str | None
    attributes: dict[str, bytes]
    typed: dict[str, bytes]


class CallPart(OfThread, frozen=True, tag="part"):
    """Call a method of a part, or stream the bytes that it yields; the last argument may follow as the body."""

    part: str
    method: str
    arguments: EncodedArguments
    has_body: bool = False


class ExportThread(OfThread, frozen=True, tag="export"):
    """Stream the file of the thread."""


class ImportThread(OfThread, frozen=True, tag="import"):
    """Store the file that follows as the thread."""

    replace: bool


class ForkThread(OfThread, frozen=True, tag="fork"):
    """Fork the thread from another one that the node can read."""

    source: str
    at: int | None


class ListThreads(msgspec.Struct, frozen=True, array_like=True, tag="list"):
    """Return a page of the stored threads of the node: a list of Listed."""

    kind: str | None = None
    prefix: str = ""
    # Whether only threads of `user_id` are listed.
    is_of_user: bool = False
    user_id: str | None = None
    # The members that the metadata of a value must have, as JSON.
    metadata: bytes = b"{}"
    order: Order = "name"
    after: ThreadRow | None = None
    limit: int | None = None
    # Whether the kinds that plait itself uses are also listed, and whether the rows contain the sessions.
    has_inner: bool = False
    has_sessions: bool = False
    # Whether the page is for clients: rows have cards, and threads whose names may be secret are left out, unless they
    # are of the user that asks.
    is_for_clients: bool = False


class ReadMetrics(msgspec.Struct, frozen=True, array_like=True, tag="metrics"):
    """Return the metrics of the process."""


class ReadAwake(msgspec.Struct, frozen=True, array_like=True, tag="awake"):
    """Return a report of the awake threads: an AwakeReport."""


class ReadPeople(msgspec.Struct, frozen=True, array_like=True, tag="people"):
    """Return the number of people in each awake thread of a kind: a dict by name."""

    kind: str


class Disconnect(msgspec.Struct, frozen=True, array_like=True, tag="disconnect"):
    """Close the sockets of a user, of a connection id, or of a thread; return their number."""

    user: str | None = None
    connection_id: str | None = None
    thread: ThreadKey | None = None


class Listed(msgspec.Struct, frozen=True, array_like=True):
    """A row of a listing; `session` has the ids of the user and the session, if they are wanted and known."""

    row: ThreadRow
    session: tuple[str | None, str] | None = None
    # The card as JSON, if it is wanted and exists.
    card: bytes | None = None
    # How many messages the user has not read, if the user's own threads are listed, and these have messages and cards.
    unread: int | None = None


Request = (
    ReadState
    | SetState
    | CallThread
    | CallMethod
    | RunAgent
    | CallPart
    | ExportThread
    | ImportThread
    | ForkThread
    | ListThreads
    | ReadMetrics
    | ReadAwake
    | ReadPeople
    | Disconnect
)


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A request with the turns that wait for it."""

    chain: Chain
    request: Request


class StateReply(msgspec.Struct, frozen=True, array_like=True):
    """The state and the version of a thread. After SetState: whether it was set; if not, the current state."""

    epoch: str
    version: int
    # None if the thread has no state.
    json: bytes | None = None
    is_set: bool = False


decode_envelope: Final = msgspec.msgpack.Decoder(Envelope).decode
_encode: Final = msgspec.msgpack.Encoder().encode


def encode_envelope(chain: Chain, request: Any) -> bytes:
    """Encode a request with its chain."""
    return _encode(Envelope(chain, request))
