"""The users and sessions of threads whose names do not tell them: long ids are in a name as a hash."""

from typing import Final
from urllib.parse import quote, unquote

import msgspec

from plait.actor.actor import Actor
from plait.agents.address import read_session_name, session_name
from plait.errors import NotFound
from plait.store.protocol import Record, Store, ThreadKey
from plait_schemas.codec import NOT_JSON, encode_json

__all__ = ["SESSION", "decode_session", "find_session", "remember_session"]

SESSION: Final = ("agents", "session")
"""The part and the key of the record."""

# Among the parts of an awake thread: whether the record is written. No attribute can have this name.
_WRITTEN: Final = "session record"

_decode: Final = msgspec.json.Decoder(tuple[str | None, str]).decode


def remember_session(actor: Actor, user_id: str | None, session_id: str | None) -> None:
    """Store the ids with a thread whose name is made of them, but does not tell them."""
    name = actor.key.name
    if session_id is None or _WRITTEN in actor.parts or "*" not in name or session_name(user_id, session_id) != name:
        return
    actor.parts[_WRITTEN] = True
    commit = actor.records.write([Record(*SESSION, _encode(user_id, session_id))])
    commit.then(lambda error: None if error is None else actor.parts.pop(_WRITTEN, None))


async def find_session(store: Store, key: ThreadKey) -> tuple[str | None, str] | None:
    """Return the user and the session of a thread, None if it has none, or they are not known. Raises StoreError."""
    if (found := read_session_name(key.name)) is not None or "*" not in key.name:
        return found
    data = await store.record(key, *SESSION)
    return None if data is None else decode_session(key.name, data)


def decode_session(name: str, data: bytes) -> tuple[str | None, str] | None:
    """Return the ids that a record tells of a thread, None if they are not those of its name."""
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
