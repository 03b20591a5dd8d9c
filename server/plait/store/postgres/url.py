"""The URL of a store in PostgreSQL, and its options. Does not need the driver."""

import re
from typing import Final, Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from plait.spelling import hide_password

__all__ = ["PostgresUrl"]

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,30}")
# Options of the connection, which the driver reads.
_DRIVER: Final = frozenset(
    {
        "application_name",
        "host",
        "passfile",
        "port",
        "sslcert",
        "sslcrl",
        "sslkey",
        "sslmode",
        "sslnegotiation",
        "sslrootcert",
        "user",
    }
)
_OWN: Final = ("schema", "prefix", "synchronous_commit", "standby", "statement_cache_size")


class PostgresUrl:
    """The parts of a URL, `postgresql://user:password@host:port/database?schema=…&prefix=…`.

    `str()` has no password and no options.
    """

    # For the driver, with the password.
    dsn: str
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
        shown = hide_password(url)
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        options = dict(pairs)
        unknown = [name for name in options if name not in _DRIVER and name not in _OWN]
        if unknown or len(options) < len(pairs) or parts.fragment:
            what = f"unknown option {unknown[0]!r}" if unknown else "an option is given twice, or there is a #"
            if "password" in unknown:
                what = "put the password before the @, or into PGPASSWORD or a passfile"
            raise ValueError(f"{shown}: {what}; the options are {', '.join((*_OWN, *sorted(_DRIVER)))}")
        found = cls()
        found._shown = shown.partition("?")[0]
        found.schema, found.prefix = options.get("schema", "public"), options.get("prefix", "plait_")
        for name, value in (("schema", found.schema), ("prefix", found.prefix)):
            if not _NAME.fullmatch(value):
                raise ValueError(f"{shown}: {name} must match {_NAME.pattern}, not {value!r}")
        commit = _choose(shown, options, "synchronous_commit", "on", "off")
        found.is_synchronous = commit == "on"
        found.has_standby = _choose(shown, options, "standby", "asynchronous", "synchronous") == "synchronous"
        if found.has_standby and not found.is_synchronous:
            raise ValueError(f"{shown}: with synchronous_commit=off, no commit waits for a standby")
        found.has_session = _choose(shown, options, "statement_cache_size", "100", "0") != "0"
        driver = urlencode([pair for pair in pairs if pair[0] in _DRIVER], quote_via=quote)
        found.dsn = f"postgresql://{parts.netloc}{parts.path}{f'?{driver}' if driver else ''}"
        return found

    def __str__(self) -> str:
        return self._shown

    __repr__ = __str__
    _shown: str


def _choose(shown: str, options: dict[str, str], name: str, *values: str) -> str:
    """Return the value of an option, which is one of `values`; by default the first one."""
    if (value := options.get(name, values[0])) not in values:
        raise ValueError(f"{shown}: {name} must be {' or '.join(values)}, not {value!r}")
    return value
