"""The state of a thread at an earlier version."""

from typing import Any

from plait.actor.kind import Kind
from plait.errors import InvalidState
from plait.state.change_log import ChangeLog
from plait.state.types import parse_json_error
from plait_schemas.codec import NOT_JSON

__all__ = ["check_type_at", "read_past"]


async def read_past(log: ChangeLog, kind: Kind, version: int) -> Any:
    """Return the state at a version. Raises NotFound and InvalidState."""
    data = await log.json(version)
    if not kind.state_type.is_plain:
        await check_type_at(log, kind, version)
    try:
        return kind.state_type.decode(data)
    except NOT_JSON as error:
        message, where = parse_json_error(error)
        raise InvalidState(f"version {version} is of another type: {message}", path=where) from None


async def check_type_at(log: ChangeLog, kind: Kind, version: int) -> None:
    """Raise InvalidState for a version from before a migration. Does not read the log of a kind without migrations."""
    if kind.state_version > 1 and await log.has_migration_after(version):
        raise InvalidState(f"version {version} is from before a migration, when the state had another type")
