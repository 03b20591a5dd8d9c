"""Exports a whole thread as JSON, and imports it."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec

from plait.actor.actor import Actor
from plait.actor.kind import Kind, check_name
from plait.actor.outcome import wait_for_durable
from plait.agents.cut_off import MARK
from plait.agents.session_names import SESSION, decode_session
from plait.errors import Conflict, InvalidState
from plait.limits import Limits
from plait.parts.part import Part, find_parts
from plait.parts.values_index import describe_values
from plait.state.history import replay_json
from plait.state.migrations import migrate_state
from plait.state.types import parse_json_error
from plait.store.protocol import Record, StoredThread, ThreadKey
from plait_schemas.codec import NOT_JSON, decode_json, encode_json

__all__ = ["describe_stored", "export_thread", "import_thread"]

_FORMAT: Final = 1
_NONE: Final = msgspec.Raw(b"")


class Export(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A thread: its state, if it has one, and the records of each part, by the names of the parts."""

    format: int
    kind: str
    name: str
    state_version: int = 1
    # The user and the session, if they are stored.
    session: msgspec.Raw = _NONE
    state: msgspec.Raw = _NONE
    parts: Mapping[str, Mapping[str, msgspec.Raw]] = {}


_decode_export: Final = msgspec.json.Decoder(Export).decode


class Node(Protocol):
    """The awake threads."""

    limits: Limits

    def kind(self, name: str) -> Kind: ...

    async def actor(self, key: ThreadKey) -> Actor: ...

    async def stored_actor(self, key: ThreadKey) -> Actor: ...

    async def is_stored(self, key: ThreadKey) -> bool: ...


async def export_thread(node: Node, key: ThreadKey) -> str:
    """Return a stored thread as JSON, when that is durable. Raises NotFound and StoreError."""
    actor = await node.stored_actor(key)
    with actor.keep_awake():
        session = await actor.records.read(*SESSION)
        parts = await _export_parts(actor)
        export = Export(
            format=_FORMAT,
            kind=key.kind,
            name=key.name,
            state_version=actor.kind.state_version,
            session=_raw(session),
            state=_raw(actor.state.current.json),
            parts=parts,
        )
        return await wait_for_durable(encode_json(export).decode(), actor.state.after)


def describe_stored(key: ThreadKey, stored: StoredThread, records: Iterable[Record]) -> str:
    """Return what `export_thread` does, of what is stored. Raises CorruptThread."""
    parts: dict[str, list[Record]] = {}
    session: bytes | None = None
    for record in records:
        if (record.part, record.key) == SESSION:
            session = record.value
        elif (record.part, record.key) != MARK:
            parts.setdefault(record.part, []).append(record)
    exported = {part: describe_values(part, found) for part, found in parts.items()}
    export = Export(
        format=_FORMAT,
        kind=key.kind,
        name=key.name,
        state_version=stored.state_version,
        session=_raw(session),
        state=_raw(replay_json(key, stored) if stored.has_state else None),
        parts={part: _raws(objects) for part, objects in exported.items() if objects},
    )
    return encode_json(export).decode()


async def import_thread(node: Node, data: str | bytes, *, name: str | None, replace: bool) -> ThreadKey:
    """Make a thread of an export, in one write, and return its key when that is durable.

    Raises InvalidState for what is no export or does not fit the class, NotFound for a kind that there is not, Conflict
    when there is such a thread and it is not to be replaced, or has a state and the export none, and what migrations,
    `set_state` and waking raise.
    """
    export = _read(data)
    kind = node.kind(export.kind)
    key = ThreadKey(kind.name, check_name(export.name if name is None else name))
    has_state, state = _read_state(key, kind, export, node.limits)
    was_stored = await node.is_stored(key)
    actor = await node.actor(key)
    with actor.keep_awake():
        if (was_stored or not actor.is_new) and not replace:
            raise Conflict(f"there is a thread {key} already: import it with `replace`, or by another name")
        if not has_state and actor.state.current.json is not None:
            raise Conflict(f"the thread {key} has a state, and the export has none: destroy the thread first")
        parts = [(part, _read_objects(export, part)) for part in find_parts(kind.cls).values()]
        with actor.thread.transaction() as transaction:
            if has_state:
                actor.thread.set_state(state)
            for part, objects in parts:
                part.replace(actor, objects)
            if decode_session(key.name, bytes(export.session)) is not None:
                actor.records.write([Record(*SESSION, bytes(export.session))])
        assert transaction.commit is not None
        await transaction.commit
        await actor.state.store_thread()
    return key


async def _export_parts(actor: Actor) -> dict[str, dict[str, msgspec.Raw]]:
    parts, found = find_parts(actor.kind.cls), dict[str, dict[str, msgspec.Raw]]()
    while len(found) < len(parts):  # All of them at one moment.
        found = {}
        for name, part in parts.items():
            if (objects := part.export(actor)) is None:
                await part.prepare_export(actor)
                break
            found[name] = _raws(objects)
    return {name: objects for name, objects in found.items() if objects or parts[name].exported}


def _raws(objects: Mapping[str, bytes]) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(data) for name, data in objects.items()}


def _raw(data: bytes | None) -> msgspec.Raw:
    # Only the default itself is left out of the JSON.
    return _NONE if data is None else msgspec.Raw(data)


def _read(data: str | bytes) -> Export:
    try:
        export = _decode_export(data)
    except NOT_JSON as error:
        message, path = parse_json_error(error)
        raise InvalidState(f"this is not an exported thread: {message}", path=path) from None
    if export.format > _FORMAT:
        raise InvalidState(f"the thread was exported in format {export.format}; this plait reads {_FORMAT}")
    return export


def _read_state(key: ThreadKey, kind: Kind, export: Export, limits: Limits) -> tuple[bool, Any]:
    """Return whether the thread gets a state, and which: the exported one, migrated, or else the initial one."""
    if not bytes(export.state):
        return kind.has_initial_state, kind.initial_state() if kind.has_initial_state else None
    stored = StoredThread("", 0, bytes(export.state), (), export.state_version)
    data = migrate_state(key, kind, stored) or stored.snapshot
    assert data is not None
    return True, kind.state_type.read(data, limits)


def _read_objects(export: Export, part: Part[Any]) -> dict[str, bytes]:
    found, given = dict[str, bytes](), export.parts.get(part.name, {})
    for name in part.exported:
        if (raw := given.get(name)) is None:
            continue
        try:
            value = decode_json(bytes(raw))
        except NOT_JSON as error:
            message, path = parse_json_error(error)
            raise InvalidState(f"this is not an exported thread: {message}", path=path) from None
        if not isinstance(value, dict):
            raise InvalidState("this is not an exported thread: Expected `object`", path=f"/parts/{part.name}/{name}")
        found[name] = encode_json(value)
    return found
