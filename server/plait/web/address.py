"""Which thread a URL names."""

from typing import NamedTuple
from urllib.parse import quote, unquote

from starlette.types import Scope

from plait.errors import NotFound
from plait.kind import check_name
from plait.store.protocol import ThreadKey

__all__ = ["Address", "read_address"]


class Address(NamedTuple):
    """A thread, and what of the path comes behind its name."""

    key: ThreadKey
    rest: str


def read_address(scope: Scope) -> Address:
    """Return what the path below a mount at `/threads` or `/agents` names: `/{kind}/{name}` and more.

    The path is split before it is decoded, so that a name may have an encoded slash in it. Raises NotFound.
    """
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    path = raw.partition(b"?")[0].decode("latin-1")
    for root in (scope.get("root_path", ""), quote(scope.get("root_path", ""))):
        if root and path.startswith(root):
            path = path.removeprefix(root)
            break
    parts = path.removeprefix("/").split("/", 2)
    if len(parts) < 2 or not parts[0] or not parts[1]:
        raise NotFound("the URL of a thread is /threads/{kind}/{name}")
    try:
        kind, name = (unquote(part, errors="strict") for part in parts[:2])
    except UnicodeDecodeError:
        raise NotFound("the URL is not UTF-8") from None
    return Address(ThreadKey(kind, check_name(name)), parts[2] if len(parts) > 2 else "")
