"""Reads the address of a thread from a URL."""

from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from starlette.types import Scope

from plait.actor.kind import check_name
from plait.errors import NotFound
from plait.store.protocol import ThreadKey

__all__ = ["Address", "is_thread_path", "read_address"]

_PREFIXES: Final = ("threads", "agents")


class Address(NamedTuple):
    """A thread, and the rest of the path after its name."""

    key: ThreadKey
    rest: str


def read_address(scope: Scope) -> Address:
    """Read `/threads/{kind}/{name}` or `/agents/{kind}/{name}`, and the rest of the path.

    The path is split before it is decoded, so a name may contain an encoded slash. Empty segments are ignored, as in
    Cloudflare's router, since the `basePath` of its client makes some. Raises NotFound.
    """
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    root: str = scope.get("root_path", "")
    path = raw.partition(b"?")[0].decode("latin-1").removeprefix(quote(root) if root else "")
    parts = [part for part in path.split("/") if part]
    if len(parts) < 3 or parts[0] not in _PREFIXES:
        raise NotFound("the URL of a thread is /threads/{kind}/{name}")
    try:
        kind, name = unquote(parts[1], errors="strict"), unquote(parts[2], errors="strict")
    except UnicodeDecodeError:
        raise NotFound("the URL is not UTF-8") from None
    return Address(ThreadKey(kind, check_name(name)), "/".join(parts[3:]))


def is_thread_path(scope: Scope) -> bool:
    """Return whether a URL begins like one that `read_address` reads."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    first, slash, _ = path.lstrip("/").partition("/")
    return first in _PREFIXES and bool(slash)
