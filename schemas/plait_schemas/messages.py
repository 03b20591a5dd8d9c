"""Every frame of the native protocol, `plait.v1`; docs/protocol.md describes their meaning and their order."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from plait_schemas.conversation import Input, Item, PendingApproval
from plait_schemas.patch import Op
from plait_schemas.task_run import TaskRun

__all__ = [
    "ANSWER_HEADER",
    "SUBPROTOCOL",
    "UNANSWERED",
    "Ack",
    "Auth",
    "AuthExpiring",
    "Call",
    "Cancel",
    "Change",
    "Changes",
    "ClientMessage",
    "Close",
    "Emit",
    "Error",
    "Event",
    "Join",
    "Joined",
    "Made",
    "Message",
    "Nack",
    "Open",
    "Page",
    "Part",
    "Ping",
    "Pong",
    "Presence",
    "PresenceDiff",
    "Push",
    "Result",
    "Send",
    "Sent",
    "ServerMessage",
    "Snapshot",
    "Unopened",
    "Unsent",
    "Version",
]

SUBPROTOCOL: Final = "plait.v1"

ANSWER_HEADER: Final = "Plait-Protocol"
"""The header of plait's answers to opening requests: a proxy's answers do not have it."""

UNANSWERED: Final = 64
"""The maximum number of unanswered pushes of a client; the server remembers as many outcomes."""

Version = tuple[str, int]
"""An epoch, and a version in it."""

Unset = msgspec.UnsetType
UNSET: Final = msgspec.UNSET


class _Frame(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower, omit_defaults=True):
    """A JSON object with a `type`; a field that is UNSET is left out."""


# Client to server


class Join(_Frame, frozen=True):
    """The first frame on a socket. `client` is the same id on all sockets of a client; `have` is the version it has.

    Without `state`, the client is told versions, but neither the state nor its changes.
    """

    client: str
    have: Version | None = None
    schema: str | None = None
    token: str | None = None
    state: bool = True


class Push(_Frame, frozen=True):
    """A change of the state: `ops`, applied to `base`.

    `made` is the version on which the user made the change, if the client has rebased it since. `answered` is the last
    push whose answer the client had received, if that is not the previous push.
    """

    ref: int
    base: Version
    ops: Sequence[Op]
    made: Version | None = None
    answered: int | None = None


class Call(_Frame, frozen=True):
    """A call of an rpc. The client chooses `ref`, which no other pending call of this socket may have.

    With `have`, the call follows a query: `have` is the tag of the last result that the client has, or empty.

    If it is `optimistic`, the client already shows what the call will do, and is told when its first change comes.
    """

    ref: int
    method: str
    args: Sequence[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}
    have: str | None = None
    optimistic: bool = False


class Cancel(_Frame, frozen=True):
    """The client has stopped waiting for the result of the call `ref`."""

    ref: int


class Message(_Frame, frozen=True):
    """An ordinary message, sent by either side."""

    data: msgspec.Raw


class Emit(_Frame, frozen=True):
    """An event for the other connections, of a name that the thread's class allows to clients."""

    name: str
    data: msgspec.Raw


class Presence(_Frame, frozen=True):
    """The presence of this connection, which the server shows to other clients; null removes it."""

    data: msgspec.Raw


class Auth(_Frame, frozen=True):
    """A fresh token for an open socket."""

    token: str


class Ping(_Frame, frozen=True):
    """Asks for a Pong, because browsers hide WebSocket pings from their pages.

    `messages` is how many ordinary messages the client has sent on this socket, if it counts them.
    """

    messages: int | None = None


class Open(_Frame, frozen=True):
    """Asks for a part of the thread, such as its messages: for the newest page, or the changes since a revision.

    From then on the client is told of changes of the part. With `before`, a position, it asks for an older page.
    """

    part: str
    since: int | None = None
    before: int | None = None
    limit: int = 50


class Close(_Frame, frozen=True):
    """The client stops following a part."""

    part: str


class Send(_Frame, frozen=True):
    """A message for the queue of a part.

    `ref` counts those of this socket, from 1 on. `key` is the client's own name of the message, the same each time that
    it is sent.
    """

    ref: int
    part: str
    content: str
    key: str
    attachments: Sequence[Mapping[str, Any]] = []


ClientMessage = Join | Push | Call | Cancel | Message | Emit | Presence | Auth | Ping | Open | Close | Send


# Server to client


class Joined(_Frame, frozen=True):
    """The answer to a Join.

    `state` is the whole state at `version`, or `ops` lead to it from the version that the client has. Without both, the
    client has that version already, or there is no state yet (version 0). `max_frame` is the maximum size of a
    client's message, in bytes. `list_keys` maps the JSON pointers of lists to the member that identifies their
    elements, for lists that do not use `id`, `key` or `_id`. `texts` are the JSON pointers of the strings that are
    compared by their characters when whole states are compared. In both, `*` stands for any part of a pointer.
    """

    connection: str
    thread: str
    epoch: str
    version: int
    last_ref: int = 0
    readonly: bool = False
    state: msgspec.Raw | Unset = UNSET
    ops: Sequence[Op] | Unset = UNSET
    max_frame: int | None = None
    list_keys: dict[str, str] = {}
    texts: Sequence[str] = []


class Change(_Frame, frozen=True):
    """The next version. `source` is a connection's id, "server", "migration", or "undo", a version and its source.

    Without `source`, the change has the source of the previous change on this socket; the first one, "server".
    """

    version: int
    ops: Sequence[Op]
    source: str | None = None


