"""The files that belong to messages: those below `attachments/` that an attachment names by its `path`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from plait.actor.actor import Actor
from plait.parts.files.paths import clean_path, is_below
from plait.parts.part import Part

__all__ = ["ATTACHMENTS", "unlink_attachments"]

ATTACHMENTS: Final = "attachments"
"""The directory of the files that belong to messages."""


class Attached(Protocol):
    """A message with attachments."""

    @property
    def attachments(self) -> Sequence[Mapping[str, Any]]: ...


def unlink_attachments(actor: Actor, messages: Iterable[Attached]) -> None:
    """Remove the files that belong to messages."""
    named = [each.get("path") for message in messages for each in message.attachments]
    paths = [path for path in map(_clean, named) if path is not None and is_below(path, ATTACHMENTS)]
    if paths:
        for part in actor.parts or ():
            if isinstance(part, Part):
                part.unlink_files(actor, paths)


def _clean(path: object) -> str | None:
    try:
        return clean_path(path) if isinstance(path, str) else None
    except ValueError:
        return None
