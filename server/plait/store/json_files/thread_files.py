"""The files of a thread: `NAME.json`, its snapshot, and `NAME.jsonl`, the lines that were written since."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from plait.errors import StoreError
from plait.store.batches import find_misfit
from plait.store.json_files.files import AppendedFile, check_mark, find_mark, name_files, replace_file
from plait.store.json_files.lines import decode_line, encode_line
from plait.store.protocol import Write
from plait.store.thread_rows import ThreadKey
from plait_schemas.codec import NOT_JSON

__all__ = ["ThreadFiles"]

# A log below this size is never replaced by a snapshot.
_LEAST: Final = 64 * 1024


class ThreadFiles:
    """The files of a thread, whose paths begin with `stem`."""

    __slots__ = ("_head", "_mark", "_stem", "bound", "damage", "key", "log", "number", "snapshot")

    def __init__(self, stem: Path) -> None:
        self._stem = stem
        self.snapshot = stem.with_name(f"{stem.name}.json")
        self._mark: tuple[int, ...] = ()
        self.log = AppendedFile(stem.with_name(f"{stem.name}.jsonl"))
        # The log is replaced by a snapshot when it is larger than this.
        self.bound = _LEAST
        # The number of the last line.
        self.number = 0
        # What cannot be read, and why.
        self.damage = ""
        # While they are read: the thread, None if no line tells it, and its epoch and version.
        self.key: ThreadKey | None = None
        self._head: tuple[str, int] | None = None

    def read(self, *, readonly: bool) -> Iterator[tuple[int, Write]]:
        """Yield the writes and their times, up to the damage if there is any."""
        place = str(self.log.path)
        try:
            # First the lines: if a server replaces them by a snapshot after that, the snapshot has them.
            lines = self.log.read(readonly=readonly)
            place = str(self.snapshot)
            if os.path.lexists(self.snapshot):
                self._mark = find_mark(self.snapshot)
                data = self.snapshot.read_bytes()
                self.bound = max(_LEAST, len(data))
                yield from self._read_line(data, is_snapshot=True)
            first = self.number + 1
            for number, line in lines:
                place = f"{self.log.path}, line {number}"
                yield from self._read_line(line, first=first)
        except (OSError, StoreError, *NOT_JSON) as error:
            self.damage = f"{place}: {getattr(error, 'strerror', error)}"

    def append(self, key: ThreadKey, writes: Sequence[Write], now: int) -> None:
        """Write a line; a damaged thread can only be deleted. Raises as `AppendedFile.append` does, and UNENCODABLE."""
        if self.damage:
            if not writes[-1].is_deletion:
                raise StoreError("its files cannot be read")
            self.replace(key, [], now)
            self.damage = ""
            return
        check_mark(self.snapshot, self._mark)
        self.log.append(encode_line(key, self.number + 1, now, writes) + b"\n")
        self.number += 1

    def replace(self, key: ThreadKey, writes: Sequence[Write], now: int) -> None:
        """Replace all lines by a snapshot, the writes that make the thread; by nothing if there are none.

        Raises OSError. Whatever was done then, the files have the thread.
        """
        self.bound = 2 * (self.log.size or 0)  # When it is tried again if it fails.
        data = msgspec.json.format(encode_line(key, self.number, now, writes), indent=2) + b"\n"
        try:
            replace_file(self.snapshot, data)
        finally:
            self._mark = find_mark(self.snapshot)
        self.bound = max(_LEAST, len(data))
        if writes:
            self.log.clear()
        else:
            self.log.remove()
            self.snapshot.unlink()
            self._mark = ()

    def _read_line(self, data: bytes, *, first: int = 1, is_snapshot: bool = False) -> Iterator[tuple[int, Write]]:
        """Yield the writes of a line, unless the snapshot has it, which ends before line `first`."""
        line = decode_line(data)
        if self._stem.parts[-2:] != tuple((name := name_files(line.key)).split("/")):
            raise StoreError(f"it is of {line.key}, whose files are {name}.json and .jsonl")
        self.key = line.key
        if line.number < first:
            return
        if not is_snapshot and line.number != self.number + 1:
            raise StoreError(f"its number is {line.number}, and must be {self.number + 1}")
        head, writes = self._head, line.decode()
        for write in writes:
            if find_misfit(write, head) is not None:
                raise StoreError("it does not follow what is before it")
            head = None if write.is_deletion else (write.epoch, write.version)
        self._head, self.number = head, line.number
        yield from ((line.at, write) for write in writes)
