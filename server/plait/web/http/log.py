"""A thread's history over HTTP: earlier states, the changes since a version, and a stream of events."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.responses import Response

from plait.actor.actor import Actor
from plait.errors import Forbidden, InvalidArguments, NotFound
from plait.session.event_stream import EventStream
from plait.state.json_patch import to_json_patch
from plait.state.principal import Principal
from plait.state.revision import Revision
from plait.state.view import EVERYTHING, HIDDEN, View
from plait.store.thread_rows import ChangeRow
from plait.web.http.exchange import Exchange
from plait.web.listing import is_number, read_limit
from plait_schemas.codec import decode_json, encode_json
from plait_schemas.messages import Version

__all__ = ["changes", "event_stream", "state_at", "tag"]

# Maximum number of changes in one answer; fewer if they are large.
_MOST_CHANGES: Final = 1000
# Maximum bytes of operations in an answer whose splices are replaced by whole texts.
_MOST_BYTES: Final = 1024 * 1024
_JSON_PATCH: Final = "rfc6902"


async def state_at(actor: Actor, principal: Principal | None, version: str) -> Response:
    """Return the state at a version, as the principal would have seen it. Raises NotFound if it is not kept."""
    if not is_number(version):
        raise InvalidArguments(f"at={version[:80]}: must be a whole number", path="/at")
    then = Revision(actor.kind.state_type, json=await actor.log.json(int(version)))
    view = actor.state.find_view(principal, then)
    headers = {"etag": tag(view.name(actor.state.epoch), int(version))}
    return Response(view.json(then), media_type="application/json", headers=headers)


async def changes(actor: Actor, principal: Principal | None, query: Mapping[str, str]) -> Response:
    """Return the first durable changes after a version, or the oldest ones. Raises NotFound if they are not kept.

    The query may have `since`, `limit` and `patch`; if that is "rfc6902", the changes contain only operations of JSON
    Patch. Raises Forbidden if what a principal sees varies, as it may have been hidden from it at the time of a change.
    """
    since, limit, patch = (query.get(name) for name in ("since", "limit", "patch"))
    if patch not in (None, _JSON_PATCH):
        raise InvalidArguments(f"patch={patch[:80]}: must be {_JSON_PATCH}", path="/patch")
    if actor.state.views_vary:
        raise Forbidden("the view of a client on this thread may vary, so its changes are not listed")
    view = actor.state.find_view(principal)
    name = view.name(actor.state.epoch)
    most = _MOST_CHANGES if limit is None else min(read_limit(limit), _MOST_CHANGES)
    if since is None:
        after = await actor.log.start()
        while (rows := await actor.log.page(after, limit=most)) is None:
            after = await actor.log.start()  # The log was shortened during the read.
    else:
        epoch, after = _read_version(since)
        rows = await actor.log.page(after, limit=most) if epoch == name else None
        if rows is None or after > actor.state.durable.version:
            raise NotFound(f"the changes since {since} are no longer kept; get the state instead")
    if patch is not None and any(b'"splice"' in row.ops for row in rows):
        rows = to_json_patch(decode_json(await actor.log.json(rows[0].version - 1)), rows, most=_MOST_BYTES)
    if view is not EVERYTHING:
        rows = await _show(actor, rows, view)
    version = rows[-1].version if rows else after
    body = {
        "epoch": name,
        "version": version,
        "more": version < actor.state.durable.version,
        # The operations are already JSON.
        "changes": [_describe(row) for row in rows],
    }
    return Response(encode_json(body), media_type="application/json")


async def _show(actor: Actor, rows: Sequence[ChangeRow], view: View) -> list[ChangeRow]:
    """Return the first changes as a reader sees them.

    They end before a change that only the whole picture can tell, unless it is the first one, as the picture takes the
    place of its operations.
    """
    seen: list[ChangeRow] = []
    for row in rows:
        if (shown := view.show(row)) is None:
            if not seen:
                after = Revision(actor.kind.state_type, json=await actor.log.json(row.version))
                shown = view.show(row, after)
            return [*seen, shown] if shown is not None else seen
        seen.append(shown)
    return seen


def _describe(row: ChangeRow) -> dict[str, Any]:
    described = {"version": row.version, "ops": msgspec.Raw(row.ops), "source": row.source}
    return described if row.source == HIDDEN else {**described, "at": row.at / 1e6}


def tag(epoch: str, version: int) -> str:
    """Return the entity tag of a state."""
    return f'"{epoch}:{version}"'


async def event_stream(exchange: Exchange, actor: Actor) -> Response:
    """Return a live stream of a thread's frames, which resumes from the reader's version if possible.

    Raises InvalidArguments, and the errors of `stream_events`.
    """
    request = exchange.request
    if "patch" in request.query_params:
        raise InvalidArguments(
            "an event stream has no `patch`: it sends the operations of the native protocol", path="/patch"
        )
    id, since = request.headers.get("last-event-id"), request.query_params.get("since")
    have = _read_version(id, "Last-Event-ID") if id else _read_version(since) if since else None

    async def open_(stream: EventStream) -> None:
        await stream.open(request, have)

    return await exchange.stream_events(actor, EventStream, open_)


def _read_version(text: str, name: str = "since") -> Version:
    epoch, _, version = text.rpartition(":")
    if not epoch or not is_number(version):
        raise InvalidArguments(f"{name}={text[:80]}: must be epoch:version, as sent by the server", path=f"/{name}")
    return epoch, int(version)
