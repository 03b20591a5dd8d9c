"""The rules of recurring effects: intervals, or a cron rule in a time zone. No I/O."""

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

__all__ = ["LATEST", "Cron", "Every", "Rule", "to_datetime", "to_microseconds"]

_SECOND: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

LATEST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
"""The end of the year 9999, the latest time of a schedule, in microseconds since the epoch."""


class Every(msgspec.Struct, frozen=True, tag="every"):
    """Runs at intervals, in microseconds."""

    interval: int

    @classmethod
    def of(cls, seconds: float) -> "Every":
        """Return the rule for an interval. Raises ValueError below one second, and above `LATEST`."""
        if seconds * _SECOND > LATEST:
            raise ValueError(f"every {seconds!r} s is later than the year 9999")
        interval = round(seconds * _SECOND) if seconds > 0 else 0
        if interval < _SECOND:
            raise ValueError(f"every {seconds!r} s is too often: the shortest interval is 1 s")
        return cls(interval)

    def next(self, last: int, now: int) -> int:
        """Return the first time after `last` and `now` that is a whole number of intervals after `last`."""
        return last + max(1, (now - last) // self.interval + 1) * self.interval

    def __str__(self) -> str:
        return f"every {self.interval / _SECOND:g} s"


class Cron(msgspec.Struct, frozen=True, tag="cron"):
    """Runs by a cron rule of five fields, or of six with the second first, in the local time of a zone.

    A rule with fixed hours and minutes runs once on each of its days: at the end of the gap if the clock skips its
    time, and at the first of two equal times. Any other rule counts elapsed time.
    """

    rule: str
    tz: str

    @classmethod
    def of(cls, rule: str, tz: str, now: int) -> "Cron":
        """Return a checked rule. Raises ValueError if it is not valid or has no time within 50 years."""
        cron = cls(" ".join(rule.split()), tz)
        try:
            cron.next(now, now)
        except CronSimError as error:
            raise ValueError(f"the cron rule {rule!r} is not valid: {error}") from None
        return cron

    def next(self, last: int, now: int) -> int:
        """Return the first time of the rule after `last` and `now`."""
        after = max(last, now)
        # At the second of two equal times, the first result may be before `after`.
        for found in CronSim(self.rule, to_datetime(after).astimezone(_find_zone(self.tz))):
            if (at := to_microseconds(found)) > after:
                return at
        raise ValueError(f"the cron rule {self.rule!r} has no time within 50 years")

    def __str__(self) -> str:
        return f"cron {self.rule} in {self.tz}"


Rule = Every | Cron
"""A rule that tells when an effect recurs."""


def to_datetime(at: int) -> datetime:
    """Return a time in microseconds since the epoch as a datetime in UTC."""
    seconds, rest = divmod(at, _SECOND)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)


def to_microseconds(when: datetime) -> int:
    """Return an aware datetime in microseconds since the epoch."""
    return (when - _EPOCH) // timedelta(microseconds=1)


def _find_zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # UTC exists even without a database of time zones.
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        raise ValueError(f"there is no time zone {name!r} on this system") from None
