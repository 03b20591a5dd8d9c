"""Maps the members of a JSON object to the attributes of a Python object."""

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

__all__ = ["attributes"]


def attributes(value: object) -> Mapping[str, str] | None:
    """Return the attributes of a Struct or dataclass by their names in JSON; None for anything else."""
    cls: Any = type(value)
    return _attributes(cls)


@lru_cache(maxsize=1024)
def _attributes(cls: type[Any]) -> Mapping[str, str] | None:
    if issubclass(cls, msgspec.Struct):
        return dict(zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True))
    if dataclasses.is_dataclass(cls):
        return {field.name: field.name for field in dataclasses.fields(cls)}
    return None
