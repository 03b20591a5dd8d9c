"""When a loop is said to be blocked; the integration tests show what is named."""

import asyncio
import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import plait
from plait.actor.loop_watcher import LoopWatcher
from plait.instruments.protocol import NoInstruments


class Clock:
    """Tells one time at each look, and then the last one."""

    def __init__(self, *times: float) -> None:
        self.left = list(times)
        self.is_over = threading.Event()

    def __call__(self) -> float:
        if len(self.left) > 1:
            return self.left.pop(0)
        self.is_over.set()
        return self.left[0]


class Told(NoInstruments):
    """Keeps for how long the loop was blocked."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def loop_blocked(self, kind: str, turn: str, seconds: float) -> None:
        self.seconds.append(seconds)


async def next_iteration() -> None:
    """Wait until the loop has done what it was asked for before."""
    done = asyncio.Event()
    asyncio.get_running_loop().call_soon(done.set)
    await done.wait()


def wait(clock: Clock) -> None:
    while not clock.is_over.is_set():
        time.sleep(0.001)


async def find_blocks(*times: float, work: Callable[[Clock], object] = wait) -> list[float]:
    """Block the loop while the watcher looks at these times; return for how long it says that the loop was blocked."""
    told, clock = Told(), Clock(*times)
    watcher = LoopWatcher(told, clock=clock)
    watcher.start()
    try:
        await next_iteration()  # The loop answers the first beat.
        work(clock)
    finally:
        watcher.stop()
    await next_iteration()
    return told.seconds


async def test_a_loop_that_does_not_answer_is_blocked_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    assert await find_blocks(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7) == [pytest.approx(0.6)]
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith("code outside of turns blocks the server at tests/server/actor/test_loop_watcher.py:")


async def test_no_garbage_is_collected_while_the_stack_of_the_loop_is_read() -> None:
    names, threshold, block = set[str](), gc.get_threshold(), (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)

    def note(_: str, __: object) -> None:
        if threading.current_thread().name.startswith("plait loop watcher"):
            stack = traceback.extract_stack()
            names.update(each.name for each in stack)

    gc.callbacks.append(note)
    gc.set_threshold(1)
    try:
        assert await find_blocks(*block)
        assert gc.isenabled()
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*threshold)
    assert "_look" in names, "it is collected at other times"
    assert "_find_running" not in names


async def watch_together(*clocks: Clock) -> list[Told]:
    """Block the loop while a watcher for each clock looks at it; return what each has told."""
    told = [Told() for _ in clocks]
    watchers = [LoopWatcher(each, clock=clock) for each, clock in zip(told, clocks, strict=True)]
    for watcher in watchers:
        watcher.start()
    try:
        await next_iteration()
        for clock in clocks:
            wait(clock)
    finally:
        for watcher in watchers:
            watcher.stop()
    return told


async def test_of_several_watchers_of_one_loop_one_logs_and_all_tell_their_instruments(
    caplog: pytest.LogCaptureFixture,
) -> None:
    times = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    told = await watch_together(Clock(*times), Clock(*times))
    await next_iteration()
    assert [len(each.seconds) for each in told] == [1, 1]
    assert len(caplog.records) == 1


async def test_of_several_watchers_of_one_loop_the_one_that_notices_logs(caplog: pytest.LogCaptureFixture) -> None:
    await watch_together(Clock(0.0, 0.1, 0.2), Clock(0.0, 0.1, 0.2, 0.3, 0.4, 0.5))
    assert len(caplog.records) == 1


async def test_code_in_a_folder_whose_name_begins_like_that_of_plait_is_the_authors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = f"{Path(plait.__file__).parent}_rooms/rooms.py"
    names: dict[str, Any] = {}
    exec(compile("def work(clock):\n    while not clock.is_over.is_set():\n        pass", path, "exec"), names)
    assert await find_blocks(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, work=names["work"])
    (line,) = [each.getMessage() for each in caplog.records]
    assert "plait_rooms/rooms.py:" in line
    assert line.endswith(": use asyncio.to_thread")


@pytest.mark.parametrize(
    ("is_import", "place"), [(True, "the import of slow: import it when the server starts"), (False, "<library>:2")]
)
async def test_code_that_is_not_the_authors_is_named_by_the_import_or_by_its_line(
    is_import: bool, place: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    library: dict[str, Any] = {"left": clock.left}
    exec(compile("def work(_):\n    while len(left) > 1: pass", "<library>", "exec"), library)
    loader = SimpleNamespace(create_module=lambda _: None, exec_module=library["work"])
    finder = SimpleNamespace(find_spec=lambda name, *_: ModuleSpec(name, loader) if name == "slow" else None)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "slow", raising=False)
    watcher = LoopWatcher(Told(), clock=clock)
    watcher.start()
    try:
        await next_iteration()
        asyncio.get_running_loop().call_soon(import_module if is_import else library["work"], "slow")
        await next_iteration()
    finally:
        watcher.stop()
    (line,) = [each.getMessage() for each in caplog.records]
    assert line == f"code outside of turns blocks the server at {place}"


@pytest.mark.parametrize("times", [(0.0, 0.1, 0.2, 0.3), (0.0, 0.1, 0.2, 9.0, 9.1, 9.2), (0.0, 0.1, 9.0, 18.0, 27.0)])
async def test_nothing_is_told_before_it_is_late_or_when_the_watcher_was_late_itself(
    times: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    assert await find_blocks(*times) == []
    assert not caplog.records
