"""The settings of a class of threads, as attributes of the class, with their defaults."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from plait.state.conflicts import Policy
from plait.state.retention import DEFAULT_RETENTION, Retention

__all__ = ["ThreadSettings"]


class ThreadSettings:
    """The attributes that a subclass of Thread may set, but for `initial_state`, whose type only Thread knows."""

    # The name in URLs; by default derived from the class's name.
    kind: ClassVar[str]
    # Whether the thread's kind and name are sent to clients of the Cloudflare protocol.
    send_identity: ClassVar[bool] = True
    # Whether clients may list the threads of the class, except sessions; `authorize` decides about each thread.
    listed: ClassVar[bool] = False
    # Whether clients may destroy the thread in an app without `authorize`; if the app has one, it alone decides.
    clients_may_destroy: ClassVar[bool] = False
    # Seconds without a socket or a turn after which the thread goes to sleep; None for never.
    idle_timeout: ClassVar[float | None] = 60.0
    # Seconds without a socket or a turn after which the thread is destroyed; None for never.
    expires_after: ClassVar[float | None] = None
    # Seconds after which a turn is cancelled and logged with its stack; None for never.
    turn_timeout: ClassVar[float | None] = 30.0

    # The policy for a push to a place that others have changed since the push was made: the push wins, or it is
    # refused. A class with `resolve_conflict` decides for each place.
    conflict: ClassVar[Policy] = "last-writer"
    # Whether a whole state from a client of the Cloudflare protocol is merged, so that only the client's differences
    # count. Otherwise it replaces the state.
    merge_whole_states: ClassVar[bool] = True
    # The member that identifies the elements of a list, if it is not `id`, `key` or `_id`: by the JSON pointer of the
    # list, in which `*` stands for any part, as in {"/columns/*/cards": "slug"}.
    list_keys: ClassVar[Mapping[str, str]] = {}
    # The places of strings in which changes are merged, in addition to the fields of the type that are `Text`: JSON
    # pointers in which `*` stands for any part, as in ("/note", "/cards/*/body").
    texts: ClassVar[Collection[str]] = ()
    # The places of the state that clients may change, as JSON pointers in which `*` stands for any part, `{user}` for
    # the id of the client's principal, and `**` at the end for everything below; None for everything. Or a method
    # `can_write(self, state, viewer)`, called at each write of a client, that returns the places for its principal, or
    # None. Code of the server may always change everything.
    can_write: Sequence[str] | Callable[..., Sequence[str]] | None = None
    # The places of the state that clients see, with everything below them, in the same form; None for everything. A
    # method `can_read(self, state, viewer)` is called for each principal after each change.
    can_read: Sequence[str] | Callable[..., Sequence[str]] | None = None
    # The bounds of the log.
    retention: ClassVar[Retention] = DEFAULT_RETENTION
    # The version of the state's type; increase it by 1 with each `@migrate`.
    state_version: ClassVar[int] = 1
    # The events that the thread emits, each with its type, for `plait types`. If it is not empty, no other events may
    # be emitted.
    events: ClassVar[Mapping[str, Any]] = {}
    # The names of the events that clients may emit to the others; `events` may have their types.
    clients_may_emit: ClassVar[Collection[str]] = ()
