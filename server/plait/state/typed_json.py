"""Decodes JSON of clients as the types of an author, within the limits."""

import logging
from typing import Any

import msgspec

from plait.errors import InvalidArguments, escape_traceback
from plait.limits import Limits, check_json
from plait.state.types import parse_json_error
from plait_schemas.codec import NOT_JSON, make_decoder
from plait_schemas.models import find_times

__all__ = ["TypedJson"]

log = logging.getLogger("plait.rpc")
log.addFilter(escape_traceback)


class TypedJson:
    """The decoder of one type. Raises TypeError for a type that cannot be decoded."""

    __slots__ = ("_decode", "_times")

    def __init__(self, type_: Any) -> None:
        self._decode = make_decoder(type_)
        # The weight of the type, as a multiple of JSON without one.
        self._times = find_times(type_)

    def decode(self, what: str, raw: msgspec.Raw, limits: Limits, *, path: str = "") -> Any:
        """Return the value of JSON; `what` and `path` name it in errors. Raises InvalidArguments and TooLarge."""
        if self._times > 1 or len(raw) > limits.depth:  # Shorter JSON is not nested deeper.
            check_json(what, raw, limits, self._times, path=path)
        try:
            return self._decode(raw)
        except NOT_JSON as error:
            message, place = parse_json_error(error)
            raise InvalidArguments(f"{what}{place}: {message}", path=path + place) from None
        except BaseException as error:  # The type may run the author's code, such as `__post_init__`.
            log.error("the type of %s raised %s", what, type(error).__name__, exc_info=error)
            raise InvalidArguments(f"{what}: refused by its type", path=path) from None
