"""The URL of a store in Redis, and its options. Does not need the driver."""

import re
from typing import Final, Self
from urllib.parse import unquote

from plait.store.url_parts import ShownUrl, split_url

__all__ = ["RedisUrl"]

_OPTIONS: Final = ("prefix", "replicas", "durable", "ssl_ca_certs")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PORTS: Final = {"redis": 6379, "rediss": 6379, "valkey": 6379, "redis+sentinel": 26379}
_MOST_REPLICAS: Final = 9


class RedisUrl(ShownUrl):
    """The parts of a URL, `redis://user:password@host:port/database?prefix=…&replicas=…`."""

    # Of the server, or of the Sentinels.
    addresses: list[tuple[str, int]]
    # The name that the Sentinels have for the primary; None without them.
    service: str | None
    username: str | None
    password: str | None
    database: int
    has_tls: bool
    # The file of the certificates that sign the server's; None for those of the system.
    ssl_ca_certs: str | None
    # In the braces with which all keys begin.
    prefix: str
    # How many replicas must have a write before it is acknowledged.
    replicas: int
    # Whether Redis is known to keep what it has acknowledged; None if it is asked.
    durable: bool | None

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises ValueError, without the password."""
        parts = split_url(url, _OPTIONS)
        scheme = url.partition("://")[0].lower()
        shown, options, found = parts.shown, parts.options, cls()
        found._shown, found.username, found.password = shown, parts.user, parts.password
        found.addresses = parts.split_hosts(_PORTS[scheme])
        names = [unquote(each) for each in parts.path.split("/") if each]
        found.service = names.pop(0) if scheme == "redis+sentinel" and names else None
        if scheme == "redis+sentinel" and found.service is None:
            raise ValueError(f"{shown}: the name of the primary is missing: redis+sentinel://host:26379/mymaster")
        if scheme != "redis+sentinel" and len(found.addresses) > 1:
            raise ValueError(f"{shown}: name one server, or its Sentinels: redis+sentinel://a,b/mymaster")
        if len(names) > 1 or not all(each.isascii() and each.isdigit() for each in names):
            raise ValueError(f"{shown}: the database must be a number, such as /0")
        found.database = int(names[0]) if names else 0
        found.has_tls, found.ssl_ca_certs = scheme == "rediss", options.get("ssl_ca_certs")
        if found.ssl_ca_certs and not found.has_tls:
            raise ValueError(f"{shown}: ssl_ca_certs is for rediss://")
        found.prefix = parts.match("prefix", _PREFIX, "plait")
        replicas = options.get("replicas", "0")
        if not (replicas.isascii() and replicas.isdigit() and int(replicas) <= _MOST_REPLICAS):
            raise ValueError(f"{shown}: replicas must be a whole number up to {_MOST_REPLICAS}, not {replicas!r}")
        found.replicas = int(replicas)
        found.durable = parts.choose("durable", "yes", "no") == "yes" if "durable" in options else None
        if found.replicas and found.durable is False:
            raise ValueError(f"{shown}: with durable=no, no write waits for a replica")
        return found
