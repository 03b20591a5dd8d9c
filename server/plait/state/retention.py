"""How much of a thread's history is kept."""

from typing import Final

import msgspec

__all__ = ["DEFAULT_RETENTION", "Retention"]


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """What of a thread's log is kept, for resuming, undo and going back: a change that every bound given here allows.

    Bounds are kept to roughly: the log is shortened when a snapshot is written, and only up to an older snapshot.
    Raises ValueError for a bound that is not positive, and TypeError for one that is no number.
    """

    # How many changes, how many seconds back, and how many bytes of operations.
    changes: int | None = 1000
    age: float | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            bound = getattr(self, name)
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int | float)):
                raise TypeError(f"Retention({name}={bound!r}): a bound is a number, or None for none")
            if bound is not None and not bound > 0:
                raise ValueError(f"Retention({name}={bound}): a bound is positive, or None for none")


DEFAULT_RETENTION: Final = Retention()
