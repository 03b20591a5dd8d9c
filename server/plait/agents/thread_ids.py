"""Finds the thread of a request to an agent, by an id that the server has signed, in a header or a cookie."""

import base64
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from starlette.requests import Request

from plait.agents.address import check_thread_id, make_thread_id
from plait.author_code import call

__all__ = ["COOKIE", "DEVELOPMENT_SECRET", "HEADER", "Signer", "ThreadIdProvider", "ThreadIds"]

log = logging.getLogger("plait.agents")

HEADER: Final = "x-thread-id"
_HEADER: Final = HEADER.encode()
COOKIE: Final = "atid"
DEVELOPMENT_SECRET: Final = "plait-development-secret"
"""The secret that signs ids in development. It is public."""

_MAX_AGE: Final = 7 * 24 * 3600
# The number of signatures that are kept, as every request verifies and signs an id.
_MOST_KEPT: Final = 4096

ThreadIdProvider = Callable[[Request], Awaitable[str] | str]
"""Returns the id of the thread of a request, `thrd_` and letters and digits; `request.state.principal` is its user."""


class Signer:
    """Signs ids with the first of several secrets, and verifies them with all."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._keys = [secret.encode() for secret in secrets]
        self._sign = lru_cache(_MOST_KEPT)(_sign)

    def sign(self, id: str) -> str:
        """Return the signature of an id: base64 of HMAC-SHA256."""
        return self._sign(self._keys[0], id).decode()

    def verify(self, id: str, signature: str) -> bool:
        """Whether a signature was made with one of the secrets."""
        given = signature.encode(errors="surrogatepass")
        return any(hmac.compare_digest(self._sign(key, id), given) for key in self._keys)


class ThreadIds:
    """Finds the id of a request's thread: the id that `provider` returns, or else a signed id or a new one."""

    def __init__(self, secrets: Sequence[str], provider: ThreadIdProvider | None = None) -> None:
        self._signer = Signer(secrets) if secrets else None
        self._provider = provider

    @property
    def has_secret(self) -> bool:
        """Whether ids can be signed."""
        return self._signer is not None

    def use_development_secret(self) -> None:
        """Sign with a public secret, and log that."""
        self._signer = Signer([DEVELOPMENT_SECRET])
        log.warning("the ids of threads are signed with the secret of `plait dev`, which is public")

    @property
    def has_provider(self) -> bool:
        """Whether the app finds the ids itself."""
        return self._provider is not None

    async def find(self, request: Request, is_ours: Callable[[str], bool] = lambda _: True) -> str:
        """Return the id of a request's thread; a new one fulfils `is_ours` if possible.

        Raises what the provider raises, and ValueError for an invalid id.
        """
        if self._provider is not None:
            try:
                return check_thread_id(await call(self._provider, request))
            except ValueError as error:
                raise ValueError(f"thread_ids: {error}") from error
        if (found := self._find_in_header(request) or self._find_in_cookie(request)) is not None:
            return found
        return make_thread_id(is_ours)

    def make_headers(self, id: str, *, is_secure: bool) -> list[tuple[bytes, bytes]]:
        """Return the headers by which a client continues a thread; if `is_secure`, the cookie is for https only."""
        signature = self._get_signer().sign(id)
        # Escape the characters of base64 that the value of a cookie must not have.
        escaped = signature.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
        cookie = f"{COOKIE}={id}.{escaped}; Max-Age={_MAX_AGE}; Path=/; HttpOnly; SameSite=Lax"
        if is_secure:
            cookie += "; Secure"
        return [(_HEADER, f"{id};{signature}".encode()), (b"set-cookie", cookie.encode())]

    # Inside

    def _get_signer(self) -> Signer:
        if self._signer is None:
            raise RuntimeError("there is no secret to sign ids of threads with: set PLAIT_SECRET")
        return self._signer

    def _find_in_header(self, request: Request) -> str | None:
        # Several headers are joined with commas, which no signature has.
        value = b",".join([value for name, value in request.scope["headers"] if name == _HEADER]).decode("latin-1")
        return self._verify(f"the header {HEADER}", value, ";") if value else None

    def _find_in_cookie(self, request: Request) -> str | None:
        value = unquote(request.cookies.get(COOKIE, ""))
        return self._verify(f"the cookie {COOKIE}", value, ".") if value else None

    def _verify(self, where: str, value: str, separator: str) -> str | None:
        """Return the id if it is signed; otherwise log that it is not."""
        id, _, signature = value.partition(separator)
        try:
            check_thread_id(id)
        except ValueError as error:
            why = str(error)
        else:
            if self._get_signer().verify(id, signature):
                return id
            why = f"the signature of {id[:9]}… is {'wrong' if signature else 'missing'}"
        log.warning("%s is not valid, and the request gets another thread: %s", where, why)
        return None


def _sign(key: bytes, id: str) -> bytes:
    return base64.b64encode(hmac.digest(key, id.encode(), hashlib.sha256))
