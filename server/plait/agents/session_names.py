"""Stores the user and session ids of threads whose name holds only their hash."""

from typing import Final
from urllib.parse import quote, unquote

import msgspec

from plait.actor.per_actor import PerActor
from plait.actor.thread import ThreadActor
from plait.agents.address import is_thread_id, read_session_name, session_name
from plait.errors import NotFound, PlaitError
from plait.kv.user_names import find_user, user_prefix
from plait.store.protocol import Store
from plait.store.thread_rows import Record, ThreadKey
from plait_schemas.codec import NOT_JSON, encode_json

__all__ = ["SESSION", "decode_session", "find_session", "remember_session"]

SESSION: Final = ("agents", "session")
"""The part and the key of the record."""


class _Written:
    """Whether the record of an awake thread is written."""

    def __init__(self, _: ThreadActor) -> None:
        self.is_written = False

    def finish(self, error: PlaitError | None) -> None:
        """Write the record again with the next run if it could not be stored."""
        self.is_written = error is None


_WRITTEN: Final = PerActor(_Written)

_decode: Final = msgspec.json.Decoder(tuple[str | None, str]).decode


def remember_session(actor: ThreadActor, user_id: str | None, session_id: str | None) -> None:
    """Store the ids that a hashed name of a thread hides, and the user of a new thread."""
    name, history = actor.key.name, actor.state.history
    if session_id is None and user_id is not None and is_thread_id(name) and not history.is_begun:
        history.set_owner(find_user(user_prefix(user_id)))
    if session_id is None or "*" not in name or session_name(user_id, session_id) != name:
        return
    if not (written := _WRITTEN.of(actor)).is_written:
        written.is_written = True
        actor.records.write([Record(*SESSION, _encode(user_id, session_id))]).then(written.finish)


async def find_session(store: Store, key: ThreadKey) -> tuple[str | None, str] | None:
    """Return the user and the session of a thread; None if it has none or they are not known. Raises StoreError."""
    if (found := read_session_name(key.name)) is not None or "*" not in key.name:
        return found
    data = await store.record(key, *SESSION)
    return None if data is None else decode_session(key.name, data)


def decode_session(name: str, data: bytes) -> tuple[str | None, str] | None:
    """Return the ids in a record of a thread; None if they do not match its name."""
    try:
        user, session = _decode(data)
        user_id = None if user is None else unquote(user, errors="surrogatepass")
        session_id = unquote(session, errors="surrogatepass")
        is_right = session_name(user_id, session_id) == name
    except (*NOT_JSON, NotFound):
        return None
    return (user_id, session_id) if is_right else None


def _encode(user_id: str | None, session_id: str) -> bytes:
    return encode_json(
        [None if id is None else quote(id, safe="", errors="surrogatepass") for id in (user_id, session_id)]
    )
