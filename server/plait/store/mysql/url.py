"""The URL of a store in MariaDB or MySQL, and its options. Does not need the driver."""

import re
from typing import Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from plait.spelling import hide_password

__all__ = ["MysqlUrl"]

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,30}")
_OPTIONS: Final = ("prefix", "socket", "ssl", "ssl_ca")
_PORT: Final = 3306


class MysqlUrl:
    """The parts of a URL, `mysql://user:password@host:port,other:port/database?prefix=…`.

    `str()` has no password and no options.
    """

    # A connection leads to the first one that can be written.
    hosts: list[tuple[str, int]]
    user: str
    password: str
    database: str
    # Begins the names of tables.
    prefix: str
    # The path of a Unix socket, which is used instead of the hosts.
    socket: str | None
    # Whether connections are encrypted, and the file of the authorities if they are not the system's.
    has_tls: bool
    authorities: str | None

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises ValueError, without the password."""
        shown = hide_password(url)
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        options = dict(pairs)
        unknown = [name for name in options if name not in _OPTIONS]
        if unknown or len(options) < len(pairs) or parts.fragment:
            what = f"unknown option {unknown[0]!r}" if unknown else "an option is given twice, or there is a #"
            raise ValueError(f"{shown}: {what}; the options are {', '.join(_OPTIONS)}")
        found = cls()
        found._shown = shown.partition("?")[0]
        login, _, hosts = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        found.user, found.password = unquote(user), unquote(password)
        found.hosts = [_read_host(shown, host) for host in hosts.split(",")]
        found.database = unquote(parts.path[1:])
        if not found.database or not found.user:
            raise ValueError(f"{shown}: a user and a database are needed, as in mysql://user:password@host/database")
        found.prefix = options.get("prefix", "plait_")
        if not _NAME.fullmatch(found.prefix):
            raise ValueError(f"{shown}: prefix must match {_NAME.pattern}, not {found.prefix!r}")
        found.socket, found.authorities = options.get("socket"), options.get("ssl_ca")
        if (ssl := options.get("ssl", "on" if found.authorities else "off")) not in ("on", "off"):
            raise ValueError(f"{shown}: ssl must be on or off, not {ssl!r}")
        found.has_tls = ssl == "on"
        return found

    def __str__(self) -> str:
        return self._shown

    __repr__ = __str__
    _shown: str


def _read_host(shown: str, host: str) -> tuple[str, int]:
    """Return a host and its port."""
    name, separator, port = host.rpartition(":")
    if not separator or port.endswith("]"):
        name, port = host, str(_PORT)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
        raise ValueError(f"{shown}: {port!r} is not a port")
    return name.strip("[]") or "127.0.0.1", int(port)
