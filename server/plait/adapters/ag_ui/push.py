"""Applies the state that a client of AG-UI sends, as a push on the version that the client had."""

from collections.abc import Sequence

from ag_ui.core import RunAgentInput

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.adapters.ag_ui.event_frames import Cursor
from plait.errors import Conflict, InvalidArguments, NotFound, PlaitError, Readonly, Reject
from plait.state.commit import Commit
from plait.state.revision import Revision
from plait.state.view import EVERYTHING, View, find_epoch
from plait.web.http.exchange import Exchange
from plait_schemas.codec import encode_json
from plait_schemas.diff import MOST_OPS, diff
from plait_schemas.patch import Op, PatchError

__all__ = ["push_state"]


async def push_state(exchange: Exchange, actor: Actor, given: RunAgentInput, connection: Connection) -> bool:
    """Apply the changes that a client has made to the state since the version in `forwardedProps.stateVersion`.

    Returns whether there was a change, when it is stored. Without a version, the client's state is ignored, as its
    changes are unknown. Raises PlaitError when a change is refused.
    """
    props = given.forwarded_props
    have = props.get("stateVersion") if isinstance(props, dict) else None
    if have is None or given.state is None:
        return False
    if not isinstance(have, str):
        raise InvalidArguments("forwardedProps.stateVersion must be a str", path="/forwardedProps/stateVersion")
    epoch, version = Cursor.parse(have, "forwardedProps/stateVersion").version
    try:
        if find_epoch(epoch) != actor.state.epoch:
            raise NotFound("the thread has another history since then")
        base = _decode(actor, await actor.log.json(version))
        view = actor.state.find_view(connection.principal, base)
        if epoch != view.name(actor.state.epoch):
            raise NotFound("the client sees other places of the state since then")
    except NotFound as error:
        raise Conflict(f"the state cannot be compared with the version {have[:80]}: {error}") from None
    await exchange.context.scheduler.wait_for_slot()
    try:
        with exchange.context.scheduler.measure():
            ops = _compare(actor, view, base, encode_json(given.state))
            commit = _merge(exchange, actor, ops, base, connection) if ops else None
    except PlaitError:
        raise
    except PatchError as error:
        raise Conflict(str(error)) from None
    except BaseException as error:  # validate_state_change may refuse with any exception.
        raise Reject(str(actor.explain(error, connection))) from None
    if commit is not None:
        await commit
    return commit is not None


def _compare(actor: Actor, view: View, base: Revision, after: bytes) -> Sequence[Op]:
    if view is not EVERYTHING:
        return actor.state.compare(base, after, view)
    return diff(base.tree, _decode(actor, after).tree, actor.kind.state_type.keys, most=MOST_OPS)


def _merge(exchange: Exchange, actor: Actor, ops: Sequence[Op], base: Revision, connection: Connection) -> Commit:
    if connection.readonly:
        raise Readonly("Connection is readonly")
    if actor.state.views is not None:
        actor.state.views.find_for_whole(connection)
    if connection.lease is not None:
        connection.lease.check()
    bucket = exchange.context.requests.bucket(exchange.request, exchange.principal)
    return actor.state.merge(ops, base, connection, bucket)


def _decode(actor: Actor, data: bytes) -> Revision:
    type_ = actor.kind.state_type
    state, json = type_.from_json(data, actor.limits, drops_unknown=True)
    if type_.is_plain:
        return Revision(type_, json=json, tree=type_.read(json, actor.limits))
    return Revision(type_, json=json, tree=state)
