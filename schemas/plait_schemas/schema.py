"""The JSON Schema of a state, its hash, and whether a client built for an older schema is compatible with it."""

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from plait_schemas.models import is_model

__all__ = ["components", "is_additive", "schema_hash", "schema_of"]

# Keywords that describe a schema and do not restrict its values.
_ANNOTATIONS: Final = frozenset({"title", "description", "default", "examples", "discriminator"})
_SCHEMAS_BY_NAME: Final = frozenset({"properties", "$defs"})
# Pydantic may refer to a definition by an `allOf` with one element.
_OPTIONS: Final = frozenset({"anyOf", "oneOf", "allOf"})
_SCHEMAS_IN_ORDER: Final = _OPTIONS | {"prefixItems"}
_SCHEMA: Final = frozenset({"items", "additionalProperties", "propertyNames"})
# The keywords that are compared part by part; all others must be equal.
_COMPARED: Final = frozenset({"properties", "required", "additionalProperties", "items", "prefixItems"})

_encode = msgspec.json.Encoder(order="sorted").encode


def schema_of(type_: Any) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a type's JSON. Raises TypeError when it has none."""
    (schema,), named = components([type_])
    return {**schema, "$defs": named} if named else schema


def components(types: Iterable[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the JSON Schema of each type, and the `$defs` that these refer to. Raises TypeError."""
    types = list(types)
    schemas, named = _describe(types, "{model}")
    if len(found := dict(named)) < len(named) and any(found[name] != each for name, each in named):
        schemas, named = _describe(types, "{cls.__module__}.{cls.__qualname__}.{model}")
    return schemas, dict(named)


def _describe(types: list[Any], names: str) -> tuple[list[dict[str, Any]], list[tuple[str, Any]]]:
    """Return the JSON Schema of each type, and those that they refer to; in a model, these have names of a form."""
    inner: list[tuple[str, Any]] = []

    def describe_model(cls: Any) -> dict[str, Any]:
        if not is_model(cls):
            raise NotImplementedError
        form = names.format(cls=cls, model="{model}")
        try:
            schema: dict[str, Any] = cls.model_json_schema(ref_template=f"#/$defs/{form}")
        except RuntimeError as error:
            raise TypeError(str(error)) from None
        inner.extend((form.format(model=name), each) for name, each in schema.pop("$defs", {}).items())
        return schema

    schemas, named = msgspec.json.schema_components(types, schema_hook=describe_model)
    return [*schemas], [*inner, *named.items()]


def schema_hash(schema: dict[str, Any]) -> str:
    """Return a schema's hash: 16 hex digits. Schemas that differ only in order, titles and comments share it."""
    return hashlib.sha256(_encode(_bare(schema))).hexdigest()[:16]


def is_additive(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Tell whether a client that was built for `old` can read and write states of `new`.

    The new schema may only add optional properties. It may not remove or rename a property, make one required, or make
    one optional, as the client relies on it. All other values must be the same: with fewer, the client could write a
    value that is refused; with more, it could read one that it does not know. The names of types do not matter.
    """
    old, new = _bare(old), _bare(new)
    return _Comparison(old.pop("$defs", {}), new.pop("$defs", {})).compare(old, new)


def _bare(schema: Any) -> Any:
    """Return a schema without its annotations, its lists in a fixed order."""
    if not isinstance(schema, dict):
        return schema
    return {key: _bare_value(key, value) for key, value in schema.items() if key not in _ANNOTATIONS}


def _bare_value(key: str, value: Any) -> Any:
    if key in _SCHEMAS_BY_NAME:
        return {name: _bare(schema) for name, schema in value.items()}
    if key in _SCHEMAS_IN_ORDER:
        return [_bare(schema) for schema in value]
    if key in _SCHEMA:
        return _bare(value)
    return sorted(value) if key == "required" else value


class _Comparison:
    """Compares schemas that refer to definitions, which may be recursive."""

    def __init__(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        self._old = old
        self._new = new
        # The pairs of definitions that were compared, and the incompatible ones: a pair counts as compatible until a
        # difference is found.
        self._met: dict[tuple[str, str], None] = {}
        self._broken: set[tuple[str, str]] = set()

    def compare(self, old: Any, new: Any) -> bool:
        """Tell whether two schemas are compatible, with all the definitions that they refer to."""
        while True:
            result = self._fits(old, new)
            known = len(self._met), len(self._broken)
            # The definitions that others refer to were found last: check them first.
            for a, b in reversed(list(self._met)):
                if (a, b) not in self._broken and not self._fits(self._old[a], self._new[b]):
                    self._broken.add((a, b))
            if known == (len(self._met), len(self._broken)):
                return result

    def _fits(self, old: Any, new: Any) -> bool:
        """Tell whether each alternative of one schema is compatible with one of the other."""
        olds, news = _alternatives(old), _alternatives(new)
        return all(any(self._option_fits(before, after) for after in news) for before in olds) and all(
            any(self._option_fits(before, after) for before in olds) for after in news
        )

    def _option_fits(self, old: Any, new: Any) -> bool:
        if not isinstance(old, dict) or not isinstance(new, dict):
            return old is new
        if "$ref" in old and "$ref" in new:
            self._met[pair := (_find_referred(old), _find_referred(new))] = None
            return pair not in self._broken and _drop_keywords(old, {"$ref"}) == _drop_keywords(new, {"$ref"})
        old, new = _resolve(old, self._old), _resolve(new, self._new)
        return (
            _drop_keywords(old, _COMPARED) == _drop_keywords(new, _COMPARED)
            and self._parts_fit(old, new, "additionalProperties")
            and self._parts_fit(old, new, "items")
            and self._tuple_fits(old.get("prefixItems", ()), new.get("prefixItems", ()))
            and self._properties_fit(old, new)
        )

    def _parts_fit(self, old: dict[str, Any], new: dict[str, Any], keyword: str) -> bool:
        if keyword not in old and keyword not in new:
            return True
        return self._fits(old.get(keyword, {}), new.get(keyword, {}))

    def _tuple_fits(self, old: Any, new: Any) -> bool:
        return len(old) == len(new) and all(map(self._fits, old, new))

    def _properties_fit(self, old: dict[str, Any], new: dict[str, Any]) -> bool:
        before, after = old.get("properties"), new.get("properties")
        if before is None or after is None:
            return before is after
        is_closed = old.get("additionalProperties") is False
        return (
            old.get("required") == new.get("required")
            and before.keys() <= after.keys()
            and not (is_closed and before.keys() < after.keys())
            and all(self._fits(schema, after[name]) for name, schema in before.items())
        )


def _alternatives(schema: Any) -> list[Any]:
    if isinstance(schema, dict) and len(schema) == 1 and schema.keys() <= _OPTIONS:
        return [each for options in schema.values() for option in options for each in _alternatives(option)]
    return [schema]


def _find_referred(schema: dict[str, Any]) -> str:
    name: str = schema["$ref"].removeprefix("#/$defs/")
    return name


def _resolve(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    return {**definitions[_find_referred(schema)], **_drop_keywords(schema, {"$ref"})} if "$ref" in schema else schema


def _drop_keywords(schema: dict[str, Any], keywords: frozenset[str] | set[str]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in keywords}
