"""A clock that a test turns, without an app."""

import asyncio
import math
import threading
import time
from functools import partial
from typing import Any

import anyio.to_thread
import pytest
from tests.cases import each_case
from tests.clocks import Clock as StoppedClock

from plait.clock import CLOCK, ClockWatch, read_due_clock, read_wall_clock
from plait.testing.clock import Clock

HOUR = 3600.0


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Run the tests on asyncio's own loop."""
    return "asyncio", {"use_uvloop": False}


async def tick(seconds: float, seen: list[float]) -> None:
    """Add the time of the loop to `seen`, again and again."""
    while True:
        await asyncio.sleep(seconds)
        seen.append(asyncio.get_running_loop().time())


async def test_each_timer_is_called_at_its_time() -> None:
    with Clock.turning() as clock:
        seen: list[float] = []
        start = asyncio.get_running_loop().time()
        task = asyncio.create_task(tick(0.1, seen))
        await clock.settle()
        await clock.advance(1)
        assert len(seen) == 10
        assert [round(at - start, 2) for at in seen] == [round(n / 10, 2) for n in range(1, 11)]
        await clock.advance(HOUR)
        assert len(seen) == 36_010
        task.cancel()


async def test_what_is_due_at_the_end_is_done_and_what_is_due_later_is_not() -> None:
    with Clock.turning() as clock:
        loop, called = asyncio.get_running_loop(), list[str]()
        loop.call_later(60, called.append, "at the end")
        loop.call_later(61, called.append, "later")
        await clock.advance(60)
        assert called == ["at the end"]
        await clock.advance(1)
        assert called == ["at the end", "later"]


async def test_rounding_errors_make_nothing_late() -> None:
    with Clock.turning() as clock:
        for seconds in (0.1, 0.3, 0.7):
            seen: list[float] = []
            task = asyncio.create_task(tick(seconds, seen))  # It begins when the clock stands still.
            await clock.advance(seconds * 1000)
            assert len(seen) == 1000
            task.cancel()


@each_case("gap", [1, 2, 3, 100, 1000])
async def test_timers_that_are_due_moments_apart_are_called_at_their_times(gap: int) -> None:
    with Clock.turning() as clock:
        clock.patience, loop, seen = 0.5, asyncio.get_running_loop(), list[float]()

        async def wait_until(due: float) -> None:
            while loop.time() < due:
                await asyncio.wait([loop.create_future()], timeout=due - loop.time())
            seen.append(due)

        first = loop.time() + 5
        second = first + gap * math.ulp(first)
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_until(second))
            group.create_task(wait_until(first))
            await clock.advance(10)
        assert seen == [first, second]


async def test_all_clocks_of_plait_advance_together() -> None:
    with Clock.turning() as clock:
        watch = ClockWatch()
        before = read_wall_clock(), read_due_clock(), clock.now
        assert abs(clock.now - time.time()) < HOUR / 2
        await clock.advance(HOUR)
        after = read_wall_clock(), read_due_clock(), clock.now
        passed = [(late - early) / scale for early, late, scale in zip(before, after, (1e6, 1e6, 1), strict=True)]
        assert all(HOUR <= each < HOUR * 1.5 for each in passed)
        assert not watch.look()


async def test_the_clock_goes_on_by_itself_between_advances() -> None:
    with Clock.turning() as clock:
        await clock.advance(HOUR)
        async with asyncio.timeout(HOUR):
            await asyncio.sleep(0.01)


async def test_a_number_that_is_no_time_is_refused() -> None:
    with Clock.turning() as clock:
        for seconds in (-1, -0.001, math.inf, math.nan, 1e12):
            with pytest.raises(ValueError, match=r"^seconds must be from 0 to 3153600000, not "):
                await clock.advance(seconds)
        for wrong in ("60", None, True):
            with pytest.raises(TypeError, match=r"^seconds must be a number, not "):
                await clock.advance(wrong)  # type: ignore[arg-type]
        for seconds in (0, 0.0, -0.0, 1e-9, 1e-6, 3):
            await clock.advance(seconds)


async def test_the_clock_is_advanced_once_at_a_time() -> None:
    with Clock.turning() as clock:
        first = asyncio.create_task(clock.advance(60))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match=r"^the clock is being advanced already$"):
            await clock.advance(60)
        await first
        await clock.advance(60)


async def test_what_an_os_thread_does_is_waited_for() -> None:
    done: list[str] = []

    def work(name: str) -> None:
        time.sleep(0.05)
        done.append(name)

    async def work_again(run: Any) -> None:
        for name in "abc":
            await run(work, name)
            await asyncio.sleep(60)

    for run in (asyncio.to_thread, anyio.to_thread.run_sync):
        done.clear()
        with Clock.turning() as clock:
            task = asyncio.create_task(work_again(run))
            await clock.advance(119)
            assert done == ["a", "b"]
            await clock.advance(1)
            assert done == ["a", "b", "c"]
            task.cancel()


async def test_an_os_thread_that_does_not_end_is_named() -> None:
    gate = threading.Event()
    with Clock.turning() as clock:
        clock.patience = 0.1
        work = asyncio.create_task(asyncio.to_thread(gate.wait, 10))
        with pytest.raises(RuntimeError, match=r"^after 0.1 s, there is still something to do: Event.wait in an OS th"):
            await clock.advance(1)
        gate.set()
        await work
        other = asyncio.create_task(anyio.to_thread.run_sync(partial(time.sleep, 0.5)))
        with pytest.raises(RuntimeError, match="a callback, or a call in an OS thread"):
            await clock.advance(1)
        await other


