"""How many random schedules tests play: five each, always the same; `make soak` plays others, and many more."""

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

import pytest
from _pytest.mark import ParameterSet

__all__ = ["SEED", "TIMES", "in_soak", "play_seeds", "schedules"]

# How many times as many schedules as `make test` are played.
TIMES: Final = int(os.environ.get("PLAIT_SOAK") or 1)
# The seed of a test's first schedule.
SEED: Final = int(os.environ.get("PLAIT_SEED") or 0)


def schedules(usual: int = 5) -> int:
    """Return how many schedules to play where `make test` plays the usual number."""
    return usual * TIMES


def in_soak(*cases: Sequence[object]) -> list[ParameterSet]:
    """Return cases of a parametrized test that `make test` leaves out, and `make soak` plays."""
    return [pytest.param(*each, marks=pytest.mark.release) for each in cases]


def play_seeds(usual: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have one test play many schedules, each with a `seed`; fixtures and other parameters are shared by all."""

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(test)

        @wraps(test)
        def play(**arguments: Any) -> None:
            for seed in range(SEED, SEED + schedules(usual)):
                with _naming(seed):
                    test(**arguments, seed=seed)

        @wraps(test)
        async def play_async(**arguments: Any) -> None:
            for seed in range(SEED, SEED + schedules(usual)):
                with _naming(seed):
                    await test(**arguments, seed=seed)

        played: Any = play_async if inspect.iscoroutinefunction(test) else play
        left = [each for name, each in signature.parameters.items() if name != "seed"]
        played.__signature__ = signature.replace(parameters=left)
        marked: Callable[..., Any] = pytest.mark.soak(played)
        return marked

    return decorate


@contextmanager
def _naming(seed: int) -> Iterator[None]:
    """Add the seed to an error."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"with seed={seed}")
        raise
