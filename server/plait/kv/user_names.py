"""The ids of users as they are in the names of threads."""

import hashlib
from typing import Final
from urllib.parse import quote, unquote

from plait.errors import NotFound

__all__ = ["escape_id", "find_user", "user_prefix"]

# Longer escaped ids are replaced by a hash, so that two ids fit into a name.
_LONGEST_ID: Final = 120


def user_prefix(user_id: str | None) -> str:
    """Return the prefix of the names of a user's threads; None is anonymous. Raises NotFound for an empty id."""
    if user_id is None:
        return ":"
    if not user_id:
        raise NotFound("a user id must not be empty; use None for an anonymous user")
    return f"{escape_id(user_id)}:"


def find_user(name: str) -> str | None:
    """Return the id of the user in whose name a thread is called; None if the name has none, or only its hash.

    An id with halves of surrogate pairs is not found either: it cannot be stored.
    """
    escaped, colon, _ = name.partition(":")
    try:
        user = unquote(escaped, errors="strict")
    except UnicodeDecodeError:
        return None
    return user if user and colon and user_prefix(user) == f"{escaped}:" else None


def escape_id(id: str, *, longest: int = _LONGEST_ID) -> str:
    """Return an id without `:` and `/`, or a hash of a long one, which begins with `*`."""
    escaped = quote(id, safe="", errors="surrogatepass")
    if len(escaped) <= longest:
        return escaped
    return "*" + hashlib.blake2b(id.encode(errors="surrogatepass"), digest_size=32).hexdigest()
