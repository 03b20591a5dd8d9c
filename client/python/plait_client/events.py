"""The events of a session for its owner; the owner reads the state from the session."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from plait_client.conversations import Delivered, PartChanged, Undelivered
from plait_client.errors import TooLarge
from plait_client.fold import Fold, Pending
from plait_schemas import messages
from plait_schemas.codec import decode_json
from plait_schemas.elements import Keys
from plait_schemas.patch import Op

__all__ = ["Acked", "CallLost", "Changed", "Dropped", "Joined", "Nacked", "SessionEvent", "apply_change"]


class Joined(NamedTuple):
    """The server has answered a join."""


class Acked(NamedTuple):
    """A push is durable as `version`, or changed nothing."""

    push: Pending
    version: int


class Nacked(NamedTuple):
    """A push was refused by the server, or by the client in the server's place, or its answer is lost."""

    push: Pending
    answer: messages.Nack


class Changed(NamedTuple):
    """The confirmed state has changed from `before` to `after`; `ops` are None if the server did not send any."""

    before: Any
    after: Any
    epoch: str
    version: int
    ops: Sequence[Op] | None
    # The id of a connection, "server", "migration" or "undo …"; None if several changes came as one.
    source: str | None
    # The keys for comparing the states.
    keys: Keys | None = None


class CallLost(NamedTuple):
    """The answer to a call will not come."""

    ref: int


class Dropped(NamedTuple):
    """A request waited for a socket that is too small for it: the call `ref`, or else a message or a presence."""

    error: TooLarge
    ref: int | None = None


SessionEvent = (
    Joined
    | Acked
    | Nacked
    | Changed
    | CallLost
    | Dropped
    | PartChanged
    | Delivered
    | Undelivered
    # Frames, passed on unchanged.
    | messages.Result
    | messages.Error
    | messages.Event
    | messages.Message
    | messages.PresenceDiff
    | messages.AuthExpiring
)


def apply_change(
    fold: Fold, frame: messages.Change | messages.Changes | messages.Snapshot, source: str | None = None
) -> Changed:
    """Apply a frame with others' changes, and return the events. Raises PatchError, and changes nothing, on a gap."""
    before, ops = fold.confirmed, None
    match frame:
        case messages.Change():
            ops = frame.ops
            fold.follow(frame.version - 1, frame.version, ops)
        case messages.Changes():
            ops = frame.ops
            fold.follow(frame.from_, frame.to, ops)
        case messages.Snapshot():
            fold.replace((frame.epoch, frame.version), decode_json(frame.state))
    assert fold.at is not None
    return Changed(before, fold.confirmed, *fold.at, ops, source, fold.keys)