class Changes(_Frame, frozen=True):
    """Several versions in one frame, for a slow client: those after `from_`, up to `to`."""

    from_: int = msgspec.field(name="from")
    to: int
    ops: Sequence[Op]


class Snapshot(_Frame, frozen=True):
    """The whole state, sent when operations would be larger or are no longer kept."""

    epoch: str
    version: int
    state: msgspec.Raw


class Ack(_Frame, frozen=True):
    """The push is durable, as `version`. `ops` are the operations that were applied, if they differ from the push."""

    ref: int
    version: int
    rebased: bool = False
    ops: Sequence[Op] | Unset = UNSET


class Nack(_Frame, frozen=True):
    """The push was refused; `version` is the thread's current version.

    With the codes `rate_limited` and `gap`, the server has not examined the push. The client sends it again: after
    `retry_after` seconds, or with all pushes from `expected` on.
    """

    ref: int
    code: str
    message: str
    version: int
    path: str | None = None
    retry_after: float | None = None
    expected: int | None = None


class Result(_Frame, frozen=True):
    """The value that an rpc returned, or, with `done` false, one chunk that it streams."""

    ref: int
    done: bool
    value: msgspec.Raw | Unset = UNSET


class Made(_Frame, frozen=True):
    """The optimistic call `ref` makes its first change, `version`, which no earlier frame contains."""

    ref: int
    version: int


class Error(_Frame, frozen=True):
    """The call `ref` failed. Without `ref`, another frame was invalid or was refused.

    For a frame that exceeded the rate limit, `refused` is its type, and `retry_after` the seconds after which the
    client may send it again. An Emit that is refused, for any reason, has no `retry_after`: it is not sent again.
    `messages` is how many ordinary messages of this socket the server accepted before it, if the client counts them.
    """

    code: str
    message: str
    ref: int | None = None
    path: str | None = None
    refused: str | None = None
    retry_after: float | None = None
    messages: int | None = None


class Event(_Frame, frozen=True):
    """An event that the thread emitted, or the client of the connection `from_`."""

    name: str
    data: msgspec.Raw
    from_: str | None = msgspec.field(name="from", default=None)


class PresenceDiff(_Frame, frozen=True, tag="presence"):
    """The presence of each connection, by id: all of them in `snapshot`, or the changes since the previous frame."""

    snapshot: dict[str, msgspec.Raw] | Unset = UNSET
    joined: dict[str, msgspec.Raw] = {}
    updated: dict[str, msgspec.Raw] = {}
    left: Sequence[str] = []


class AuthExpiring(_Frame, frozen=True, tag="auth_expiring"):
    """The token expires in this many seconds."""

    in_: float = msgspec.field(name="in")


class Pong(_Frame, frozen=True):
    """The answer to a Ping; if that counts messages, with the number that the server accepted."""

    messages: int | None = None


class Page(_Frame, frozen=True):
    """The answer to an Open: messages of a part, oldest first, as they are at `revision` or later.

    With `reset` it has the newest ones, and the client forgets its own. With `before`, it has those before that
    position. Otherwise it has the messages that were added or changed since the client's revision, and the ids of those
    that were removed. `more` tells whether there are older ones; without `reset` and `before`, that is not known.

    `approvals` are the calls that wait for a person, if the page is not an older one; the client may answer them with
    `may_approve`. A page of tasks has no messages but `runs`: those that are not over, and the last ones that are.
    """

    part: str
    revision: int
    items: Sequence[Item] = []
    reset: bool = False
    more: bool = False
    before: int | None = None
    removed: Sequence[str] = []
    approvals: Sequence[PendingApproval] = []
    may_approve: bool = False
    runs: Sequence[TaskRun] = []


class Part(_Frame, frozen=True):
    """A change of an opened part. Revisions are dense, but a "chunk" and "missed" repeat the last one.

    "insert" and "update" have the whole `message`, "delete" its `id`, "take" the ids of pending messages that became
    history with their positions there, "chunk" a text that follows the first `at` characters of the streaming message
    `id`, or the `input` of one of its calls, "end" the final `status` of that message. "missed": changes were left out,
    and the client opens the part again. Of tasks, "update" has the whole `run`. An "update" with the revision 0 has the
    calls that wait for a person, instead of a message.
    """

    part: str
    revision: int
    op: Literal["insert", "update", "delete", "take", "chunk", "end", "missed"]
    message: Item | None = None
    id: str | None = None
    taken: dict[str, int] = {}
    at: int = 0
    text: str = ""
    input: Input | None = None
    status: Literal["completed", "failed"] | None = None
    approvals: Sequence[PendingApproval] | None = None
    run: TaskRun | None = None


class Unopened(_Frame, frozen=True):
    """An Open was refused; the client may send it again after `retry_after` seconds, if that is given."""

    part: str
    code: str
    message: str
    before: int | None = None
    retry_after: float | None = None


class Sent(_Frame, frozen=True):
    """The message of a Send is durable, and has the id `id`."""

    ref: int
    id: str


class Unsent(_Frame, frozen=True):
    """A Send was refused. With `retry_after`, or with the code `gap`, the client sends it again with the same `ref`."""

    ref: int
    code: str
    message: str
    path: str | None = None
    retry_after: float | None = None


ServerMessage = (
    Joined
    | Change
    | Changes
    | Snapshot
    | Ack
    | Nack
    | Result
    | Made
    | Error
    | Event
    | Message
    | PresenceDiff
    | AuthExpiring
    | Pong
    | Page
    | Part
    | Unopened
    | Sent
    | Unsent
)
