"""The settings of a server, and the environment variables that override them."""

import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from plait.limits import UNLIMITED, Limits, explain_limit
from plait.spelling import find_nearest, hide_password

__all__ = [
    "COMMAND_VARIABLES",
    "SettingError",
    "Settings",
    "as_setting_error",
    "check_functions",
    "find_unknown_variables",
    "make_setting_error",
    "read_settings",
]

log = logging.getLogger("plait.settings")

COMMAND_VARIABLES: Final = frozenset(
    {
        "PLAIT_CLUSTER",
        "PLAIT_CLUSTER_CA",
        "PLAIT_CLUSTER_CERTIFICATE",
        "PLAIT_CLUSTER_KEY",
        "PLAIT_CLUSTER_SECRET",
        "PLAIT_HOST",
        "PLAIT_LISTEN_NODES",
        "PLAIT_LOG_FORMAT",
        "PLAIT_LOG_LEVEL",
        "PLAIT_NODE",
        "PLAIT_NODE_ADDRESS",
        "PLAIT_PORT",
        "PLAIT_PROXY_HEADERS",
        "PLAIT_TLS_CERTIFICATE",
        "PLAIT_TLS_KEY",
        "PLAIT_TRUSTED_PROXIES",
        "PLAIT_WORKER",
        "PLAIT_WORKERS",
    }
)
"""The variables that the commands read, in addition to the variables of the settings."""

# The settings whose variables are lists separated by commas.
_LISTS: Final = ("allowed_origins", "allowed_hosts", "secret")

# The settings that are never shown.
_SECRETS: Final = ("secret", "operator_token")

# The smallest values of settings in seconds; 0.1 for all others.
_LEAST: Final = {"shutdown_timeout": 0.0}


