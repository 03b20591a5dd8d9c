"""Checks whether a client that was built for an earlier schema of a state is compatible with the current one."""

from collections.abc import Mapping

import msgspec

from plait.errors import Outdated
from plait.state.types import StateType
from plait.store.protocol import Store
from plait_schemas.codec import decode_json, encode_json
from plait_schemas.schema import is_additive, schema_hash, schema_of

__all__ = ["Compatibility"]


class Compatibility:
    """The current schemas of an app's states, compared with the earlier ones in its store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # By kind: the schema and its hash. A state that may be any JSON has no schema.
        self._current: dict[str, tuple[dict[str, object], str]] = {}

    async def remember(self, types: Mapping[str, StateType]) -> None:
        """Store the current schemas, by kind. Raises StoreError."""
        for kind, state_type in types.items():
            if state_type.is_plain:
                continue
            try:
                schema = schema_of(state_type.type)
            except (TypeError, msgspec.MsgspecError):
                continue  # msgspec decodes the type, but cannot describe it: no client was built for a schema of it.
            self._current[kind] = schema, schema_hash(schema)
            await self._store.add_schema(kind, schema_hash(schema), encode_json(schema))

    async def check(self, kind: str, hash: str | None) -> None:
        """Raise Outdated if the current schema is not compatible with the client's schema, which has this hash."""
        current = self._current.get(kind)
        if hash is None or current is None or hash == current[1]:
            return
        older = await self._store.schema(kind, hash)
        if older is None or not is_additive(decode_json(older), current[0]):
            raise Outdated(f"the client was built for another schema of {kind}: reload or update it")
