"""Splits the URLs of engines. No error shows a password, as those of the standard library do."""

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from plait.spelling import hide_password

__all__ = ["ShownUrl", "UrlParts", "split_url"]


class ShownUrl:
    """A URL that was read. `str()` has no password and no options."""

    _shown: str

    def __str__(self) -> str:
        return self._shown

    __repr__ = __str__


class UrlParts(NamedTuple):
    """The parts of a URL. Only the path is still quoted."""

    # Without the password and the options, for errors.
    shown: str
    user: str | None
    password: str | None
    hosts: str
    # Without its first slash.
    path: str
    options: Mapping[str, str]

    def choose(self, name: str, *values: str) -> str:
        """Return the value of an option, which is one of `values`; by default the first one. Raises ValueError."""
        if (value := self.options.get(name, values[0])) not in values:
            raise ValueError(f"{self.shown}: {name} must be {', '.join(values[:-1])} or {values[-1]}, not {value!r}")
        return value

    def match(self, name: str, pattern: re.Pattern[str], default: str) -> str:
        """Return the value of an option that is in a form. Raises ValueError."""
        if not pattern.fullmatch(value := self.options.get(name, default)):
            raise ValueError(f"{self.shown}: {name} must match {pattern.pattern}, not {value!r}")
        return value

    def split_hosts(self, port: int) -> list[tuple[str, int]]:
        """Return the hosts and their ports; `port` is the default. Raises ValueError."""
        return [self._split_host(host, port) for host in self.hosts.split(",")]

    def _split_host(self, host: str, default: int) -> tuple[str, int]:
        name, separator, port = host.rpartition(":")
        if not separator or port.endswith("]"):
            name, port = host, str(default)
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
            raise ValueError(f"{self.shown}: {port!r} is not a port")
        return name.strip("[]") or "127.0.0.1", int(port)


def split_url(url: str, options: Collection[str]) -> UrlParts:
    """Return the parts of a URL that may have some options. Raises ValueError."""
    shown = hide_password(url)
    rest, _, query = url.partition("://")[2].partition("?")
    authority, _, path = rest.partition("/")
    if "@" in path + query:
        raise ValueError(f"{shown}: quote the odd characters of the password, such as %2F for /")
    pairs = parse_qsl(query, keep_blank_values=True)
    found = dict(pairs)
    unknown = [name for name in found if name not in options]
    if unknown or len(found) < len(pairs) or "#" in url:
        what = f"unknown option {unknown[0]!r}" if unknown else "an option is given twice, or there is a #"
        if "password" in unknown:
            what = "put the password before the @"
        raise ValueError(f"{shown}: {what}; the options are {', '.join(options)}")
    login, _, hosts = authority.rpartition("@")
    user, colon, password = login.partition(":")
    return UrlParts(
        *(shown.partition("?")[0], unquote(user) or None, unquote(password) if colon else None),
        *(hosts, path, found),
    )
