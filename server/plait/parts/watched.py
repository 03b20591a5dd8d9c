"""One value of a run, as objects that its agent holds and may change in place."""

from typing import Any, Final

from plait.parts.encoding import encode_named
from plait.parts.values_ops import Push
from plait_schemas.codec import decode_json, encode_json

__all__ = ["Watched", "is_mutable"]

_NOTHING: Final = object()
_SCALARS: Final = frozenset({str, int, float, bool, bytes, type(None)})


def is_mutable(value: object) -> bool:
    """Whether a value may be changed in place."""
    return type(value) not in _SCALARS


class Watched:
    """The objects of one value: the one `given` to `set`, and the one `shown` by `get`, which is plain JSON.

    They are the same object if the given one is plain JSON, too.
    """

    __slots__ = ("_given", "_shown", "is_default", "raw")

    def __init__(
        self, raw: bytes, *, given: object = _NOTHING, shown: object = _NOTHING, is_default: bool = False
    ) -> None:
        # Whether this is a default that was shown, not a value.
        self.is_default = is_default
        # The value as JSON, when the objects were last compared with it.
        self.raw = raw
        self._given = given
        self._shown = shown

    @property
    def has_two(self) -> bool:
        """Whether the shown object may differ from the given one."""
        return self._given is not _NOTHING and self._given is not self._shown

    def show(self) -> Any:
        """Return the value, always as the same object."""
        if self._shown is _NOTHING:
            value = decode_json(self.raw)
            is_plain = isinstance(self._given, list | dict) and self._given == value
            self._shown = self._given if is_plain else value
        return self._shown

    def note(self, key: str) -> bytes | None:
        """Return the value as JSON if it was changed in place since the last call. Raises TypeError or ValueError."""
        for each in self._objects():
            if each is not _NOTHING and (raw := encode_named(key, each)) != self.raw:
                self.become(raw, by=each)
                return raw
        return None

    def become(self, raw: bytes, *, by: object = _NOTHING) -> None:
        """Apply a value to all objects except `by`; forget the objects that cannot take it."""
        if raw == self.raw:
            return
        self.raw = raw
        if self._given is not by and not _replace(self._given, raw):
            self._given = _NOTHING
        if self._shown is not by and self._shown is not self._given and not _replace(self._shown, raw):
            self._shown = _NOTHING

    def push(self, op: Push) -> None:
        """Append to the objects. Raises TypeError if they are not lists."""
        self.raw = op.append(self.raw)
        for each in self._objects():
            if isinstance(each, list):
                each.append(decode_json(op.value))
                if op.most is not None:
                    del each[: -op.most]
        if not isinstance(self._given, list):
            self._given = _NOTHING

    def _objects(self) -> tuple[object, ...]:
        return (self._given, self._shown) if self.has_two else (self._shown,)


def _replace(shown: object, raw: bytes) -> bool:
    """Make a list or object equal to a value, keeping equal elements; return whether that is possible."""
    match shown, decode_json(raw):
        case list(), list() as value:
            shown[:] = [*map(_choose, shown, value), *value[len(shown) :]]
        case dict(), dict() as value:
            chosen = {key: _choose(shown[key], each) if key in shown else each for key, each in value.items()}
            shown.clear()
            shown.update(chosen)
        case _:
            return False
    return True


def _choose(shown: Any, value: Any) -> Any:
    return shown if encode_json(shown) == encode_json(value) else value
