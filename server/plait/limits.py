"""How much a client may ask of a server."""

import math
from collections.abc import Hashable
from typing import Final

import msgspec

__all__ = ["DEFAULT_LIMITS", "UNLIMITED", "Limits", "RateLimiter", "TokenBucket", "TokenBuckets", "explain_limit"]

_HUGE: Final = 2**62
# Buckets of which the full ones are not looked for.
_FEW_BUCKETS: Final = 1_000
# The limits that need not be whole numbers.
_RATES: Final = frozenset({"messages_per_second"})
# The least of each limit with which clients can be served at all; of the others it is 1.
_LEAST: Final[dict[str, float]] = {
    "frame": 1_000,
    "state": 64,
    "messages_per_second": 0.001,
    "backlog": 1024,
    "write_buffer": 1_000,
    "presence": 0,
}


def explain_limit(name: str, value: object) -> str | None:
    """Return why a limit cannot have this value, None when it can."""
    is_rate = name in _RATES
    if isinstance(value, bool) or not isinstance(value, int | float if is_rate else int):
        return "must be a number" if is_rate else "must be a whole number"
    return None if value >= (least := _LEAST.get(name, 1)) else f"must be at least {least}"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for clients that are not trusted. `Plait(limits=None)` switches them off.

    Raises ValueError for a limit with which no client could be served.
    """

    # Bytes of one WebSocket message or HTTP body from a client.
    frame: int = 1024 * 1024
    # Bytes of a state as JSON, whoever sets it.
    state: int = 1024 * 1024
    # How deep objects and arrays nest in a state or an argument.
    depth: int = 64
    # Open sockets of one thread, and from one address.
    connections_per_thread: int = 5_000
    connections_per_address: int = 1_000
    # Messages a second from one connection, and requests from one principal or address, in the long run and at once.
    messages_per_second: float = 200
    message_burst: int = 1_000
    # Bytes that a connection has sent and whose turns have not ended, each turn with 1 KiB for itself; past it
    # messages, calls and pushes are refused.
    backlog: int = 4 * 1024 * 1024
    # Bytes that may wait for a peer that does not read; past it the socket is closed with 1013.
    write_buffer: int = 4 * 1024 * 1024
    # Bytes of what a connection shows of itself to others.
    presence: int = 16 * 1024
    # Threads that may be awake at once.
    awake_threads: int = 100_000

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if why := explain_limit(name, value := getattr(self, name)):
                raise ValueError(f"Limits({name}={value!r}): {why}")

    @property
    def max_frame(self) -> int | None:
        """The `frame` that clients are told of, None when theirs are not limited."""
        return self.frame if self.frame < _HUGE else None

    def make_bucket(self, now: float) -> "TokenBucket | None":
        """Return what counts to the limit for messages, None when they are not limited."""
        if math.isinf(self.messages_per_second):
            return None
        return TokenBucket(self.messages_per_second, self.message_burst, now)

    def make_buckets(self) -> "TokenBuckets | None":
        """Return what counts requests to the limit for messages, None when they are not limited."""
        if math.isinf(self.messages_per_second):
            return None
        return TokenBuckets(self.messages_per_second, self.message_burst)

    def make_limiter(self, now: float) -> "RateLimiter | None":
        """Return what says which messages of a connection come too fast, None when they are not limited."""
        if math.isinf(self.messages_per_second):
            return None
        return RateLimiter(self.messages_per_second, self.message_burst, now)


DEFAULT_LIMITS: Final = Limits()

UNLIMITED: Final = Limits(
    frame=_HUGE,
    state=_HUGE,
    depth=200,
    connections_per_thread=_HUGE,
    connections_per_address=_HUGE,
    messages_per_second=float("inf"),
    message_burst=_HUGE,
    backlog=64 * 1024 * 1024,
    write_buffer=64 * 1024 * 1024,
    presence=_HUGE,
    awake_threads=_HUGE,
)
"""What `limits=None` stands for: only what protects the server from itself is left."""


class TokenBucket:
    """Lets `rate` things a second through, and `burst` at once; the caller brings the time, in seconds."""

    __slots__ = ("_burst", "_rate", "_seen", "_tokens")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._seen = now

    def take(self, now: float) -> float:
        """Take one and return 0, or return how many seconds to wait before the next is there."""
        wait = self.seconds_until(1, now)
        if not wait:
            self._tokens -= 1
        return wait

    def seconds_until(self, count: float, now: float) -> float:
        """Return how many seconds to wait before there are `count`; there are less than 0 after a charge."""
        self._tokens = min(self._burst, self._tokens + (now - self._seen) * self._rate)
        self._seen = now
        if self._tokens >= count:
            return 0.0
        return (count - self._tokens) / self._rate if self._rate > 0 else math.inf

    def charge(self, count: float) -> None:
        """Take some more, which may have to be waited for afterwards."""
        self._tokens -= count


class TokenBuckets:
    """A bucket for each of many, none for those who have not asked for long: theirs would be full."""

    __slots__ = ("_buckets", "_burst", "_many", "_rate")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: dict[Hashable, TokenBucket] = {}
        # How many there are before the full ones are looked for.
        self._many = _FEW_BUCKETS

    def __len__(self) -> int:
        return len(self._buckets)

    def bucket(self, key: Hashable, now: float) -> TokenBucket:
        """Return the bucket of one of them."""
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= self._many:
                self._forget(now)
            bucket = self._buckets[key] = TokenBucket(self._rate, self._burst, now)
        return bucket

    def _forget(self, now: float) -> None:
        self._buckets = {key: each for key, each in self._buckets.items() if each.seconds_until(self._burst, now)}
        self._many = max(_FEW_BUCKETS, 2 * len(self._buckets))


class RateLimiter:
    """Takes so many messages of one client, and refuses as many; who goes on regardless is found out by that."""

    __slots__ = ("_burst", "_refused", "_taken", "is_exceeded")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._taken = TokenBucket(rate, burst, now)
        self._refused = TokenBucket(rate, burst, now)
        self._burst = burst
        # Whether more has been refused than is endured.
        self.is_exceeded = False

    def take(self, now: float) -> float:
        """Take a message and return 0, or refuse it and return how many seconds to wait.

        By then as many would be taken as have been refused, and it is as if nothing had been.
        """
        wait = self._taken.take(now)
        if not wait:
            return 0.0
        wait += self._refused.seconds_until(self._burst, now)
        self.is_exceeded = self._refused.take(now) > 0
        return wait

    def charge(self, count: float) -> None:
        """Count what was taken as some messages more."""
        self._taken.charge(count)
