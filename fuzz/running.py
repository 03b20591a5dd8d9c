"""Runs fuzzers for some time, and says which input has failed."""

import time
from collections.abc import Callable
from random import Random
from typing import NamedTuple

__all__ = ["Failed", "Fuzzer", "mutate", "run"]

# The longest piece of an input that is printed.
_SHOWN = 2_000


class Fuzzer(NamedTuple):
    """Makes inputs from random numbers, and checks each; a check raises if something is wrong."""

    make: Callable[[Random], bytes]
    check: Callable[[bytes, Random], None]


class Failed(Exception):
    """A check has failed; the message has the seed and the input."""


def run(fuzzer: Fuzzer, *, seconds: float, seed: int, most: int | None = None) -> int:
    """Check inputs for some seconds, at most `most`; return how many. Raises Failed."""
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end and (most is None or count < most):
        chance = Random(seed + count)
        data = fuzzer.make(chance)
        try:
            fuzzer.check(data, chance)
        except Exception as error:
            raise Failed(f"seed {seed + count}: {data[:_SHOWN]!r} ({len(data)} bytes)") from error
        count += 1
    return count


def mutate(chance: Random, data: bytes, *, words: list[bytes]) -> bytes:
    """Change a few places of bytes: bits, removals, copies of their own parts, and `words`."""
    for _ in range(chance.choice([0, 1, 1, 2, 3, 8])):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice([0, 1, 2, 5, 50]))
        match chance.randrange(5):
            case 0:
                data = data[:at] + data[end:]
            case 1:
                data = data[:at] + chance.choice(words) + data[end:]
            case 2:
                data = data[:at] + data[at:end] * chance.choice([2, 3, 100]) + data[end:]
            case 3:
                data = data[:at] + chance.randbytes(end - at) + data[end:]
            case _:
                data = data[:at] + bytes(each ^ (1 << chance.randrange(8)) for each in data[at:end]) + data[end:]
    return data
