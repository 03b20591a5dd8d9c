"""Sends the events that clients emit to the other connections of their thread."""

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.errors import Forbidden, PlaitError
from plait_schemas.messages import Emit

__all__ = ["emit"]


def emit(actor: Actor, connection: Connection, frame: Emit) -> None:
    """Send an event of a client to the others, after all changes made so far. Raises Forbidden and InvalidArguments."""
    connection.begin_message("emit", actor.instruments, actor.key)
    trace, code = connection.trace, "ok"
    try:
        _emit(actor, connection, frame)
    except PlaitError as error:
        code = error.code
        raise
    finally:
        actor.instruments.message_ended(trace, code)


def _emit(actor: Actor, connection: Connection, frame: Emit) -> None:
    if (type_ := actor.kind.emitted.get(frame.name)) is None:
        raise Forbidden(f"clients may not emit {frame.name!r}: the class does not name it in `clients_may_emit`")
    if not connection.rights.may_send:
        raise Forbidden("Forbidden")
    data = type_.decode(frame.name, frame.data, actor.limits)
    actor.sockets.broadcast(data, event=frame.name, sender=connection.id, without=(connection,))
