"""Reads the address of a thread, or of an agent, from a URL."""

from collections.abc import Collection
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from starlette.types import Scope

from plait.actor.kind import check_name
from plait.errors import NotFound
from plait.store.thread_rows import ThreadKey

__all__ = [
    "Address",
    "is_run_path",
    "is_thread_path",
    "read_address",
    "read_kind",
    "read_run",
    "split_path",
]

_PREFIXES: Final = ("threads", "agents")
_RUN: Final = "run"


class Address(NamedTuple):
    """A thread, and the rest of the path after its name."""

    key: ThreadKey
    rest: str


def read_address(scope: Scope) -> Address:
    """Read `/threads/{kind}/{name}` or `/agents/{kind}/{name}`, and the rest of the path.

    The path is split before it is decoded, so a name may contain an encoded slash. Empty segments are ignored, as in
    Cloudflare's router, since the `basePath` of its client makes some. Raises NotFound.
    """
    parts = split_path(scope)
    if len(parts) < 3 or parts[0] not in _PREFIXES:
        raise NotFound("the URL of a thread is /threads/{kind}/{name}")
    try:
        kind, name = unquote(parts[1], errors="strict"), unquote(parts[2], errors="strict")
    except UnicodeDecodeError:
        raise NotFound("the URL is not UTF-8") from None
    return Address(ThreadKey(kind, check_name(name)), "/".join(parts[3:]))


def read_kind(scope: Scope) -> str | None:
    """Read `/threads/{kind}` or `/agents/{kind}`; None for another URL."""
    parts = split_path(scope)
    return unquote(parts[1]) if len(parts) == 2 and parts[0] in _PREFIXES else None


def read_run(scope: Scope) -> tuple[str, str]:
    """Read `/run/{agent}`; return the agent, and the rest of the path. Raises NotFound."""
    parts = split_path(scope)
    if len(parts) < 2 or parts[0] != _RUN:
        raise NotFound("the URL of an agent is /run/{agent}")
    return unquote(parts[1]), "/".join(parts[2:])


def is_thread_path(scope: Scope) -> bool:
    """Return whether a URL begins like the URL of a thread."""
    return _begins_with(scope, _PREFIXES)


def is_run_path(scope: Scope) -> bool:
    """Return whether a URL begins like the URL of an agent."""
    return _begins_with(scope, (_RUN,))


def split_path(scope: Scope) -> list[str]:
    """Return the segments of a path below the app's mount point, still encoded, without the empty ones."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    root: str = scope.get("root_path", "")
    path = raw.partition(b"?")[0].decode("latin-1").removeprefix(quote(root) if root else "")
    return [part for part in path.split("/") if part]


def _begins_with(scope: Scope, prefixes: Collection[str]) -> bool:
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    first, slash, _ = path.lstrip("/").partition("/")
    return first in prefixes and bool(slash)
