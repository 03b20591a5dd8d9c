"""Limits on the data that clients may send, and the token buckets that enforce rates."""

import math
from collections.abc import Hashable
from typing import Final

import msgspec

from plait.errors import InvalidArguments, TooLarge
from plait_schemas.codec import nests_deeper, weigh

__all__ = [
    "DEFAULT_LIMITS",
    "UNLIMITED",
    "WEIGHT_PER_BYTE",
    "Limits",
    "RateLimiter",
    "TokenBucket",
    "TokenBuckets",
    "check_json",
    "check_weight",
    "count_extra_messages",
    "explain_limit",
]

_HUGE: Final = 2**62
# Below this number, full buckets are kept.
_FEW_BUCKETS: Final = 1_000
# The limits that may be fractions.
_RATES: Final = frozenset({"messages_per_second"})
# The lowest values with which clients can still be served; 1 for all other limits.
_LEAST: Final[dict[str, float]] = {
    "frame": 1_000,
    "state": 64,
    "weight": 1_000,
    "messages_per_second": 0.001,
    "backlog": 1024,
    "write_buffer": 1_000,
    "presence": 0,
}

WEIGHT_PER_BYTE: Final = 10
"""The maximum weight of JSON for each byte: the weight of long integers."""

# A message counts as one more message for each full 16 KiB of its bytes and its weight together.
_BYTES_PER_MESSAGE: Final = 16 * 1024


