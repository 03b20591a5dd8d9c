"""Limits, and the bucket that counts messages."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from plait.errors import TooLarge
from plait.limits import (
    DEFAULT_LIMITS,
    UNLIMITED,
    Limits,
    RateLimiter,
    TokenBucket,
    TokenBuckets,
    check_weight,
    count_extra_messages,
)

RATES = st.sampled_from([0.5, 1.0, 3.0, 200.0])
BURSTS = st.integers(1, 20)
# Multiples of a power of two, so that sums of times are exact.
PAUSES = st.lists(st.integers(0, 64).map(lambda steps: steps / 64), max_size=100)


@given(RATES, BURSTS)
def test_a_burst_goes_through_at_once_and_the_next_must_wait(rate: float, burst: int) -> None:
    bucket = TokenBucket(rate, burst, 0.0)
    assert [bucket.take(0.0) for _ in range(burst)] == [0.0] * burst
    assert bucket.take(0.0) > 0


@given(RATES, BURSTS, PAUSES)
def test_never_more_than_burst_and_rate_allow(rate: float, burst: int, pauses: list[float]) -> None:
    bucket = TokenBucket(rate, burst, 0.0)
    now, taken = 0.0, 0
    for pause in pauses:
        now += pause
        taken += bucket.take(now) == 0
        assert taken <= burst + rate * now + 1e-6


@given(RATES, BURSTS, PAUSES)
def test_who_waits_as_long_as_told_is_let_through(rate: float, burst: int, pauses: list[float]) -> None:
    bucket = TokenBucket(rate, burst, 0.0)
    now = 0.0
    for pause in pauses:
        now += pause
        if wait := bucket.take(now):
            assert bucket.take(now + wait / 2) > 0
            now += wait + 1e-9
            assert bucket.take(now) == 0


@given(RATES, BURSTS, st.floats(0, 1e6))
def test_a_pause_however_long_earns_no_more_than_a_burst(rate: float, burst: int, pause: float) -> None:
    bucket = TokenBucket(rate, burst, 0.0)
    bucket.take(0.0)
    assert sum(bucket.take(pause) == 0 for _ in range(burst + 2)) <= burst


@given(RATES, BURSTS)
def test_who_keeps_to_the_rate_is_never_held_up(rate: float, burst: int) -> None:
    bucket = TokenBucket(rate, burst, 0.0)
    assert all(bucket.take(count / rate * 1.000001) == 0 for count in range(200))


def test_a_time_that_goes_back_takes_no_tokens() -> None:
    bucket = TokenBucket(1, 2, 1_000)
    assert bucket.take(1_000) == bucket.take(10) == 0
    assert bucket.take(10) == 1
    assert bucket.take(11) == 0


@each_case("now", [0.0, 1e-9, 1.0, 1e9])
def test_without_a_limit_everything_goes_through(now: float) -> None:
    bucket = TokenBucket(UNLIMITED.messages_per_second, UNLIMITED.message_burst, 0.0)
    assert all(bucket.take(now) == 0 for _ in range(10_000))


def test_a_rate_of_nothing_lets_the_burst_through_and_then_nothing_more() -> None:
    bucket = TokenBucket(0.0, 1, 0.0)
    assert bucket.take(0.0) == 0
    assert bucket.take(1e9) == float("inf")


def test_switching_the_limits_off_says_so_of_each() -> None:
    same = [each.name for each in msgspec.structs.fields(Limits) if getattr(UNLIMITED, each.name) == each.default]
    assert same == []


def test_switching_the_limits_off_leaves_none_tighter_than_the_default() -> None:
    for field in msgspec.structs.fields(Limits):
        assert getattr(UNLIMITED, field.name) >= getattr(DEFAULT_LIMITS, field.name), field.name


def test_the_depth_that_is_left_without_limits_can_be_read() -> None:
    text = b"[" * UNLIMITED.depth + b"]" * UNLIMITED.depth
    value = msgspec.json.decode(text)
    assert msgspec.json.encode(value) == text


def test_a_connection_has_a_bucket_of_its_limits_and_none_without() -> None:
    bucket = Limits(messages_per_second=1, message_burst=2).make_bucket(0.0)
    assert bucket is not None
    assert [bucket.take(0.0) for _ in range(2)] == [0.0, 0.0]
    assert bucket.take(0.0) > 0
    assert UNLIMITED.make_bucket(0.0) is None


# Who goes on regardless


@given(RATES, st.integers(64, 1000), st.lists(st.integers(1, 64), min_size=1, max_size=100))
def test_who_sends_what_is_refused_again_when_told_is_never_found_to_go_on_regardless(
    rate: float, burst: int, numbers: list[int]
) -> None:
    limiter = RateLimiter(rate, burst, 0.0)
    now = 0.0
    for number in numbers:
        waits = [limiter.take(now) for _ in range(number)]
        assert not limiter.is_exceeded
        now += max(waits) + 1e-6


def test_what_is_sent_again_when_told_is_taken_in_the_main() -> None:
    limiter = RateLimiter(200, 1000, 0.0)
    assert [limiter.take(0.0) for _ in range(1000)] == [0.0] * 1000
    now, taken = 0.0, 0
    for _ in range(100):
        waits = [limiter.take(now) for _ in range(64)]
        taken += waits.count(0.0)
        now += max(waits) + 0.01
    assert taken > 0.9 * 200 * now


@each_case("speed", [500, 3_000, 30_000, 1_000_000])
def test_who_goes_on_regardless_is_found_out_though_one_message_after_the_other_is_taken(speed: int) -> None:
    limiter = RateLimiter(200, 1000, 0.0)
    count, refused = 0, 0
    while not limiter.is_exceeded:
        count += 1
        refused += limiter.take(count / speed) > 0
        assert count < 20_000
    # As many are endured as are taken.
    assert 1000 <= refused <= 1001 + 200 * count / speed


def test_who_is_a_little_too_fast_is_refused_and_endured() -> None:
    limiter = RateLimiter(200, 1000, 0.0)
    refused = sum(limiter.take(n / 300) > 0 for n in range(100_000))
    assert refused > 30_000
    assert not limiter.is_exceeded


def test_each_has_a_bucket_of_its_own() -> None:
    buckets = TokenBuckets(1.0, 2)
    assert [buckets.bucket("a", 0.0).take(0.0) == 0 for _ in range(3)] == [True, True, False]
    assert buckets.bucket("b", 0.0).take(0.0) == 0


def test_of_many_that_have_asked_only_those_who_did_lately_are_remembered() -> None:
    buckets = TokenBuckets(1.0, 2)
    for n in range(100_000):
        assert buckets.bucket(n, n / 100).take(n / 100) == 0
    assert len(buckets) < 5_000
    assert buckets.bucket(99_999, 1_000.0).take(1_000.0) == 0
    assert buckets.bucket(99_999, 1_000.0).take(1_000.0) > 0


def test_without_a_limit_requests_are_not_counted() -> None:
    assert UNLIMITED.make_buckets() is None


def test_a_large_message_is_charged_by_its_bytes_and_by_what_is_in_it() -> None:
    assert count_extra_messages(b"[]" * 4_000) == 0
    assert count_extra_messages(b"x" * 64 * 1024) == 4
    assert count_extra_messages(b"[]" * 32 * 1024) == 4 + 2 * 32 * 1024 / (16 * 1024)
    assert count_extra_messages(b"{}" * 32 * 1024) == 4 + 6 * 32 * 1024 / (16 * 1024)


def test_digits_inside_of_strings_are_charged_as_text() -> None:
    assert count_extra_messages(b'"%b"' % (b"01" * 50_000)) == 100_002 / (16 * 1024)
    assert count_extra_messages(b'["%b"]' % (b"01" * 10_000)) == (20_004 + 2) / (16 * 1024)


MIB = 1024 * 1024
POINT = {"type": "Point", "coordinates": [13.4050, 52.5200]}


def repeat(element: object) -> bytes:
    """Return a list of 1 MiB."""
    one = msgspec.json.encode(element)
    return b"[%b]" % b",".join([one] * ((MIB - 1) // (len(one) + 1)))


@each_case(
    "element",
    [
        pytest.param(7, id="digits"),
        pytest.param([13.4050, 52.5200], id="points"),
        pytest.param({"type": "Feature", "geometry": POINT, "properties": {"name": "Berlin"}}, id="GeoJSON"),
        pytest.param({"row": 17, "column": 4, "value": "=A1"}, id="cells"),
        pytest.param({"id": "m17", "role": "user", "content": "Hello, how are you?"}, id="chats"),
        pytest.param("[{,}]" * 1000, id="texts full of brackets"),
    ],
)
def test_1_mib_of_what_people_store_is_not_too_heavy(element: object) -> None:
    data = repeat(element)
    assert MIB - 10_000 < len(data) <= MIB
    check_weight("state", data, DEFAULT_LIMITS)


@each_case(("element", "count"), [({}, 100_000), ([], 180_000), ([[]], 110_000), ({"a": {}}, 45_000)])
def test_many_tiny_objects_and_lists_are_too_heavy(element: object, count: int) -> None:
    data = msgspec.json.encode([element] * count)
    assert len(data) < MIB
    with pytest.raises(TooLarge, match="the state has a weight of") as caught:
        check_weight("state", data, DEFAULT_LIMITS)
    assert caught.value.limit == "weight"
    check_weight("state", data, UNLIMITED)
