"""The parts of a server that sockets and routes share: the node, the limits, and the checks of requests."""

import asyncio
import itertools
import math
import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Scope

from plait.actor.actor import Actor
from plait.actor.connection import Party
from plait.agents.agent import INTERRUPT
from plait.agents.runs import Runs
from plait.cluster.owners import Owners
from plait.errors import Forbidden, NotFound, PlaitError, TooLarge, TooMany, Unauthenticated, Unavailable
from plait.limits import UNLIMITED, Limits, TokenBucket, check_weight, count_extra_messages
from plait.node.node import Node
from plait.parts.files.thread_files import find_files
from plait.parts.messages.thread_messages import Messages
from plait.parts.part import find_parts
from plait.parts.tasks.thread_tasks import find_tasks_part
from plait.session.cloudflare.departures import Departures
from plait.session.leases import Leases, PrincipalLease
from plait.state.compatibility import Compatibility
from plait.state.principal import Principal
from plait.store.thread_rows import ThreadKey
from plait.web.addresses import Addresses
from plait.web.authentication import Identity
from plait.web.fairness import FairScheduler
from plait.web.hosts import Hosts, find_header
from plait.web.links.links import Links
from plait.web.links.relays import Relays
from plait.web.sockets.framing import WriteBatcher
from plait.web.sockets.heartbeat import Heartbeat
from plait.web.sockets.pending_join import PendingJoin

__all__ = [
    "THREAD",
    "RequestLimiter",
    "ServerContext",
    "as_final_refusal",
    "as_get",
    "as_refusal",
    "error_body",
    "error_response",
    "find_lease",
    "find_party",
    "find_traceparent",
    "with_token",
]


THREAD: Final = "plait.thread"
"""The key in a scope of the name of the thread, if an earlier step has found it."""

_LEASE: Final = "plait.lease"
# HTTP statuses for which plait has an error code.
_CODES: Final = {
    kind.status: kind.code for kind in (Unauthenticated, Forbidden, NotFound, TooLarge, TooMany, Unavailable)
} | {500: "internal"}
# A `traceparent` has 55 characters; later versions of the standard may append to it.
_LONGEST_TRACEPARENT: Final = 512
# The maximum number of files that one principal, or one address without a principal, sends at once.
_MOST_UPLOADS: Final = 4
_PHRASES: Final = {each.value: each.phrase for each in HTTPStatus}


class RequestLimiter:
    """Limits the rate of requests, and the uploads at once, by principal, or by address if there is none."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._buckets = limits.make_buckets()
        # The number of uploads under way, by party.
        self.uploads: dict[Hashable, int] = {}

    def take(self, request: Request, principal: Principal | None) -> None:
        """Count a request. Raises TooMany if the rate limit is exceeded."""
        bucket = self.bucket(request, principal)
        if bucket is not None and (wait := bucket.take(asyncio.get_running_loop().time())):
            rate = self._limits.messages_per_second
            many = f"more than {rate:g} requests a second; try again in {wait:.2f} s"
            raise TooMany(many, retry_after=wait, limit="messages_per_second")

    def charge(self, request: Request, principal: Principal | None, body: bytes) -> None:
        """Charge a request for its body, as for a message on a socket. Raises TooLarge for a body that is too heavy."""
        check_weight("body", body, self._limits)
        self.charge_messages(request, principal, count_extra_messages(body))

    def charge_messages(self, request: Request, principal: Principal | None, count: float) -> None:
        """Charge a request like this number of further messages on a socket."""
        if (bucket := self.bucket(request, principal)) is not None:
            bucket.charge(count)

    @contextmanager
    def upload(self, party: Hashable) -> Iterator[None]:
        """Count an upload of a file during the block. Raises TooMany at the maximum."""
        count = self.uploads.get(party, 0)
        if self._limits is not UNLIMITED and count >= _MOST_UPLOADS:
            raise TooMany(f"{_MOST_UPLOADS} files are being uploaded already; try again later", retry_after=1.0)
        self.uploads[party] = count + 1
        try:
            yield
        finally:
            self.uploads[party] -= 1
            if not self.uploads[party]:
                del self.uploads[party]

    def bucket(self, request: Request, principal: Principal | None) -> TokenBucket | None:
        """Return the bucket of a request's party, for use before the next `await`; None without a rate limit."""
        if self._buckets is None:
            return None
        return self._buckets.bucket(find_party(request, principal), asyncio.get_running_loop().time())