async def test_an_os_thread_that_waits_for_a_timer_of_the_loop_is_explained() -> None:
    loop = asyncio.get_running_loop()

    def wait() -> None:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.2), loop).result()

    with Clock.turning() as clock:
        clock.patience = 0.1
        work = asyncio.create_task(asyncio.to_thread(wait))
        with pytest.raises(
            RuntimeError, match="wait in an OS thread; no timer of the loop is reached while an OS thread"
        ):
            await clock.advance(1)
        await work


async def test_a_task_that_runs_again_and_again_is_named() -> None:
    async def poll() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with Clock.turning() as clock:
        clock.patience = 0.1
        task = asyncio.create_task(poll())
        with pytest.raises(RuntimeError, match=r"there is still something to do: <coroutine object .*poll"):
            await clock.advance(1)
        task.cancel()


async def test_a_timeout_around_it_goes_by_real_time() -> None:
    async with asyncio.timeout(60) as limit:
        with Clock.turning() as clock:
            await clock.advance(HOUR)
    assert not limit.expired()


async def test_a_timeout_in_it_goes_by_the_clock() -> None:
    with Clock.turning() as clock, pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await clock.advance(HOUR)


async def test_a_timeout_around_it_ends_an_advance_that_takes_too_long() -> None:
    async def turn_for_long() -> None:
        with Clock.turning() as clock:
            task = asyncio.create_task(tick(0.001, []))
            try:
                await clock.advance(HOUR * 24)
            finally:
                task.cancel()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await turn_for_long()


async def test_timers_wait_as_long_as_they_would_have_when_the_clock_is_no_longer_turned() -> None:
    loop, called = asyncio.get_running_loop(), list[str]()
    before = loop.call_later(HOUR, called.append, "before")
    real = loop.time()
    with Clock.turning() as clock:
        await clock.advance(HOUR * 2)
        during = loop.call_later(HOUR, called.append, "during")
    assert called == []
    assert real <= loop.time() < real + HOUR / 2
    for timer in (before, during):
        assert abs(timer.when() - real - HOUR) < HOUR / 2
        timer.cancel()
    assert abs(read_wall_clock() / 1e6 - time.time()) < HOUR / 2
    assert "time" not in vars(loop)
    assert "run_in_executor" not in vars(loop)


async def test_clocks_in_one_another_are_one_clock() -> None:
    with Clock.turning() as outer:
        with Clock.turning() as inner:
            assert inner is outer
            await inner.advance(HOUR)
        now = outer.now
        assert now > time.time() + HOUR / 2
        await outer.advance(HOUR)
        assert outer.now >= now + HOUR
    with Clock.turning() as later:
        assert later is not outer
        assert abs(later.now - time.time()) < HOUR / 2


async def test_a_clock_is_turned_until_the_last_of_its_blocks_ends() -> None:
    one, other = Clock.turning(), Clock.turning()
    clock = one.__enter__()
    assert other.__enter__() is clock
    one.__exit__(None, None, None)
    await clock.advance(HOUR)
    assert clock.now > time.time() + HOUR / 2
    other.__exit__(None, None, None)
    assert "time" not in vars(asyncio.get_running_loop())


async def test_an_error_in_the_block_comes_out_and_the_clock_is_right_again() -> None:
    async def fail() -> None:
        with Clock.turning() as clock:
            await clock.advance(HOUR)
            raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        await fail()
    assert "time" not in vars(asyncio.get_running_loop())
    assert abs(CLOCK.read_wall() / 1e6 - time.time()) < HOUR / 2


async def test_it_begins_at_the_time_of_day_that_plait_has(clock: StoppedClock) -> None:
    clock.set(1_800_000_000_000_000)
    with Clock.turning() as turned:
        await turned.advance(60)
        assert 0 <= turned.now - 1_800_000_060 < 30


def test_another_loop_than_asyncios_own_is_refused() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def turn() -> None:
        with Clock.turning():
            pass

    with pytest.raises(RuntimeError) as caught, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(turn())
    assert str(caught.value) == "plait.testing turns the clock of asyncio's own event loop, and this is uvloop.Loop"


def test_turning_the_clock_logs_no_slow_callback_in_debug_mode(caplog: pytest.LogCaptureFixture) -> None:
    async def turn() -> None:
        with Clock.turning() as clock:
            await clock.advance(HOUR)
            await clock.settle()

    with asyncio.Runner(debug=True) as runner:
        runner.run(turn())
    assert "took" not in caplog.text


class OldLoop(asyncio.SelectorEventLoop):
    """The loop of a machine that was started years ago, so that its time is rounded to 7 nanoseconds."""

    def time(self) -> float:
        return super().time() + 50_000_000


def test_timers_are_called_at_their_time_on_a_machine_that_runs_for_years() -> None:
    async def turn() -> None:
        with Clock.turning() as clock:
            seen: list[float] = []
            task = asyncio.create_task(tick(0.1, seen))
            await clock.settle()
            for count in range(10, 1000, 10):
                await clock.advance(1)
                assert len(seen) == count
            task.cancel()

    with asyncio.Runner(loop_factory=OldLoop) as runner:
        runner.run(asyncio.wait_for(turn(), 30))