class SettingError(ValueError):
    """An environment variable has an invalid value; the message names the variable."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a server. Each has an environment variable: `PLAIT_` and its name in capitals."""

    # URL of the store.
    store: str = "sqlite:///plait.db"
    # Origins of other sites whose pages may use this server, such as `https://example.com`; `*` for all.
    allowed_origins: tuple[str, ...] = ()
    # Host names of this server, such as `example.com` or `*.example.com`; `*` for all. If empty, and without
    # `authenticate`: localhost, the machine's own name, and IP addresses.
    allowed_hosts: tuple[str, ...] = ()
    # A folder of pages to serve at `/`.
    static: str | None = None
    # Seconds that running turns may take to finish when the server shuts down.
    shutdown_timeout: float = 10.0
    # Seconds that a peer may take to send its request's headers, and each part of its body.
    request_timeout: float = 10.0
    # Seconds of silence after which a socket is pinged, and seconds to wait for its pong.
    ping_interval: float = 20.0
    ping_timeout: float = 20.0
    # Whether metrics are served at `/metrics`.
    metrics: bool = False
    # The secrets that sign the ids of agents' threads and encrypt variables: the first signs and encrypts, all verify
    # and decrypt.
    secret: tuple[str, ...] = ()
    # The token with which operators list awake threads and close sockets; without a token, neither works.
    operator_token: str = ""
    # `PLAIT_LIMITS=none` switches the limits off; each has a variable of its own, such as `PLAIT_LIMITS_FRAME`.
    limits: Limits | None = Limits()

    def with_environment(self, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Return these settings, overridden by the variables of `environment`.

        Raises SettingError for a variable with an invalid value, and ValueError for an invalid setting.
        """
        found: dict[str, Any] = {}
        for field in msgspec.structs.fields(Settings):
            text = environment.get(variable := f"PLAIT_{field.name.upper()}")
            if text is not None and field.name != "limits":
                value: Any = _split(text) if field.name in _LISTS else text
                found[field.name] = _convert(value, field.type, variable)
                if why := _explain(field.name, found[field.name]):
                    raise SettingError(f"{variable}={text!r}: {why}")
            elif why := _explain_given(field, given := getattr(self, field.name)):
                shown = "…" if field.name in _SECRETS else repr(given)
                raise ValueError(f"{field.name}={shown}: {why}")
        return msgspec.structs.replace(self, limits=_read_limits(self.limits, environment), **found)

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return all settings, but not the secrets, nor the password in the store's URL."""
        hidden = {"store": hide_password(self.store)} | {name: "…" for name in _SECRETS if getattr(self, name)}
        return [(name, hidden.get(name, getattr(self, name))) for name in self.__struct_fields__]


def _split(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def make_setting_error(name: str, why: str) -> ValueError:
    """Return the error for an invalid setting: a SettingError if the value came from the environment."""
    variable = f"PLAIT_{name.upper()}"
    return SettingError(f"{variable}: {why}") if variable in os.environ else ValueError(f"{name}: {why}")


def find_unknown_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """Return the unknown variables that begin with `PLAIT_`, each with the most similar known one."""
    known = {
        *COMMAND_VARIABLES,
        *(f"PLAIT_{field.name.upper()}" for field in msgspec.structs.fields(Settings)),
        *(f"PLAIT_LIMITS_{field.name.upper()}" for field in msgspec.structs.fields(Limits)),
    }
    unknown = (name for name in environment if name.startswith("PLAIT_") and name not in known)
    return {name: find_nearest(name, sorted(known)) for name in unknown}


@contextmanager
def as_setting_error(name: str) -> Iterator[None]:
    """Replace a ValueError of the block by the error of `make_setting_error`, which names the setting."""
    try:
        yield
    except ValueError as error:
        raise make_setting_error(name, str(error)) from None


def read_settings(
    store: object, *, allowed_origins: Any, allowed_hosts: Any, static: object, secret: Any, **others: Any
) -> Settings:
    """Return the settings of an app from its keywords and the environment; log unknown variables.

    `store` is "" for a Store. Raises TypeError and ValueError.
    """
    if not isinstance(store, str) and not callable(getattr(store, "submit", None)):
        raise TypeError(f"store must be a URL, such as 'sqlite:///game.db', or a Store, not {store!r}")
    if not isinstance(allowed_origins, Iterable):
        raise TypeError(f"allowed_origins must be a list of origins, not {allowed_origins!r}")
    if not isinstance(allowed_hosts, Iterable):
        raise TypeError(f"allowed_hosts must be a list of hosts, not {allowed_hosts!r}")
    if not isinstance(secret, str | list | tuple) or not all(isinstance(each, str) for each in secret):
        raise TypeError(f"secret must be a str or a list of them, not {type(secret).__name__}")
    given = Settings(
        store=store if isinstance(store, str) else "",
        allowed_origins=(allowed_origins,) if isinstance(allowed_origins, str) else tuple(allowed_origins),
        allowed_hosts=(allowed_hosts,) if isinstance(allowed_hosts, str) else tuple(allowed_hosts),
        static=None if static is None else str(static),
        secret=_split(secret if isinstance(secret, str) else ",".join(secret)),
        **others,
    )
    settings = given.with_environment()
    for variable, near in find_unknown_variables().items():
        hint = f"; did you mean {near}?" if near else ""
        log.warning("the environment variable %s is not a setting and is ignored%s", variable, hint)
    return settings


def check_functions(**functions: object) -> None:
    """Raise TypeError for a keyword that must be a function or None."""
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise TypeError(f"{name} must be a function or None, not {function!r}")


def _explain(name: str, value: object) -> str | None:
    """Return the reason why a value of the right type is not valid for a setting; None if it is valid."""
    if not isinstance(value, float):
        return None
    least = _LEAST.get(name, 0.1)
    return None if least <= value < math.inf else f"must be a number of seconds, at least {least:g}"


def _explain_given(field: msgspec.structs.FieldInfo, value: object) -> str | None:
    """Return the reason why a value that was passed in code is not valid for a setting; None if it is valid."""
    if field.name == "limits":
        return None if value is None or isinstance(value, Limits) else "must be a Limits, or None for no limits"
    try:
        return _explain(field.name, msgspec.convert(value, field.type))
    except msgspec.ValidationError as error:
        return str(error)


def _read_limits(limits: Limits | None, environment: Mapping[str, str]) -> Limits | None:
    match environment.get("PLAIT_LIMITS"):
        case "none":
            limits = None
        case None:
            pass
        case other:
            raise SettingError(
                f"PLAIT_LIMITS={other!r}: must be 'none'; to set one limit, use for example PLAIT_LIMITS_FRAME"
            )
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(Limits):
        if (text := environment.get(variable := f"PLAIT_LIMITS_{field.name.upper()}")) is not None:
            found[field.name] = _convert(text, field.type, variable)
            if why := explain_limit(field.name, found[field.name]):
                raise SettingError(f"{variable}={text!r}: {why}")
    return msgspec.structs.replace(limits or UNLIMITED, **found) if found else limits


def _convert(value: Any, type_: Any, variable: str) -> Any:
    try:
        return msgspec.convert(value, type_, strict=False)
    except msgspec.ValidationError as error:
        raise SettingError(f"{variable}={value!r}: {error}") from None