def explain_limit(name: str, value: object) -> str | None:
    """Return the reason why a value is not valid for a limit; None if it is valid."""
    is_rate = name in _RATES
    if isinstance(value, bool) or not isinstance(value, int | float if is_rate else int):
        return "must be a number" if is_rate else "must be a whole number"
    return None if value >= (least := _LEAST.get(name, 1)) else f"must be at least {least}"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for clients that are not trusted. `Plait(limits=None)` switches them off.

    Raises ValueError for a limit that is too low to serve any client.
    """

    # Bytes of one WebSocket message or HTTP body from a client.
    frame: int = 1024 * 1024
    # Bytes of a state as JSON, whether a client or the server sets it.
    state: int = 1024 * 1024
    # The cost of decoding a message, a body or a state: its commas as JSON, plus 2 for each list, 6 for each object and
    # 2,000 for 200 digits of an integer in it.
    weight: int = 512 * 1024
    # The maximum depth of objects and arrays in a state or an argument.
    depth: int = 64
    # Open sockets per thread, and per address.
    connections_per_thread: int = 5_000
    connections_per_address: int = 1_000
    # Messages per second from one connection, and requests per second from one principal or address: the sustained
    # rate, and the burst.
    messages_per_second: float = 200
    message_burst: int = 1_000
    # Bytes of a connection's messages whose turns have not ended, plus 1 KiB for each of these turns. Above it, further
    # messages, calls and pushes are refused.
    backlog: int = 4 * 1024 * 1024
    # Turns that may wait in a thread, of one principal, and of one address without a principal; and runs of agents.
    waiting_turns: int = 256
    waiting_turns_per_address: int = 1_000
    waiting_runs: int = 8
    # Bytes that may wait for a peer that does not read. Above it, the socket is closed with 1013.
    write_buffer: int = 4 * 1024 * 1024
    # Bytes of a connection's presence.
    presence: int = 16 * 1024
    # Bytes of the card of a thread, as JSON, which listings show.
    card: int = 4 * 1024
    # Bytes of one record, which a thread keeps beside its state.
    record: int = 1024 * 1024
    # Bytes of one file, and of all files of a thread.
    file: int = 100 * 1024 * 1024
    files: int = 1024 * 1024 * 1024
    # Bytes of a thread's tables.
    sql: int = 64 * 1024 * 1024
    # Bytes of the variables of a thread or a user, encrypted.
    env: int = 64 * 1024
    # Threads that may be awake at once.
    awake_threads: int = 100_000

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if why := explain_limit(name, value := getattr(self, name)):
                raise ValueError(f"Limits({name}={value!r}): {why}")

    @property
    def max_frame(self) -> int | None:
        """The `frame` limit that is sent to clients; None if frames are not limited."""
        return self.frame if self.frame < _HUGE else None

    def make_bucket(self, now: float) -> "TokenBucket | None":
        """Return a bucket for the message rate; None if the rate is not limited."""
        if math.isinf(self.messages_per_second):
            return None
        return TokenBucket(self.messages_per_second, self.message_burst, now)

    def make_buckets(self) -> "TokenBuckets | None":
        """Return the buckets for the request rate of each client; None if the rate is not limited."""
        if math.isinf(self.messages_per_second):
            return None
        return TokenBuckets(self.messages_per_second, self.message_burst)

    def make_limiter(self, now: float) -> "RateLimiter | None":
        """Return the rate limiter of one connection; None if the rate is not limited."""
        if math.isinf(self.messages_per_second):
            return None
        return RateLimiter(self.messages_per_second, self.message_burst, now)


DEFAULT_LIMITS: Final = Limits()

UNLIMITED: Final = Limits(
    frame=_HUGE,
    state=_HUGE,
    weight=_HUGE,
    depth=200,
    connections_per_thread=_HUGE,
    connections_per_address=_HUGE,
    messages_per_second=float("inf"),
    message_burst=_HUGE,
    backlog=64 * 1024 * 1024,
    waiting_turns=_HUGE,
    waiting_turns_per_address=_HUGE,
    waiting_runs=_HUGE,
    write_buffer=64 * 1024 * 1024,
    presence=_HUGE,
    card=_HUGE,
    record=_HUGE,
    file=_HUGE,
    files=_HUGE,
    sql=_HUGE,
    env=_HUGE,
    awake_threads=_HUGE,
)
"""The meaning of `limits=None`: only the limits that keep the server itself working."""


def check_weight(what: str, data: bytes, limits: Limits, times: int = 1) -> None:
    """Raise TooLarge for JSON that would cost too much to decode; a type costs `times` as much as JSON without one."""
    most = limits.weight
    if len(data) * WEIGHT_PER_BYTE * times > most and (weight := times * weigh(data, most // times)) > most:
        parts = "its commas, 2 for each list, 6 for each object and 2,000 for 200 digits of an integer"
        model = f", {times} times for a model" if times > 1 else ""
        text = f"the {what} has a weight of {weight} ({parts}{model}), the limit is {limits.weight}"
        raise TooLarge(text, limit="weight")


def check_json(what: str, data: bytes | msgspec.Raw, limits: Limits, times: int = 1, *, path: str = "") -> None:
    """Check JSON before it is decoded as a type. Raises InvalidArguments if it is too deep, and TooLarge."""
    if len(data) > (depth := limits.depth) and nests_deeper(bytes(data), depth):
        raise InvalidArguments(f"{what} is nested more than {depth} deep", path=path)
    if times > 1:  # For others, the whole message was weighed.
        check_weight(what, bytes(data), limits, times)


class TokenBucket:
    """Gives out `rate` tokens per second, and `burst` at once; the caller passes the current time, in seconds."""

    __slots__ = ("_burst", "_rate", "_seen", "_tokens")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._seen = now

    def take(self, now: float) -> float:
        """Take a token and return 0, or return the seconds to wait for the next token."""
        wait = self.seconds_until(1, now)
        if not wait:
            self._tokens -= 1
        return wait

    def seconds_until(self, count: float, now: float) -> float:
        """Return the seconds until there are `count` tokens. After a charge, the number of tokens may be negative."""
        # The time may be earlier than before: an app is started again in another loop, after a test has turned its
        # clock.
        if (passed := now - self._seen) > 0:
            self._tokens = min(self._burst, self._tokens + passed * self._rate)
        self._seen = now
        if self._tokens >= count:
            return 0.0
        return (count - self._tokens) / self._rate if self._rate > 0 else math.inf

    def charge(self, count: float) -> None:
        """Take tokens in advance; later callers wait until they have been refilled."""
        self._tokens -= count


class TokenBuckets:
    """One bucket per key; full buckets are dropped, because they do not differ from new ones."""

    __slots__ = ("_buckets", "_burst", "_many", "_rate")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: dict[Hashable, TokenBucket] = {}
        # The number of buckets at which full ones are dropped.
        self._many = _FEW_BUCKETS

    def __len__(self) -> int:
        return len(self._buckets)

    def bucket(self, key: Hashable, now: float) -> TokenBucket:
        """Return the bucket of a key."""
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
    """Limits the rate of one client's messages, and detects clients that ignore refusals."""

    __slots__ = ("_burst", "_refused", "_taken", "is_exceeded")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._taken = TokenBucket(rate, burst, now)
        self._refused = TokenBucket(rate, burst, now)
        self._burst = burst
        # Whether the client ignores refusals and should be disconnected.
        self.is_exceeded = False

    def take(self, now: float) -> float:
        """Accept a message and return 0, or refuse it and return the seconds to wait.

        After that time, all refused messages can be sent again without another refusal.
        """
        wait = self._taken.take(now)
        if not wait:
            return 0.0
        wait += self._refused.seconds_until(self._burst, now)
        self.is_exceeded = self._refused.take(now) > 0
        return wait

    def charge(self, count: float) -> None:
        """Count the accepted message as `count` more messages."""
        self._taken.charge(count)

    def charge_message(self, data: bytes) -> None:
        """Count the accepted message as more messages if it is large."""
        if len(data) >= _BYTES_PER_MESSAGE:
            self._taken.charge(count_extra_messages(data))


def count_extra_messages(data: bytes) -> float:
    """Return the number of extra messages that a message counts as, for reading, decoding and comparing it."""
    if len(data) < _BYTES_PER_MESSAGE:
        return 0.0
    return (len(data) + weigh(data, _HUGE)) / _BYTES_PER_MESSAGE
