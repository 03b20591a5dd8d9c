"""The URL of a store in NATS JetStream, and its options. Does not need the driver."""

import re
from typing import Final, Self
from urllib.parse import parse_qsl, unquote

__all__ = ["NatsUrl"]

_STREAM: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DOMAIN: Final = re.compile(r"[A-Za-z0-9_-]+")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?")
_OPTIONS: Final = ("replicas", "sync", "domain", "creds", "nkey", "tls", "tlsca", "tlscert", "tlskey")
_PORT: Final = ":4222"


class NatsUrl:
    """The parts of a URL, `nats://user:password@host:port,host:port/stream?replicas=…&sync=…`.

    `str()` has no password, no token and no options.
    """

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
        rest, _, query = url.partition("://")[2].partition("?")
        authority, _, path = rest.partition("/")
        login, _, hosts = authority.rpartition("@")
        found = cls()
        user, colon, password = login.partition(":")
        found.user = unquote(user) if colon else None
        found.password = unquote(password) if colon else None
        found.token = unquote(login) if login and not colon else None
        shown = f"{user}:***@" if colon else "***@" if login else ""
        # After a password with a / that is not quoted, the hosts are not where they should be.
        is_split = "@" not in path + query and all(_HOST.fullmatch(host) for host in hosts.split(","))
        if not is_split:
            what = "write nats://host:port,host:port/stream, and quote @, / and ? in a password"
            raise ValueError(f"a URL of NATS cannot be read: {what}")
        found._shown = f"nats://{shown}{hosts}/{path or 'plait'}"
        found.servers = [f"nats://{host if _HOST.fullmatch(host)[2] else host + _PORT}" for host in hosts.split(",")]  # type: ignore[index]
        pairs = parse_qsl(query, keep_blank_values=True)
        options = dict(pairs)
        unknown = [name for name in options if name not in _OPTIONS]
        if unknown or len(options) < len(pairs) or "#" in url:
            what = f"unknown option {unknown[0]!r}" if unknown else "an option is given twice, or there is a #"
            raise ValueError(f"{found}: {what}; the options are {', '.join(_OPTIONS)}")
        found.stream = unquote(path) or "plait"
        if not _STREAM.fullmatch(found.stream):
            raise ValueError(f"{found}: the stream must match {_STREAM.pattern}, not {found.stream!r}")
        found.replicas = int(_choose(found, options, "replicas", "3", "1", "5"))
        found.is_synced = _choose(found, options, "sync", "always", "interval") == "always"
        found.has_tls = _choose(found, options, "tls", "off", "on") == "on"
        domain = options.get("domain")
        if domain is not None and not _DOMAIN.fullmatch(domain):
            raise ValueError(f"{found}: domain must match {_DOMAIN.pattern}, not {domain!r}")
        found.api = "$JS.API" if domain is None else f"$JS.{domain}.API"
        found.creds, found.nkey = options.get("creds"), options.get("nkey")
        found.tlsca, found.tlscert, found.tlskey = (options.get(name) for name in ("tlsca", "tlscert", "tlskey"))
        return found

    def __str__(self) -> str:
        return self._shown

    __repr__ = __str__
    _shown: str


def _choose(url: NatsUrl, options: dict[str, str], name: str, *values: str) -> str:
    """Return the value of an option, which is one of `values`; by default the first one."""
    if (value := options.get(name, values[0])) not in values:
        raise ValueError(f"{url}: {name} must be {', '.join(values[:-1])} or {values[-1]}, not {value!r}")
    return value
