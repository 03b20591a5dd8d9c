"""Requests over HTTP, beside the socket, each in an OS thread."""

import http.client
import urllib.error
import urllib.request
from ssl import SSLContext
from typing import Any, Final

import msgspec

from plait_client.errors import ClientError, Disconnected, Refused

__all__ = ["SCHEMES", "fetch"]

SCHEMES: Final = {"ws": "http", "wss": "https", "http": "http", "https": "https"}
"""The schemes of requests, by those of the URLs that clients use."""


class _Error(msgspec.Struct):
    code: str = "error"
    message: str = ""
    path: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error


class _SameServer(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token is for the server at the URL."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def fetch(request: urllib.request.Request, ssl: SSLContext | None, *, timeout: float, failure: str) -> bytes:
    """Return the answer to a request; it blocks. Raises Refused, Disconnected with the `failure`, and ClientError."""
    opener = urllib.request.build_opener(_SameServer, urllib.request.HTTPSHandler(context=ssl))
    try:
        with opener.open(request, timeout=timeout) as answer:
            data: bytes = answer.read()
            return data
    except urllib.error.HTTPError as error:
        with error:
            raise _read_refusal(error.code, error.read()) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise Disconnected(f"{failure}: {reason}") from error


def _read_refusal(status: int, body: bytes) -> ClientError:
    try:
        found = msgspec.json.decode(body, type=_ErrorBody).error
    except msgspec.MsgspecError:
        return ClientError(f"the server answered with {status}")
    return Refused(found.code, found.message, found.path)
