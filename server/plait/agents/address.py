"""Makes and reads the names of threads: new ids, and the names of users' sessions."""

import secrets
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

from plait.errors import NotFound
from plait.kv.user_names import escape_id, user_prefix

__all__ = [
    "check_thread_id",
    "is_of_another",
    "is_thread_id",
    "make_thread_id",
    "may_be_secret",
    "read_session_name",
    "session_name",
]

_PREFIX: Final = "thrd_"
_LONGEST: Final = 64
_SHORTEST: Final = 32
# Attempts to find an id that this node owns; a node may own only every 64th thread.
_MOST_TRIES: Final = 2_000


def make_thread_id(is_own: Callable[[str], bool] = lambda _: True) -> str:
    """Return an id, `thrd_` and 32 hexadecimal digits, for which `is_own` is true, if the node owns enough threads."""
    ids = (f"{_PREFIX}{secrets.token_hex(16)}" for _ in range(_MOST_TRIES))
    first = next(ids)
    return first if is_own(first) else next(filter(is_own, ids), first)


def is_thread_id(name: str) -> bool:
    """Whether a name looks like one of `make_thread_id`."""
    return name.startswith(_PREFIX)


def check_thread_id(id: str) -> str:
    """Return an id if it may be signed. Raises ValueError that names the violated rule."""
    if not isinstance(id, str):
        raise ValueError(f"a thread id must be a str, not {type(id).__name__}")
    if not id.startswith(_PREFIX):
        raise ValueError(f"a thread id must begin with {_PREFIX!r}")
    if not _SHORTEST <= len(id) <= _LONGEST:
        raise ValueError(f"a thread id must have {_SHORTEST} to {_LONGEST} characters, not {len(id)}")
    rest = id.removeprefix(_PREFIX)
    if not (rest.isascii() and rest.isalnum()):
        raise ValueError(f"a thread id must have only letters and digits (a-z, A-Z, 0-9) after {_PREFIX!r}")
    return id


def session_name(user_id: str | None, session_id: str) -> str:
    """Return the name of the thread of a user's session; None is an anonymous user.

    No two pairs have the same name. Raises NotFound for an empty id.
    """
    if not session_id:
        raise NotFound("a session id must not be empty")
    return user_prefix(user_id) + escape_id(session_id)


def read_session_name(name: str) -> tuple[str | None, str] | None:
    """Return the user and the session of a name from `session_name`; None for another name, or one with a hash.

    This does not check who may use the session: see `is_of_another`.
    """
    user, colon, session = name.partition(":")
    if not colon or "*" in name:
        return None
    try:
        found = (_unescape(user) if user else None), _unescape(session)
        return found if session_name(*found) == name else None
    except (UnicodeDecodeError, NotFound):
        return None


def may_be_secret(name: str) -> bool:
    """Whether a name may be a secret of its user: the name of a session, or an id that the server signs."""
    return ":" in name or is_thread_id(name)


def is_of_another(user_id: str | None, name: str) -> bool:
    """Whether a name is that of another user's session; anonymous sessions have no owner."""
    return ":" in name and (user_id is None or not name.startswith(user_prefix(user_id)))


def _unescape(escaped: str) -> str:
    return unquote(escaped, errors="surrogatepass")
