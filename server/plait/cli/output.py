"""Writes the file of an export."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from plait.cli.options import fail

__all__ = ["open_output"]


@contextmanager
def open_output(out: Path | None) -> Iterator[IO[bytes]]:
    """Open a file that is put in place when all of it was written and is on the disk; None is the standard output.

    Only the user of the process may read it. A pipe or a device is written as it is. Exits if there is a file that is
    no export, such as the store itself. Raises OSError.
    """
    if out is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = out.resolve()
    if path.exists() and not path.is_file():
        with path.open("wb") as target:
            yield target
        return
    if path.exists() and not _is_export(path):
        fail(f"{out} exists, and is not an export: name another file, or remove this one")
    partial = path.with_name(path.name + ".partial")
    try:
        # A former one, of a process that was killed, may have other rights.
        partial.unlink(missing_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _is_export(path: Path) -> bool:
    """Whether a file is empty, or begins as an export does."""
    with path.open("rb") as file:
        line = file.readline(1 << 20)
    try:
        header = msgspec.json.decode(line) if line else {"format": 0}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return isinstance(header, dict) and "format" in header
