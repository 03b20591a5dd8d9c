"""The URLs of kinds, which list their threads: a page, or a live listing as server-sent events."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from plait.errors import InvalidArguments, NotFound, PlaitError
from plait.state.principal import Principal
from plait.store.thread_rows import ThreadKey
from plait.web.http.streamed import ResponseAborted, StreamedResponse, wants_events
from plait.web.listing import Listing, PageQuery, make_page
from plait.web.live_listings import ListingReader, LiveListings
from plait.web.server_context import ServerContext, find_lease

__all__ = ["ListingRequests"]

# Reading this many threads for a page counts as one more request, as most of them may be hidden.
_THREADS_PER_MESSAGE: Final = 100


class ListingRequests:
    """Answers the requests to `/threads/{kind}`."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._live = LiveListings(context.node, context.identity)
        context.closers.append(self._live.close)

    async def answer(self, request: Request, kind: str) -> Response:
        """List the threads of a kind. Raises NotFound if the kind is unknown or not listed."""
        context = self._context
        context.check_place(request, kind)
        principal = await context.authenticate(request)
        if isinstance(principal, Response):
            return principal
        context.check_kind(request, kind)
        if not context.node.kind(kind).cls.listed:
            raise NotFound(f"the threads of the kind {kind!r} are not listed: its class does not have `listed = True`")
        if request.method not in ("GET", "HEAD"):
            raise HTTPException(405, "the threads of a kind are listed by GET", headers={"allow": "GET, HEAD"})
        query = PageQuery.read(kind, request.query_params, principal)
        if wants_events(request):
            return await self._stream(request, kind, principal, query)
        listing = Listing(context.node, kind, query, charge=partial(self._charge, request, principal))
        page = await make_page(listing, context.identity, principal, query.limit)
        find_lease(request).check()
        return Response(page, media_type="application/json")

    # Inside

    def _charge(self, request: Request, principal: Principal | None, threads: int) -> None:
        """Charge a request for `threads` that are about to be read. Raises TooMany if the rate limit is exceeded."""
        if messages := threads // _THREADS_PER_MESSAGE:
            self._context.requests.take(request, principal)
            self._context.requests.charge_messages(request, principal, messages - 1)

    async def _stream(self, request: Request, kind: str, principal: Principal | None, query: PageQuery) -> Response:
        """Return a live listing, which counts as a socket of its address."""
        if query.after is not None:
            raise InvalidArguments("an event stream shows the first page, and has no `after`", path="/after")
        host = request.client.host if request.client else ""
        addresses, lease = self._context.addresses, find_lease(request)
        addresses.enter(host)
        reader = await self._live.open(kind, principal, query, ended=partial(addresses.leave, host))
        lease.open(lambda *_: reader.leave())
        lease.check()
        return StreamedResponse(self._events(reader, kind), media_type="text/event-stream", ended=reader.leave)

    async def _events(self, reader: ListingReader, kind: str) -> AsyncIterator[bytes]:
        try:
            async for event in reader.events():
                yield event
        except Exception as error:
            if not isinstance(error, PlaitError):
                self._context.failures.explain(error, ThreadKey(kind, ""))  # This logs the error.
            raise ResponseAborted from None
