"""Listing the threads of a kind."""

import asyncio
import urllib.parse
import urllib.request
from collections.abc import Mapping
from functools import partial
from ssl import SSLContext
from typing import Any, Generic, TypedDict, TypeVar, Unpack, overload

import msgspec

from plait_client.errors import ClientError
from plait_client.loop import LoopThread
from plait_client.requests import SCHEMES, fetch
from plait_client.target import Target, Token

__all__ = ["ListedThread", "ThreadPage", "list_threads", "list_threads_sync"]

C = TypeVar("C")


class ListedThread(msgspec.Struct, Generic[C], frozen=True):
    """A thread of a listing: its name, how many people have it open, and its card, None if it has none."""

    name: str
    people: int
    card: C | None = None
    # How many messages the user has not read: in the user's own list, for classes with messages and a card.
    unread: int | None = None


class ThreadPage(msgspec.Struct, Generic[C], frozen=True):
    """One page of a listing; the threads that changed last come first."""

    threads: list[ListedThread[C]]
    # The `after` of the next page; None if this is the last one.
    next: str | None = None
    # The number of workers or nodes that did not answer in time: some people, or whole threads, are missing.
    silent: int = 0
    # Whether threads may follow that are not on this page.
    more: bool = False


class ListOptions(TypedDict, total=False):
    """Keywords of `list_threads` and `list_threads_sync`."""

    # The maximum number of threads of the page: 50 by default, at most 200.
    limit: int
    # The `next` of the page before.
    after: str | None
    # Whether only threads of the token's user are listed.
    mine: bool
    # Shown to the server; a function is called for each page.
    token: Token
    # Further headers of the request.
    headers: Mapping[str, str]
    ssl: SSLContext | None
    # The seconds that the request may take.
    timeout: float


@overload
async def list_threads(url: str, *, card_type: type[C], **options: Unpack[ListOptions]) -> ThreadPage[C]: ...
@overload
async def list_threads(url: str, *, card_type: Any = Any, **options: Unpack[ListOptions]) -> ThreadPage[Any]: ...
async def list_threads(url: str, *, card_type: Any = Any, **options: Unpack[ListOptions]) -> ThreadPage[Any]:
    """Return a page of the threads of a kind, at a URL like `ws://localhost:8000/threads/game-room`.

    The threads that changed last come first; for the next page, pass the `next` of this one as `after`. With `mine`,
    they are those of the token's user. `card_type` is the type to convert the cards to.

    Raises Refused if the server does not list them, Disconnected if it cannot be reached, ClientError for an answer
    that is not a listing, and ValueError for an invalid URL.
    """
    timeout, after = options.get("timeout", 30.0), options.get("after")
    query = {"limit": options.get("limit", 50)} | ({} if after is None else {"after": after})
    query |= {"mine": "true"} if options.get("mine") else {}
    headers = dict(options.get("headers", {}))
    if (token := await Target(url, options.get("token")).fetch_token(timeout)) is not None:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(f"{_as_http(url)}?{urllib.parse.urlencode(query)}", headers=headers)
    work = partial(fetch, request, options.get("ssl"), timeout=timeout, failure="the threads cannot be listed")
    data = await asyncio.to_thread(work)
    page: Any = ThreadPage
    try:
        found: ThreadPage[Any] = msgspec.json.decode(data, type=page[card_type])
    except msgspec.MsgspecError as error:
        raise ClientError(f"the answer is no listing of threads: {error}") from error
    return found


@overload
def list_threads_sync(url: str, *, card_type: type[C], **options: Unpack[ListOptions]) -> ThreadPage[C]: ...
@overload
def list_threads_sync(url: str, *, card_type: Any = Any, **options: Unpack[ListOptions]) -> ThreadPage[Any]: ...
def list_threads_sync(url: str, *, card_type: Any = Any, **options: Unpack[ListOptions]) -> ThreadPage[Any]:
    """Return a page of the threads of a kind, as `list_threads` does, without asyncio."""
    loop = LoopThread()
    try:
        return loop.wait(lambda: list_threads(url, card_type=card_type, **options), None)
    finally:
        loop.close()


def _as_http(url: str) -> str:
    scheme, colon, rest = url.partition("://")
    if not colon or scheme not in SCHEMES or not url.isprintable() or set(" ?#") & set(url):
        raise ValueError(f"{url!r} is not the URL of a kind, such as ws://localhost:8000/threads/game-room")
    return f"{SCHEMES[scheme]}://{rest}"
