"""The URL of a store in PostgreSQL, and its options. Does not need the driver."""

import re
from typing import Final, Self
from urllib.parse import quote, urlencode

from plait.store.url_parts import ShownUrl, split_url

__all__ = ["PostgresUrl"]

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,30}")
# Options of the connection, which the driver reads.
_DRIVER: Final = (
    *("application_name", "host", "passfile", "port", "sslcert", "sslcrl", "sslkey", "sslmode", "sslnegotiation"),
    *("sslrootcert", "user"),
)
_OWN: Final = ("schema", "prefix", "synchronous_commit", "standby", "statement_cache_size")


class PostgresUrl(ShownUrl):
    """The parts of a URL, `postgresql://user:password@host:port/database?schema=…&prefix=…`."""

    # For the driver, without the login: one for each host.
    dsns: list[str]
    user: str | None
    password: str | None
    schema: str
    # Begins the names of tables.
    prefix: str
    # Whether a commit waits until it is on the disk.
    is_synchronous: bool
    # Whether the URL promises that a commit waits for a standby, too, and that a failover loses nothing.
    has_standby: bool
    # Whether each session has the same server process. Behind a pooler it may have another one in each transaction.
    has_session: bool

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises ValueError, without the password."""
        parts = split_url(url, (*_OWN, *_DRIVER))
        shown, options, found = parts.shown, parts.options, cls()
        found._shown, found.user, found.password = shown, parts.user, parts.password
        found.schema, found.prefix = parts.match("schema", _NAME, "public"), parts.match("prefix", _NAME, "plait_")
        found.is_synchronous = parts.choose("synchronous_commit", "on", "off") == "on"
        found.has_standby = parts.choose("standby", "asynchronous", "synchronous") == "synchronous"
        if found.has_standby and not found.is_synchronous:
            raise ValueError(f"{shown}: with synchronous_commit=off, no commit waits for a standby")
        found.has_session = parts.choose("statement_cache_size", "100", "0") != "0"
        driver = urlencode({name: options[name] for name in options if name in _DRIVER}, quote_via=quote)
        rest = f"/{parts.path}{f'?{driver}' if driver else ''}"
        found.dsns = [f"postgresql://{host}{rest}" for host in parts.hosts.split(",")]
        return found
