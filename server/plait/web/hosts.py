"""Checks the `Host` header of requests, as protection against DNS rebinding."""

import ipaddress
import logging
import re
import socket
from collections.abc import Collection
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Scope

__all__ = ["Hosts", "find_header"]

log = logging.getLogger("plait.sockets")

_LOCAL: Final = ("localhost", "*.localhost")
# An address in brackets or a name, with or without a port; an address of IPv6 without brackets has none.
_HOST: Final = re.compile(r"(?:\[([^][]*)\]|([^][:]*))(?::[0-9]+)?|([^][]*)")
_ANY: Final = frozenset({"", "0.0.0.0", "::"})


def find_header(scope: Scope, name: bytes) -> str | None:
    """Return the first value of a header, whose name is in lower case; None if there is none.

    This is faster than Starlette's mapping of the headers.
    """
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None


class Hosts:
    """Checks `Host` headers.

    Without `allowed`, the host must be localhost, this machine's name, the address that the server listens on, or an IP
    address, since a malicious page cannot have one of those as its own host. If `is_guarded`, any host is accepted:
    `authenticate` asks for credentials, which browsers do not send to another name. Raises ValueError for an invalid
    host.
    """

    def __init__(self, allowed: Collection[str], *, is_guarded: bool) -> None:
        self._is_default = not allowed and not is_guarded
        entries = [_entry(each) for each in allowed] or list(_LOCAL if self._is_default else "*")
        self._takes_all = "*" in entries
        self._names = {each for each in entries if not each.startswith("*")}
        self._suffixes = tuple(each[1:] for each in entries if each.startswith("*."))
        self._machine = socket.gethostname().lower()
        if self._is_default:
            self._names |= {self._machine, f"{self._machine}.local"}
        # The last accepted header, as most requests have the same header.
        self._last = ""
        # Whether a refusal has been logged.
        self._has_said = False

    def listen(self, host: str, *, warns: bool = True) -> None:
        """Accept the name that the server listens on; log the accepted names if it listens on all addresses."""
        if not self._is_default:
            return
        if host not in _ANY:
            self._names.add(_name(host))
        elif warns:
            log.warning(
                "listening on all addresses without `authenticate`: anyone who can connect may use every thread. "
                "Accepted hosts are localhost, %s and IP addresses; add other names to allowed_hosts "
                "(PLAIT_ALLOWED_HOSTS)",
                self._machine,
            )

    def check(self, request: Request) -> None:
        """Raise HTTPException if the request's host is invalid or not accepted."""
        # A request without a Host header is not from a browser.
        host = find_header(request.scope, b"host")
        if not host or host == self._last:
            return
        if self._has(_name(host)):
            self._last = host
            return
        if not self._has_said:
            self._has_said = True
            log.warning(
                "a request to the host %.80r was refused: if that is a name of this server, add it to allowed_hosts "
                "(PLAIT_ALLOWED_HOSTS)",
                host,
            )
        raise HTTPException(421, f"unknown host {host[:80]!r}; if it is a name of this server, add it to allowed_hosts")

    def _has(self, name: str) -> bool:
        return (
            self._takes_all
            or name in self._names
            or name.endswith(self._suffixes)
            or (self._is_default and _is_ip(name))
        )


def _entry(text: str) -> str:
    """Return an allowed host in the form that headers are compared with."""
    entry = text.lower()
    if entry == "*" or re.fullmatch(r"(\*\.)?[\w-]+(\.[\w-]+)*\.?", entry):
        return entry.removesuffix(".")
    address = entry.removeprefix("[").removesuffix("]")
    if _is_ip(address):
        return address
    raise ValueError(f"{text!r} is not a host; use example.com, *.example.com for its subdomains, or *, without a port")


def _name(host: str) -> str:
    """Return the name in a `Host` header, without its port. Raises HTTPException for an invalid host."""
    if (match := _HOST.fullmatch(host.lower())) is None:
        raise HTTPException(400, "the Host header is not a host")
    return (match[1] or match[2] or match[3] or "").rstrip(".")


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
