"""The bounds of a thread's history."""

from typing import Final

import msgspec

__all__ = ["DEFAULT_RETENTION", "Retention"]


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a thread's log, for resuming, undo and earlier versions. Changes within all bounds are kept.

    The bounds are approximate: the log is shortened when a snapshot is written, and only up to an older snapshot.
    Raises ValueError if a bound is not positive, and TypeError if it is not a number.
    """

    # The number of changes, their age in seconds, and the bytes of their operations; None for no bound.
    changes: int | None = 1000
    age: float | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            bound = getattr(self, name)
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int | float)):
                raise TypeError(f"Retention({name}={bound!r}): must be a number, or None for no bound")
            if bound is not None and not bound > 0:
                raise ValueError(f"Retention({name}={bound}): must be above 0, or None for no bound")


DEFAULT_RETENTION: Final = Retention()
