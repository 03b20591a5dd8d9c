"""Checks the sender of a request and the sender's rights: origins, `authenticate` and `authorize`."""

import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final, Literal
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from plait.actor.kind import Kind
from plait.agents.address import is_of_another
from plait.agents.agent import INTERRUPT
from plait.author_code import call
from plait.errors import Forbidden, Unauthenticated
from plait.session.leases import EXPIRED, find_seconds_left
from plait.state.principal import Principal
from plait.state.storable import accepts_arguments
from plait.store.thread_rows import ThreadKey
from plait.web.hosts import find_header

__all__ = ["PRINCIPAL", "Action", "Authenticate", "Authorize", "Identity"]

PRINCIPAL: Final = "plait.principal"
"""The key of a scope under which an application around this one has put the principal of a request."""

Action = Literal[
    "connect",
    "create",
    "read",
    "write",
    "call",
    "messages",
    "send",
    "files",
    "upload",
    "approve",
    "request",
    "destroy",
    "list",
]
"""An action of a client on a thread: open a socket, create the thread, read or write its state, call an rpc, read
its messages, send one, read its files, write or remove one, send an event to a run of a task, send a request, destroy
the thread, or see it in a listing of its kind."""

Authenticate = Callable[[Request], Awaitable[Principal | Response | None] | Principal | Response | None]
"""Returns the principal of a request, None for an anonymous one, or a Response to send instead."""

Authorize = Callable[[Principal | None, ThreadKey, Action], Awaitable[bool] | bool]
"""Returns whether a principal may do something with a thread."""


class Identity:
    """Checks requests for threads of `kinds`. Without `authenticate`, clients are anonymous.

    Raises ValueError for an invalid origin, and TypeError for a function that does not accept its arguments.
    """

    def __init__(
        self,
        allowed_origins: Collection[str],
        authenticate: Authenticate | None,
        authorize: Authorize | None,
        kinds: Mapping[str, Kind] = MappingProxyType({}),
    ) -> None:
        self.allowed_origins = frozenset(map(_origin, allowed_origins))
        for name, function, parameters in (
            ("authenticate", authenticate, ("request",)),
            ("authorize", authorize, ("principal", "thread", "action")),
        ):
            if function is not None and not accepts_arguments(function, len(parameters)):
                raise TypeError(f"{name} must accept these arguments: {name}({', '.join(parameters)})")
        self._authenticate = authenticate
        self._authorize = authorize
        self._kinds = kinds
        self.has_rules = authorize is not None

    @property
    def asks(self) -> bool:
        """Whether the application has an `authenticate`."""
        return self._authenticate is not None

    def check_origin(self, request: Request) -> None:
        """Raise Forbidden if a browser sent the request from a page of another origin that is not allowed.

        An origin is the server's own if its host equals the host of the request. The scheme is not compared, as a proxy
        may handle TLS.
        """
        origin = find_header(request.scope, b"origin")
        if origin is None or "*" in self.allowed_origins or origin.rstrip("/").lower() in self.allowed_origins:
            return
        host = _without_default_port(request.headers.get("host", ""))
        with suppress(ValueError):
            if host and _without_default_port(urlsplit(origin).netloc) == host:
                return
        raise Forbidden(f"pages of {origin} may not use this server; to allow them, add it to allowed_origins")

    async def principal(self, request: Request) -> Principal | Response | None:
        """Return the principal of a request, or the Response of `authenticate`.

        Raises Unauthenticated.
        """
        if (found := request.scope.get(PRINCIPAL)) is None:
            if self._authenticate is None:
                return None
            found = await call(self._authenticate, request)
        if found is None:
            raise Unauthenticated("authentication required")
        if not isinstance(found, Principal | Response):
            what = type(found).__name__
            raise TypeError(f"authenticate returned a {what}; it must return a Principal, a Response or None")
        if isinstance(found, Principal):
            _check_expiry(found)
        return found

    async def may(self, principal: Principal | None, thread: ThreadKey, action: Action) -> bool:
        """Return whether a principal may do something with a thread. Raises Unauthenticated if it has expired."""
        if principal is not None:
            _check_expiry(principal)
        if self._authorize is None:
            return self._may_by_default(principal, thread, action)
        return bool(await call(self._authorize, principal, thread, action))

    async def check(self, principal: Principal | None, thread: ThreadKey, action: Action) -> None:
        """Raise Forbidden if a principal may not do something with a thread."""
        if not await self.may(principal, thread, action):
            raise Forbidden(f"you may not {action} {thread}" if action != "request" else f"you may not use {thread}")

    def _may_by_default(self, principal: Principal | None, thread: ThreadKey, action: Action) -> bool:
        """Return whether a principal may do something with a thread in an app without `authorize`.

        The session of another principal is refused, since its name can be guessed, and so are approvals.
        """
        kind = self._kinds.get(thread.kind)
        if action == "approve" or (action == "destroy" and kind is not None and not kind.cls.clients_may_destroy):
            return False
        has_sessions = kind is not None and INTERRUPT in kind.methods
        return not has_sessions or not is_of_another(None if principal is None else principal.id, thread.name)


def _check_expiry(principal: Principal) -> None:
    if find_seconds_left(principal) == 0:
        raise Unauthenticated(EXPIRED)


def _origin(text: str) -> str:
    """Return an allowed origin as browsers send it."""
    origin = text.rstrip("/").lower()
    if origin not in ("*", "null") and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@]+", origin):
        raise ValueError(f"{text!r} is not an origin; use one such as https://example.com")
    return origin


def _without_default_port(host: str) -> str:
    return host.lower().removesuffix(":80").removesuffix(":443")
