"""Copies files of one thread to another of its family."""

from collections.abc import Iterable
from contextlib import aclosing
from typing import NamedTuple

from plait.actor.actor import Actor
from plait.errors import NotFound
from plait.parts.family.rows import find_key
from plait.parts.files.file import File, Upload
from plait.parts.files.thread_files import Files
from plait.parts.part import find_part_of

__all__ = ["Copied", "fetch_files", "put_file"]


class Copied(NamedTuple):
    """The content of a file of another thread, received by this one."""

    file: File
    upload: Upload


async def fetch_files(actor: Actor, owner: str, paths: Iterable[str]) -> dict[str, Copied]:
    """Receive files that another thread has, by their paths; one that it no longer has is reported.

    Raises NotFound if one of the threads has no files, and what `Files.receive` raises.
    """
    key = find_key(owner)
    cls = actor.host.find_class(key.kind)
    mine, theirs = find_part_of(actor.kind.cls, Files), find_part_of(cls, Files)
    if mine is None or theirs is None:
        raise NotFound(f"{owner} has no files for {actor.key}, which must have Files, too")
    handle = getattr(actor.host.make_handle(cls, key.name), theirs.name)
    found: dict[str, Copied] = {}
    for path in paths:
        try:
            file = await handle.stat(path)
            async with aclosing(handle.stream(path)) as content:
                found[path] = Copied(file, await mine.of(actor).receive(content))
        except NotFound as error:
            actor.turns.report(error, None)
    return found


def put_file(actor: Actor, path: str, copied: Copied) -> None:
    """Give a received file a path."""
    part, file = find_part_of(actor.kind.cls, Files), copied.file
    assert part is not None
    part.of(actor).put(
        path, copied.upload, mime=file.mime, metadata=file.metadata, width=file.width, height=file.height
    )
