"""What a session tells its owner."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from plait_client.pending import Push
from plait_schemas import messages
from plait_schemas.align import Keys
from plait_schemas.patch import Op

__all__ = ["Acked", "CallLost", "Changed", "Happening", "Joined", "Nacked"]


class Joined(NamedTuple):
    """The server has answered a join."""


class Changed(NamedTuple):
    """The confirmed state was `before` and is `after`; `ops` are None where the server did not name any."""

    before: Any
    after: Any
    epoch: str
    version: int
    ops: Sequence[Op] | None
    # The id of a connection, "server", "migration" or "undo …"; None where several changes came as one.
    source: str | None
    # By which the states are to be compared.
    keys: Keys | None = None


class Acked(NamedTuple):
    """A push is durable as `version`, or changed nothing."""

    push: Push
    version: int


class Nacked(NamedTuple):
    """A push was refused, or what became of it is not known any more."""

    push: Push
    answer: messages.Nack


class CallLost(NamedTuple):
    """The answer to a call will not come."""

    ref: int


Happening = (
    Joined
    | Changed
    | Acked
    | Nacked
    | CallLost
    | messages.Result
    | messages.Error
    | messages.Event
    | messages.Message
    | messages.PresenceDiff
    | messages.AuthExpiring
)
