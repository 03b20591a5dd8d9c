"""A state as its user wants it."""

from typing import Any, Generic, TypeVar, cast

import msgspec

__all__ = ["View"]

S = TypeVar("S")


class View(Generic[S]):
    """Makes a client's type of JSON values, once for the same object."""

    def __init__(self, state_type: Any) -> None:
        self._type = state_type
        self._document: Any = None
        self._state: Any = None

    def __call__(self, document: Any) -> S:
        """Return the state that `document` is. Raises msgspec.ValidationError."""
        if self._document is not document:
            self._state = self.convert(document)
            self._document = document
        return cast(S, self._state)

    def takes(self, document: Any) -> bool:
        """Return whether `document` is a state of the type."""
        try:
            self(document)
        except msgspec.ValidationError:
            return False
        return True

    def convert(self, document: Any) -> S:
        """Return the state that `document` is, each time another object."""
        if document is None or self._type is Any:
            return cast(S, document)
        return cast(S, msgspec.convert(document, self._type, str_keys=True))
