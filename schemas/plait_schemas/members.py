"""Maps the members of a JSON object to the attributes of a Python object."""

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from plait_schemas.models import allows_extra, is_model, is_root

__all__ = ["attributes", "find_attributes", "is_frozen"]


def attributes(value: object) -> Mapping[str, str] | None:
    """Return the attributes of an object with fields, by their names in JSON; None for any other value.

    These are Structs, dataclasses, classes of attrs, and Pydantic models that have no other members than their fields.
    """
    cls: Any = type(value)
    return find_attributes(cls)


@lru_cache(maxsize=1024)
def find_attributes(cls: type[Any]) -> Mapping[str, str] | None:
    """Return the attributes of a class of such objects, by their names in JSON."""
    if issubclass(cls, msgspec.Struct):
        return dict(zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True))
    if dataclasses.is_dataclass(cls):
        return {field.name: field.name for field in dataclasses.fields(cls)}
    if hasattr(cls, "__attrs_attrs__"):
        return {field.name: field.name for field in cls.__attrs_attrs__ if field.name[0] != "_"}
    if is_model(cls) and not is_root(cls) and not allows_extra(cls):
        return {field.serialization_alias or name: name for name, field in cls.model_fields.items()}
    return None


def is_frozen(cls: Any) -> bool:
    """Tell whether the fields of a Struct, a dataclass or a class of attrs cannot be set."""
    if issubclass(cls, msgspec.Struct):
        return bool(cls.__struct_config__.frozen)
    if dataclasses.is_dataclass(cls):
        return bool(getattr(cls, "__dataclass_params__").frozen)  # noqa: B009 (no checker knows it)
    # Other classes are those of attrs; its older versions do not tell.
    return bool(getattr(getattr(cls, "__attrs_props__", None), "is_frozen", False))