def find_lease(request: Request) -> PrincipalLease:
    """Return the lease of a request, which ends with its answer."""
    lease: PrincipalLease = request.scope[_LEASE]
    return lease


def find_party(request: Request, principal: Principal | None) -> Party:
    """Return the party that the limits charge for a request: its principal, or else its address."""
    if principal is not None:
        return Party(principal.id)
    return Party(None, request.client.host if request.client else "")


class ServerContext:
    """The parts of a running Plait that requests and sockets use."""

    def __init__(
        self,
        node: Node,
        identity: Identity,
        heartbeat: Heartbeat,
        *,
        hosts: Hosts,
        compatibility: Compatibility,
        runs: Runs,
        owners: Owners,
        links: Links,
        shutdown_timeout: float,
    ) -> None:
        self.node = node
        self.identity = identity
        self.hosts = hosts
        # Whether 404 answers list the kinds for every client, as in development.
        self.lists_kinds = False
        # The kinds with a conversation that clients may open.
        self.live_kinds = frozenset(name for name, kind in node.kinds.items() if _has_live_messages(kind.cls))
        # The tasks that the kinds declare.
        declared = {name: find_tasks_part(kind.cls) for name, kind in node.kinds.items()}
        self.tasks = {name: part for name, part in declared.items() if part is not None}
        # The files that the kinds declare.
        found = {name: find_files(kind.cls) for name, kind in node.kinds.items()}
        self.files = {name: part for name, part in found.items() if part is not None}
        self.compatibility = compatibility
        self.runs = runs
        # The owners of threads, and the links to the other nodes.
        self.owners = owners
        self.links = links
        # The apps that answer HTTP requests, by number, which other nodes may relay.
        self.endpoints: list[ASGIApp] = []
        self.limits = node.limits
        self.instruments = node.instruments
        self.failures = node.failures
        self.heartbeat = heartbeat
        self.write_batcher = WriteBatcher(owners.gate)
        # The queue for costly work of all sockets and requests.
        self.scheduler = FairScheduler()
        self.addresses = Addresses(self.limits.connections_per_address, self.instruments)
        self.requests = RequestLimiter(self.limits)
        # Called when the server shuts down, to end the streams that belong to no thread.
        self.closers: list[Callable[[], None]] = []
        # The open sockets and streams of principals.
        self.leases = Leases()
        self._shutdown_timeout = shutdown_timeout
        self._pending_joins: set[PendingJoin] = set()
        # The sockets and requests that are relayed to other nodes, the carriers, and the task that ends them.
        self.relays = Relays()
        self._draining: asyncio.Task[None] | None = None
        # The versions that clients of the Cloudflare protocol showed when they left.
        self.departures = Departures()
        # The numbers of the joins, in order of arrival.
        self.arrivals = itertools.count()

    def start(self) -> None:
        """Make a new scheduler, as the old one may belong to a closed event loop."""
        self.scheduler = FairScheduler()

    def begin_lease(self, request: Request) -> PrincipalLease:
        """Give a request a lease, which the caller ends after the answer."""
        lease = request.scope[_LEASE] = self.leases.begin()
        return lease

    async def authenticate(self, request: Request) -> Principal | Response | None:
        """Return the principal of a request, or the Response of `authenticate`, and count the request.

        Raises Unauthenticated and TooMany.
        """
        principal = await self.identity.principal(request)
        if not isinstance(principal, Response):
            self.requests.take(request, principal)
            find_lease(request).principal = principal
        return principal

    def check_place(self, request: Request, kind: str) -> None:
        """Raise HTTPException for a host that is not allowed, and NotFound for an unknown kind.

        With `authenticate`, `check_kind` checks the kind afterwards, because its message lists the existing kinds.
        """
        self.hosts.check(request)
        if self.lists_kinds or not self.identity.asks:
            self.check_kind(request, kind)

    def check_kind(self, request: Request, kind: str) -> None:
        """Raise NotFound for an unknown kind; it lists the existing ones only for pages of allowed origins."""
        if kind in self.node.kinds:
            return
        if not self.lists_kinds:
            self.identity.check_origin(request)
        self.node.kind(kind)

    def has_runs(self, kind: str) -> bool:
        """Whether threads of a kind have tasks or agents, with runs that clients may approve or stop."""
        return kind in self.tasks or INTERRUPT in self.node.kinds[kind].methods

    async def actor(self, principal: Principal | None, key: ThreadKey) -> Actor:
        """Return a thread that is stored or that the principal may begin; wake it if needed, as `Node.actor` does.

        Raises Forbidden, without waking it, for any other thread.
        """
        may_create = not self.identity.has_rules
        while True:
            if not may_create and not await self.node.is_stored(key):
                await self.identity.check(principal, key, "create")
                may_create = True
            actor = await self.node.actor(key, user=None if principal is None else principal.id)
            if may_create or actor.state.is_stored:  # Otherwise the thread was destroyed after the check.
                return actor

    @contextmanager
    def register(self, pending: PendingJoin) -> Iterator[None]:
        """Register a socket that has not joined yet, while the block runs."""
        self._pending_joins.add(pending)
        try:
            yield
        finally:
            self._pending_joins.discard(pending)

    def shutdown(self) -> asyncio.Task[None]:
        """Close everything that belongs to no thread, and begin to drain the node. uvicorn's sockets call this, too."""
        for pending in tuple(self._pending_joins):
            pending.leave()
        self.end_streams()
        if self.owners.is_alone:
            self.relays.leave()
            return self.node.drain(self._shutdown_timeout)
        if self._draining is None or self._draining.done():
            self._draining = asyncio.create_task(self._drain(), name="plait drain of relays")
        return self._draining

    def end_streams(self) -> None:
        """End the streams that belong to no thread."""
        for close in self.closers:
            close()

    # Inside

    async def _drain(self) -> None:
        await asyncio.gather(
            asyncio.shield(self.node.drain(self._shutdown_timeout)), self.relays.end(self._shutdown_timeout)
        )


