"""The URL of a store in NATS JetStream, and its options. Does not need the driver."""

import re
from typing import Final, Self
from urllib.parse import unquote

from plait.store.url_parts import ShownUrl, split_url

__all__ = ["NatsUrl"]

_STREAM: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DOMAIN: Final = re.compile(r"[A-Za-z0-9_-]+")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?")
_OPTIONS: Final = ("replicas", "sync", "domain", "creds", "nkey", "tls", "tlsca", "tlscert", "tlskey")
_PORT: Final = ":4222"
_STREAM_NAME: Final = "plait"


class NatsUrl(ShownUrl):
    """The parts of a URL, `nats://user:password@host:port,host:port/stream?replicas=…&sync=…`."""

    # Each `nats://host:port`, without credentials.
    servers: list[str]
    # A user with a password, or a token.
    user: str | None
    password: str | None
    token: str | None
    # Paths: a file of credentials, and one with the seed of an nkey.
    creds: str | None
    nkey: str | None
    stream: str
    # The servers of a cluster that keep a copy of the stream.
    replicas: int
    # Whether the servers are said to have `sync_interval: always`, which no client can see.
    is_synced: bool
    # Begins the subjects of JetStream's API.
    api: str
    # Whether the connection must use TLS, and paths of an authority's certificate, an own one and its key.
    has_tls: bool
    tlsca: str | None
    tlscert: str | None
    tlskey: str | None

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises ValueError, without the password or token."""
        parts = split_url(url, _OPTIONS)
        shown, options, found = parts.shown, parts.options, cls()
        has_login = parts.password is not None
        found.user, found.password = (parts.user or "", parts.password) if has_login else (None, None)
        found.token = None if has_login else parts.user
        hosts = [_HOST.fullmatch(host) for host in parts.hosts.split(",")]
        if not all(hosts):
            raise ValueError(f"{shown}: write nats://host:port,host:port/stream")
        found._shown = shown if parts.path else f"{shown.removesuffix('/')}/{_STREAM_NAME}"
        found.servers = [f"nats://{host[1]}{host[2] or _PORT}" for host in hosts if host]
        found.stream = unquote(parts.path) or _STREAM_NAME
        if not _STREAM.fullmatch(found.stream):
            raise ValueError(f"{shown}: the stream must match {_STREAM.pattern}, not {found.stream!r}")
        found.replicas = int(parts.choose("replicas", "3", "1", "5"))
        found.is_synced = parts.choose("sync", "always", "interval") == "always"
        found.has_tls = parts.choose("tls", "off", "on") == "on"
        found.api = f"$JS.{parts.match('domain', _DOMAIN, '')}.API" if "domain" in options else "$JS.API"
        found.creds, found.nkey = options.get("creds"), options.get("nkey")
        found.tlsca, found.tlscert, found.tlskey = (options.get(name) for name in ("tlsca", "tlscert", "tlskey"))
        return found
