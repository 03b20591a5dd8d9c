"""The files that belong to messages: those below `attachments/` that an attachment names by its `path`."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from plait.actor.actor import Actor
from plait.parts.files.paths import clean_path, is_below
from plait.parts.part import Part

__all__ = ["ATTACHMENTS", "find_attached", "unlink_attachments"]

ATTACHMENTS: Final = "attachments"
"""The directory of the files that belong to messages."""


def find_attached(attachments: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the paths of the files that attachments name."""
    paths = [_clean(each.get("path")) for each in attachments]
    return [path for path in paths if path is not None and is_below(path, ATTACHMENTS)]


def unlink_attachments(actor: Actor, attachments: Iterable[Mapping[str, Any]]) -> None:
    """Remove the files that attachments name."""
    if paths := find_attached(attachments):
        for part in actor.parts or ():
            if isinstance(part, Part):
                part.unlink_files(actor, paths)


def _clean(path: object) -> str | None:
    try:
        return clean_path(path) if isinstance(path, str) else None
    except ValueError:
        return None
