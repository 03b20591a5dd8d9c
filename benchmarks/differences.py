"""The time to make a change, found by comparing states or recorded in a draft, in this process, on one core."""

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonpatch  # pyright: ignore[reportMissingTypeStubs]
import msgspec

from benchmarks.boards import SIZES, Board, FrozenBoard, document, make_frozen, touch_cards, touch_frozen
from benchmarks.contest import Effort, turns
from plait import Plait
from plait_schemas.codec import decode_json, encode_json
from plait_schemas.diff import diff
from plait_schemas.text_patch import TextDiff

__all__ = ["ENCODE_FROZEN", "SET_FROZEN", "Timing", "differences"]

# Processor seconds of one measurement, as a part of the seconds of a run.
PART = 0.1
# Changes that a thread makes before its cost is looked at.
STEP = 10

Measure = Callable[[float], float]


class Timing(msgspec.Struct):
    """Microseconds of processor time, by size and round."""

    title: str
    by_size: dict[int, list[float]]
    # The title of the timing that it should stay below.
    below: str | None = None

    def median(self, size: int) -> float:
        """The median of the rounds."""
        return statistics.median(self.by_size[size])


ENCODE_FROZEN = "encode the whole, frozen Structs"
SET_FROZEN = "set_state, frozen Structs"


def differences(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[Timing]:
    """Everything at every size; one card gets another text."""
    timings: dict[str, Timing] = {}
    seconds = effort.seconds * PART
    for size in SIZES:
        measures = list_diffs(size) | list_changes(folder, size)
        for turn, title in turns(list(measures), effort.rounds):
            below = ENCODE_FROZEN if title == SET_FROZEN else None
            timing = timings.setdefault(title, Timing(title, {}, below))
            spent = measures[title](seconds) * 1e6
            timing.by_size.setdefault(size, []).append(spent)
            tell(f"{size:,} bytes round {turn + 1}: {title} {spent:,.1f} µs")
    return list(timings.values())


def list_diffs(size: int) -> dict[str, Measure]:
    """The functions that compare or encode two given states."""
    old, structs = document(size), make_frozen(size)
    new, new_structs = touch_cards(old, 1, 1, 50), touch_frozen(structs, 1, 1, 50)
    copy = decode_json(encode_json(new))
    # Each text in turn is the new one, as in a thread, so that the parts of the last one are cached.
    texts, pairs = (
        TextDiff(),
        itertools.cycle([(encode_json(old), encode_json(new)), (encode_json(new), encode_json(old))]),
    )
    make_patch: Callable[[Any, Any], object] = jsonpatch.make_patch
    return {
        "diff, dicts that share the rest": time_calls(lambda: diff(old, new)),
        "diff, dicts, a decoded copy": time_calls(lambda: diff(old, copy)),
        "diff, frozen Structs that share the rest": time_calls(lambda: diff(structs, new_structs)),
        "TextDiff, two JSON texts": time_calls(lambda: texts.diff(*next(pairs), lambda text, _: decode_json(text))),
        "jsonpatch.make_patch, dicts that share the rest": time_calls(lambda: make_patch(old, new)),
        "jsonpatch.make_patch, a decoded copy": time_calls(lambda: make_patch(old, copy)),
        "encode the whole, dicts": time_calls(lambda: msgspec.json.encode(old)),
        ENCODE_FROZEN: time_calls(lambda: msgspec.json.encode(structs)),
    }


def time_calls(function: Callable[[], object]) -> Measure:
    """A function that calls another one for some seconds, and returns the processor seconds of one call."""

    def measure(seconds: float) -> float:
        function()
        calls, start = 0, time.thread_time()
        while (spent := time.thread_time() - start) < seconds or not calls:
            function()
            calls += 1
        return spent / calls

    return measure


def list_changes(folder: Path, size: int) -> dict[str, Measure]:
    """The ways in which a thread makes a change, measured until the change waits for its commit."""
    numbers = itertools.count()

    def cost(kind: type[Board] | type[FrozenBoard], method: str) -> Measure:
        def measure(seconds: float) -> float:
            return asyncio.run(spend(kind, method, seconds))

        return measure

    async def spend(kind: type[Board] | type[FrozenBoard], method: str, seconds: float) -> float:
        store = f"sqlite:///{folder}/differences.db"
        async with Plait(Board, FrozenBoard, store=store, limits=None) as app:
            thread: Any = app.thread(kind, f"{size}-{next(numbers)}")
            await thread.cost(method, 1, 50, 1)
            calls, spent = 0, 0.0
            while spent < seconds:
                spent += await thread.cost(method, 1, 50, STEP)
                calls += STEP
            return spent / calls

    return {
        "edit(), dicts": cost(Board, "edit"),
        "set_state, dicts": cost(Board, "set"),
        SET_FROZEN: cost(FrozenBoard, "set"),
    }
