"""How many random schedules tests play: ten each, always the same; `make soak` plays others, and many times as many."""

import os
from typing import Final

__all__ = ["SEED", "TIMES", "schedules"]

# How many times as many schedules as `make test` are played.
TIMES: Final = int(os.environ.get("PLAIT_SOAK") or 1)
# The seed of a test's first schedule.
SEED: Final = int(os.environ.get("PLAIT_SEED") or 0)


def schedules(usual: int = 10) -> int:
    """Return how many schedules to play where `make test` plays the usual number."""
    return usual * TIMES
