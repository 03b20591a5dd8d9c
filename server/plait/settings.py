"""The settings of a server, and the environment variables that take their place."""

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from plait.limits import UNLIMITED, Limits

__all__ = ["SettingError", "Settings", "refused"]


class SettingError(ValueError):
    """A variable of the environment makes no sense; the message names it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a server can be told. Each field has an environment variable, `PLAIT_` and its name in capitals."""

    # URL of the store.
    store: str = "sqlite:///plait.db"
    # Origins of pages elsewhere that may use this server, such as `https://example.com`; `*` for all.
    allowed_origins: tuple[str, ...] = ()
    # Names in `Host` headers that this server answers to, such as `example.com` or `*.example.com`; `*` for all. If
    # empty, and without `authenticate`: localhost, the machine's own, and IP addresses.
    allowed_hosts: tuple[str, ...] = ()
    # A folder of pages to serve at `/`.
    static: str | None = None
    # Seconds that turns may still run when the server is asked to end.
    shutdown_timeout: float = 10.0
    # Seconds that a peer may take for its request's headers, and for each piece of its body.
    request_timeout: float = 10.0
    # Seconds of silence after which a socket is pinged, and seconds that it may take to answer.
    ping_interval: float = 20.0
    ping_timeout: float = 20.0
    # `PLAIT_LIMITS=none` switches the limits off; each has a variable of its own, such as `PLAIT_LIMITS_FRAME`.
    limits: Limits | None = Limits()

    def with_environment(self, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Return these settings with those of `environment` in their place. Raises SettingError."""
        found: dict[str, Any] = {}
        for field in msgspec.structs.fields(Settings):
            text = environment.get(variable := f"PLAIT_{field.name.upper()}")
            if text is not None and field.name != "limits":
                value: Any = (
                    [each.strip() for each in text.split(",") if each.strip()]
                    if field.name in ("allowed_origins", "allowed_hosts")
                    else text
                )
                found[field.name] = _convert(value, field.type, variable)
        return msgspec.structs.replace(self, limits=_limits(self.limits, environment), **found)


def refused(name: str, why: str) -> ValueError:
    """Return the error for a setting of which no use can be made: a SettingError when it is the environment's."""
    variable = f"PLAIT_{name.upper()}"
    return SettingError(f"{variable}: {why}") if variable in os.environ else ValueError(f"{name}: {why}")


def _limits(limits: Limits | None, environment: Mapping[str, str]) -> Limits | None:
    match environment.get("PLAIT_LIMITS"):
        case "none":
            limits = None
        case None:
            pass
        case other:
            raise SettingError(
                f"PLAIT_LIMITS={other!r}: it can only be 'none'; single limits are PLAIT_LIMITS_FRAME and so on"
            )
    found = {
        field.name: _convert(environment[variable], field.type, variable)
        for field in msgspec.structs.fields(Limits)
        if (variable := f"PLAIT_LIMITS_{field.name.upper()}") in environment
    }
    return msgspec.structs.replace(limits or UNLIMITED, **found) if found else limits


def _convert(value: Any, type_: Any, variable: str) -> Any:
    try:
        return msgspec.convert(value, type_, strict=False)
    except msgspec.ValidationError as error:
        raise SettingError(f"{variable}={value!r}: {error}") from None
