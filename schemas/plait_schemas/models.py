"""Pydantic models in JSON: how they are written, validated and described. Pydantic itself is never imported."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from inspect import signature
from itertools import chain
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, inspect

__all__ = [
    "MODEL_TIMES",
    "ModelError",
    "allows_extra",
    "check_type",
    "dump",
    "dump_python",
    "expand",
    "fields",
    "find_input_names",
    "find_times",
    "inner_types",
    "is_model",
    "is_root",
    "types_in",
    "validate",
]

MODEL_TIMES: Final = 10
"""The weight of JSON of a model, as a multiple: validating takes longer than decoding, and errors take memory."""

_decode: Final = msgspec.json.Decoder().decode
_check: Final = msgspec.json.Decoder(msgspec.Raw).decode

# With more errors, none of them is told, as Pydantic makes all of them at once.
_MOST_ERRORS: Final = 1_000
_WHOLE: Final = {"polymorphic_serialization": True}


class ModelError(ValueError):
    """Why JSON is not valid for a model: the first error, and the parts of the JSON pointer to its place."""

    def __init__(self, message: str, parts: Sequence[str]) -> None:
        super().__init__(f"{message}, at /{'/'.join(parts)}" if parts else message)
        self.message = message
        self.parts = parts


def is_model(type_: Any) -> bool:
    """Tell whether a type is a Pydantic model; a dataclass of Pydantic's is none."""
    return isinstance(type_, type) and hasattr(type_, "model_validate_json")


# Values


def dump(value: Any, *, is_whole: bool = False) -> msgspec.Raw:
    """Return a model as JSON that it can read again: by its aliases, and without computed fields.

    With `is_whole`, models in it are written with the fields that their class has in addition to the declared one.

    A text of a class of its own, as LangChain and MarkupSafe make them, is a text. Raises TypeError for anything else.
    """
    if isinstance(value, str):
        return msgspec.Raw(msgspec.json.encode(str.__str__(value)))
    if not is_model(type(value)):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    model: Any = type(value)
    options = _WHOLE if is_whole and _can_be_whole(model) else {}
    data = value.model_dump_json(by_alias=True, round_trip=True, warnings=False, **options).encode()
    if b"NaN" in data or b"Infinity" in data:  # A model may be configured to write numbers that JSON does not have.
        _check(data)
    return msgspec.Raw(data)


@lru_cache(maxsize=1024)
def _can_be_whole(model: Any) -> bool:
    """Tell whether this version of Pydantic can write the fields of subclasses."""
    return _WHOLE.keys() <= signature(model.model_dump_json).parameters.keys()


def dump_python(value: Any) -> Any:
    """Return a model as dicts and lists, with the numbers that JSON does not have; JSON may have null for them."""
    model: Any = type(value)
    return _lenient_serializer(model).to_python(value, mode="json", by_alias=True, round_trip=True)


def fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values of a model, with their names in JSON; the name of a root value is empty."""
    names = {name: field.serialization_alias or name for name, field in type(value).model_fields.items()}
    for name, each in chain(vars(value).items(), (value.__pydantic_extra__ or {}).items()):
        yield "" if is_root(type(value)) else names.get(name, name), each


def validate(model: Any, data: bytes) -> Any:
    """Read a model from JSON. Raises ModelError."""
    found = _try_to_validate(model, data)
    if type(found) is not ModelError:
        return found
    try:
        raise found
    finally:
        del found  # An error that refers to the frame in which it was raised stays in memory for long.


def _try_to_validate(model: Any, data: bytes) -> Any:
    """Read a model from JSON; return a ModelError if it is invalid, without the errors of Pydantic."""
    try:
        return model.model_validate_json(data)
    except ValueError as failure:
        error: Any = failure
        if not hasattr(error, "error_count"):
            raise
        if (count := error.error_count()) > _MOST_ERRORS:
            return ModelError(f"it has {count} errors", ())
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        del error
    parts = _find_place(first["loc"], data, is_missing=first["type"] == "missing")
    return ModelError(first["msg"], parts)


def _find_place(location: Sequence[str | int], data: bytes, *, is_missing: bool) -> list[str]:
    """Return the parts of an error's location that are members in the JSON, without those such as the tag of a union.

    The last part for a missing field is its name.
    """
    try:
        at: Any = _decode(data)
    except msgspec.DecodeError:
        return []
    parts: list[str] = []
    for index, part in enumerate(location, 1):
        if isinstance(at, dict) and str(part) in at:
            at = at[str(part)]
        elif isinstance(at, list) and isinstance(part, int) and part < len(at):
            at = at[part]
        elif not (is_missing and index == len(location)):
            continue
        parts.append(str(part))
    return parts


# Types


def expand(info: inspect.Type) -> inspect.Type:
    """Return a model as a dataclass with its fields, or as its root type; any other type as it is.

    A root type that contains itself, without a field in between, is any type.
    """
    return _describe(info.cls) if isinstance(info, inspect.CustomType) and is_model(info.cls) else info


def is_root(type_: Any) -> bool:
    """Tell whether a type is a model of one value, which has no fields in JSON."""
    return is_model(type_) and getattr(type_, "__pydantic_root_model__", False)


def allows_extra(model: Any) -> bool:
    """Tell whether a model keeps members for which it has no field."""
    return bool(model.model_config.get("extra") == "allow")


def find_input_names(model: Any) -> Iterator[str]:
    """Yield the names by which a model reads its fields."""
    return chain.from_iterable(_input_names(model, *item) for item in model.model_fields.items())


def find_times(type_: Any) -> int:
    """Return how much JSON of a type weighs in comparison with JSON without one.

    A value that fits no model of a union has the errors of all of them.
    """
    try:
        parts = [*types_in(inspect.type_info(type_), expands=True)]
    except (TypeError, NameError, NotImplementedError):
        return 1  # Decoding the type raises the error.
    is_plain = not any(is_model(getattr(each, "cls", None)) for each in parts)
    return 1 if is_plain else MODEL_TIMES * max(map(_count_models, parts))


def _count_models(info: inspect.Type) -> int:
    models = [*filter(is_model, [getattr(each, "cls", None) for each in inner_types(info)])]
    return max(len(models), 1) if isinstance(info, inspect.UnionType) else 1


def check_type(type_: Any) -> None:
    """Raise TypeError for a type whose values would not all be written to JSON, or be read without their validators."""
    try:
        info = inspect.type_info(type_)
        outside, inside = [*types_in(info)], [*types_in(info, expands=True)]
    except (TypeError, NameError, NotImplementedError):
        return  # Decoding the type raises the error.
    for why in (*map(_explain_dataclass, outside), *map(_explain_loss, inside)):
        if why is not None:
            raise TypeError(why)


def _explain_dataclass(info: inspect.Type) -> str | None:
    """Return why msgspec cannot be given a dataclass or a class of attrs; within a model, Pydantic reads it."""
    if not isinstance(info, inspect.DataclassType):
        return None
    name = info.cls.__name__
    if hasattr(info.cls, "__pydantic_validator__"):
        return (
            f"{name} is a dataclass of Pydantic's, whose validators would not run: "
            "make it a subclass of pydantic.BaseModel"
        )
    private = next((field.name for field in info.fields if field.name.startswith("_")), None)
    if private is not None and hasattr(info.cls, "__attrs_attrs__"):
        return f"{name}.{private} would be lost, as private fields of attrs are not written to JSON: rename it"
    return None


def _explain_loss(info: inspect.Type) -> str | None:
    """Return which value a model would not write to JSON, or not read again."""
    cls: Any = getattr(info, "cls", None)
    if hasattr(cls, "get_secret_value"):
        return f"{cls.__name__} would be lost, as it is written to JSON as asterisks: use str or bytes"
    for name, field in cls.model_fields.items() if is_model(cls) else ():
        if field.exclude:
            return f"{cls.__name__}.{name} would be lost, as exclude=True leaves it out of JSON: remove that"
        if (written := field.serialization_alias or name) not in _input_names(cls, name, field):
            return (
                f"{cls.__name__}.{name} would be lost, as it is written to JSON as {written!r}, but not read by that "
                "name: give it the same alias for both"
            )
    return None


def _input_names(model: Any, name: str, field: Any) -> list[str]:
    """Return the names by which a model reads a field."""
    config, alias = model.model_config, field.validation_alias
    names = [each for each in getattr(alias, "choices", (alias,)) if isinstance(each, str)]
    if config.get("validate_by_alias") is False:
        names = []
    if alias is None or config.get("populate_by_name") or config.get("validate_by_name"):
        names.append(name)
    return names


def inner_types(info: inspect.Type) -> list[inspect.Type]:
    """Return the types that a type consists of: of its fields, its elements or its alternatives."""
    match info:
        case inspect.Metadata(type=inner) | inspect.CollectionType(item_type=inner):
            return [inner]
        case inspect.DictType(key_type=key, value_type=value):
            return [key, value]
        case inspect.TupleType(item_types=types) | inspect.UnionType(types=types):
            return [*types]
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() | inspect.NamedTupleType():
            return [field.type for field in info.fields]
        case _:
            return []


def types_in(info: inspect.Type, *, expands: bool = False) -> Iterator[inspect.Type]:
    """Yield a type and all types in it, each class once; the types in models only if it `expands` them."""
    waiting, seen = [info], set[Any]()
    while waiting:
        each = expand(waiting.pop()) if expands else waiting.pop()
        cls = getattr(each, "cls", None)
        if cls is None or cls not in seen:
            seen.add(cls)
            waiting += inner_types(each)
            yield each


@lru_cache(maxsize=1024)
def _lenient_serializer(model: Any) -> Any:
    """Return a serializer that keeps NaN also in fields of any type, where that of the model makes it None."""
    model.model_rebuild()  # The building of the model may be deferred.
    return type(model.__pydantic_serializer__)(model.__pydantic_core_schema__, {"ser_json_inf_nan": "constants"})


@lru_cache(maxsize=1024)
def _describe(model: Any) -> inspect.Type:
    model.model_rebuild()  # The types in it may have been defined after it.
    if is_root(model):
        root = _describe_root(model)
        return inspect.AnyType() if _leads_to(model, root, set()) else root
    return inspect.DataclassType(model, tuple(_describe_field(*item) for item in model.model_fields.items()))


def _describe_root(model: Any) -> inspect.Type:
    return _describe_annotation(model.model_fields["root"])


def _describe_field(name: str, field: Any) -> inspect.Field:
    is_required = field.is_required()
    return inspect.Field(
        name,
        field.serialization_alias or name,
        _describe_annotation(field),
        is_required,
        # Only whether there is a default matters.
        default=NODEFAULT if is_required else None,
    )


def _describe_annotation(field: Any) -> inspect.Type:
    type_ = field.annotation
    for each in field.metadata:
        if isinstance(each, msgspec.Meta):
            type_ = Annotated[type_, each]
    if field.description:
        type_ = Annotated[type_, msgspec.Meta(description=field.description)]
    return _describe_type(type_)


def _describe_type(type_: Any) -> inspect.Type:
    """Return a type, also one that msgspec refuses to decode, such as a union of models."""
    try:
        return inspect.type_info(type_)
    except (TypeError, NameError, NotImplementedError):
        pass
    origin, arguments = get_origin(type_), [_describe_type(each) for each in get_args(type_)]
    if origin is Annotated:
        return arguments[0]
    if origin in (Union, UnionType):
        return inspect.UnionType(tuple(arguments))
    if origin is list:
        return inspect.ListType(arguments[0])
    if origin is dict:
        return inspect.DictType(key_type=arguments[0], value_type=arguments[1])
    return inspect.AnyType()


def _leads_to(model: Any, info: inspect.Type, seen: set[Any]) -> bool:
    """Tell whether a type contains a root model without a field in between."""
    if isinstance(info, inspect.CustomType) and is_root(info.cls):
        if info.cls is model or info.cls in seen:
            return info.cls is model
        seen.add(info.cls)
        return _leads_to(model, _describe_root(info.cls), seen)
    return not hasattr(info, "fields") and any(_leads_to(model, each, seen) for each in inner_types(info))