def _has_live_messages(cls: type[Any]) -> bool:
    return any(isinstance(part, Messages) and part.is_live for part in find_parts(cls).values())


def find_traceparent(scope: Scope) -> str | None:
    """Return the `traceparent` header of a request; None if it is too long to be valid."""
    value = find_header(scope, b"traceparent")
    return None if value is None or len(value) > _LONGEST_TRACEPARENT else value


def error_response(error: PlaitError | HTTPException) -> Response:
    """Return the HTTP response for an error."""
    match error:
        case PlaitError():
            return JSONResponse(
                error_body(error.code, str(error), error.path), error.status, headers=_make_headers(error)
            )
        case HTTPException(status_code=204 | 304):
            return Response(status_code=error.status_code, headers=error.headers)
        case HTTPException():
            body = error_body(_find_code(error.status_code), str(error.detail) or "refused")
            return JSONResponse(body, error.status_code, headers=error.headers)


def as_refusal(error: HTTPException) -> PlaitError:
    """Return the error for a socket whose check raised HTTPException; clients retry after TooMany and Unavailable."""
    if error.status_code >= 500:
        return Unavailable(str(error.detail))
    kinds = {401: Unauthenticated, 404: NotFound, 429: TooMany}
    return kinds.get(error.status_code, Forbidden)(str(error.detail))


def as_final_refusal(response: Response) -> PlaitError:
    """Return the error for a socket if `authenticate` returned a Response; a redirect leads to a login."""
    status = response.status_code
    kinds = {401: Unauthenticated, 404: NotFound}
    kind = Unauthenticated if 300 <= status < 400 else kinds.get(status, Forbidden)
    return kind(f"{status} {_PHRASES.get(status, '')}".rstrip())


def error_body(code: str, message: str, path: str | None = None) -> dict[str, Any]:
    """Return the JSON of an error."""
    return {"error": {"code": code, "message": message} | ({} if path is None else {"path": path})}


def _make_headers(error: PlaitError) -> dict[str, str] | None:
    if error.retry_after is not None and math.isfinite(error.retry_after):
        return {"retry-after": str(math.ceil(error.retry_after))}
    return {"retry-after": "1"} if error.status == HTTPStatus.SERVICE_UNAVAILABLE else None


def _find_code(status: int) -> str:
    """Return the error code for an HTTP status."""
    if (code := _CODES.get(status)) is not None:
        return code
    try:
        return re.sub("[^a-z]+", "_", HTTPStatus(status).phrase.lower())
    except ValueError:
        return PlaitError.code


def with_token(request: Request, token: str) -> Request:
    """Return a request with its bearer token replaced."""
    headers = [header for header in request.scope["headers"] if header[0] != b"authorization"]
    return Request({**request.scope, "headers": [*headers, (b"authorization", f"Bearer {token}".encode())]})


def as_get(scope: Scope) -> Request:
    """Return the opening request of a WebSocket, as a GET request."""
    scheme = "https" if scope["scheme"] == "wss" else "http"
    return Request({**scope, "type": "http", "method": "GET", "scheme": scheme})
