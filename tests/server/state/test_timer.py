"""The timer of an awake thread."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.clocks import Clock
from tests.server.parts.workshop import SECOND, SOON, until

from plait.state.timer import Timed, Timer


class Part(Timed):
    """Is due when a test says so."""

    def __init__(self, wakes_at: int, due: int | None = None) -> None:
        self.wakes_at = wakes_at
        self.due = wakes_at if due is None else due
        self.has_work = False
        self.calls: list[int] = []
        self.then: Callable[[], object] = lambda: setattr(self, "wakes_at", 0)

    @property
    def times(self) -> tuple[int, int]:
        return self.due, self.wakes_at

    @property
    def keeps(self) -> bool:
        return self.has_work

    def on_due(self, now: int) -> None:
        self.calls.append(now)
        self.then()

    def terminate(self) -> None: ...


def make_timer(*parts: Any, interval: float = SOON) -> Timer:
    timer = Timer(asyncio.get_running_loop(), interval)
    for part in parts:
        timer.add(part)
    return timer


async def watched() -> None:
    await asyncio.sleep(4 * SOON)


async def test_parts_are_called_at_their_times_and_not_before(clock: Clock) -> None:
    early, late = Part(clock.now + SECOND), Part(clock.now + 2 * SECOND)
    timer = make_timer(early, late)
    timer.start()
    await watched()
    assert early.calls == []
    clock.move(1)
    await until(lambda: early.calls == [clock.now])
    assert late.calls == []
    clock.move(1)
    await until(lambda: late.calls == [clock.now])
    assert len(early.calls) == 1


async def test_a_clock_that_is_set_is_seen_within_the_interval(clock: Clock) -> None:
    part = Part(clock.now + 3600 * SECOND)
    timer = make_timer(part)
    timer.start()
    clock.move(-3600)
    await watched()
    clock.move(2 * 3600)
    await until(lambda: len(part.calls) == 1)


async def test_nothing_is_called_before_start_and_after_stop(clock: Clock) -> None:
    part = Part(clock.now)
    timer = make_timer(part)
    timer.arm()
    await watched()
    assert part.calls == []
    timer.start()
    timer.stop()
    await watched()
    assert part.calls == []
    timer.start()
    await until(lambda: len(part.calls) == 1)


async def test_a_part_that_stays_due_is_not_called_in_a_loop(clock: Clock) -> None:
    part = Part(clock.now)
    times: list[float] = []
    part.then = lambda: times.append(asyncio.get_running_loop().time())
    timer = make_timer(part, interval=3600)
    timer.start()
    await until(lambda: len(times) == 2)
    assert times[1] - times[0] >= 0.99
    timer.stop()


async def test_a_part_that_raises_stops_neither_the_others_nor_the_timer(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        broken.wakes_at = 0
        raise RuntimeError("it cannot begin")

    broken, other, late = Part(clock.now), Part(clock.now), Part(clock.now + SECOND)
    broken.then = fail
    timer = make_timer(broken, other, late)
    timer.start()
    await until(lambda: len(other.calls) == 1)
    clock.move(1)
    await until(lambda: len(late.calls) == 1)
    assert len(broken.calls) == 1
    assert "it cannot begin" in caplog.text


async def test_a_part_that_raises_and_stays_due_is_not_called_in_a_loop(clock: Clock) -> None:
    def fail() -> None:
        raise RuntimeError("it cannot begin")

    part = Part(clock.now)
    part.then = fail
    timer = make_timer(part, interval=3600)
    timer.start()
    await watched()
    assert len(part.calls) == 1
    await until(lambda: len(part.calls) == 2)
    timer.stop()


async def test_a_time_for_which_no_part_is_called_does_not_keep_the_loop_busy() -> None:
    class Negative(Part):
        reads = 0

        def __getattribute__(self, name: str) -> Any:
            if name == "times":
                Negative.reads += 1
            return super().__getattribute__(name)

    timer = make_timer(Negative(-1), interval=3600)
    timer.start()
    await watched()
    assert 0 < Negative.reads < 10
    timer.stop()


async def test_arming_again_finds_an_earlier_time(clock: Clock) -> None:
    part = Part(clock.now + 3600 * SECOND)
    timer = make_timer(part, interval=3600)
    timer.start()
    part.wakes_at = clock.now
    timer.arm()
    await until(lambda: len(part.calls) == 1)


async def test_the_earliest_due_time_counts_and_none_if_no_part_acts_at_times(clock: Clock) -> None:
    assert make_timer().due is None
    timer = make_timer(Part(0, due=7), Part(9), Part(0))
    assert (timer.due, timer.wakes_at) == (6, 9)
    assert make_timer(Part(0)).due == 0


async def test_work_is_due_at_even_times_and_expiry_at_odd_ones_unless_work_keeps_the_thread() -> None:
    timer = make_timer()
    for expires in (None, 0, 9):
        timer.expires = expires
        assert timer.due == expires
    timer.add(part := Part(0, due=21))
    assert (timer.due, timer.expires_at) == (9, 9)
    part.due = 7
    timer.arm()
    assert (timer.due, timer.expires_at) == (6, 9)
    part.has_work = True
    assert (timer.due, timer.expires_at) == (6, 0)
    part.due = 21
    timer.arm()
    assert timer.due == 20
    part.has_work = False
    assert timer.due == 9


async def test_only_parts_whose_times_may_have_changed_are_asked_again(clock: Clock) -> None:
    later = clock.now + 3600 * SECOND
    one, other = Part(later), Part(later)
    timer = make_timer(interval=3600)
    timer.add(one, "one")
    timer.add(other, "other", "one more")
    timer.start()
    one.wakes_at, other.wakes_at = later - SECOND, later - 2 * SECOND
    assert timer.wakes_at == later
    timer.follow_write({"one", "state"})
    assert timer.wakes_at == later - SECOND
    timer.arm(other)
    assert timer.wakes_at == later - 2 * SECOND
    other.wakes_at = later - 3 * SECOND
    timer.follow_write({"one more"})
    assert timer.wakes_at == later - 3 * SECOND
    timer.stop()
