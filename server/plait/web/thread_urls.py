"""Reads the address of a thread from a URL."""

from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from starlette.types import Scope

from plait.actor.kind import check_name
from plait.errors import NotFound
from plait.store.protocol import ThreadKey

__all__ = ["Address", "decode_segment", "is_thread_path", "read_address", "split_path"]

_PREFIXES: Final = ("threads", "agents")


class Address(NamedTuple):
    """A thread, and the rest of the path after its name."""

    key: ThreadKey
    rest: str


def read_address(scope: Scope) -> Address:
    """Read `/threads/{kind}/{name}` or `/agents/{kind}/{name}`, and the rest of the path.

    Empty segments are ignored, as in Cloudflare's router, since the `basePath` of its client makes some. Raises
    NotFound.
    """
    parts = split_path(scope)
    if len(parts) < 3 or parts[0] not in _PREFIXES:
        raise NotFound("the URL of a thread is /threads/{kind}/{name}")
    kind, name = decode_segment(parts[1]), decode_segment(parts[2])
    return Address(ThreadKey(kind, check_name(name)), "/".join(parts[3:]))


def split_path(scope: Scope) -> list[str]:
    """Return the segments of a path below where the app is mounted, without the empty ones, and not decoded.

    A name may contain an encoded slash.
    """
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    root: str = scope.get("root_path", "")
    path = raw.partition(b"?")[0].decode("latin-1").removeprefix(quote(root) if root else "")
    return [part for part in path.split("/") if part]


def decode_segment(segment: str) -> str:
    """Return a segment of a path as text. Raises NotFound."""
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise NotFound("the URL is not UTF-8") from None


def is_thread_path(scope: Scope) -> bool:
    """Return whether a URL begins like one that `read_address` reads."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    first, slash, _ = path.lstrip("/").partition("/")
    return first in _PREFIXES and bool(slash)
