"""The names that a server answers to: a page whose own name leads to this server (DNS rebinding) is not let in."""

import ipaddress
import logging
import re
import socket
from collections.abc import Collection
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

__all__ = ["Hosts"]

log = logging.getLogger("plait.sockets")

_LOCAL: Final = ("localhost", "*.localhost")
_ANY: Final = frozenset({"", "0.0.0.0", "::"})


class Hosts:
    """Checks `Host` headers.

    Without `allowed` they may name localhost, this machine, what it listens on, or any IP address, as no page can have
    taken one of those for itself; where `is_guarded`, as somebody asks for credentials, which browsers would not send
    to a page's own name, they may name anything. Raises ValueError for what is no host.
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
        # The header that was last found to be one of them; most are the same.
        self._last = ""
        # Whether a refusal has been logged.
        self._has_said = False

    def listen(self, host: str) -> None:
        """Answer to the name that is listened on; log to which ones where that is every address."""
        if not self._is_default:
            return
        if host not in _ANY:
            self._names.add(_name(host))
            return
        log.warning(
            "listening on all addresses without `authenticate`: whoever reaches one may use every thread. Requests may "
            "name localhost, %s or an IP address; put other names into allowed_hosts (PLAIT_ALLOWED_HOSTS)",
            self._machine,
        )

    def check(self, request: Request) -> None:
        """Raise HTTPException if a request names a host that this server does not answer to."""
        # Whatever a page causes has one.
        host = request.headers.get("host")
        if self._takes_all or not host or host == self._last:
            return
        if self._has(_name(host)):
            self._last = host
            return
        if not self._has_said:
            self._has_said = True
            log.warning(
                "a request to the host %.80r was refused: if this server has that name, put it into allowed_hosts "
                "(PLAIT_ALLOWED_HOSTS)",
                host,
            )
        raise HTTPException(421, f"this server is not {host[:80]!r}; its names can be put into allowed_hosts")

    def _has(self, name: str) -> bool:
        return name in self._names or name.endswith(self._suffixes) or (self._is_default and _is_ip(name))


def _entry(text: str) -> str:
    """Return an allowed host as it is compared."""
    entry = text.lower()
    if entry == "*" or re.fullmatch(r"(\*\.)?[\w-]+(\.[\w-]+)*\.?", entry):
        return entry.removesuffix(".")
    address = entry.removeprefix("[").removesuffix("]")
    if _is_ip(address):
        return address
    raise ValueError(f"{text!r} is no host: write example.com, *.example.com for all below it, or *, without a port")


def _name(host: str) -> str:
    """Return the name in a `Host` header, without its port."""
    host = host.lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.removesuffix(f":{port}").rstrip(".") if (port := _port(host)) is not None else host.rstrip(".")


def _port(host: str) -> str | None:
    name, colon, port = host.rpartition(":")
    return port if colon and port.isascii() and port.isdigit() and ":" not in name else None


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
