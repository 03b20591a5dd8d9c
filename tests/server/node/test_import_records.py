"""Imported records that their parts cannot read."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import copyfile
from typing import Any

from tests.fixtures.filled import make_app
from tests.fixtures.make_stores import STORES

from plait import InvalidState, MemoryStore, SqliteStore

STORE = max(STORES.iterdir(), key=lambda path: int(path.name)) / "store.sqlite"


def spoil(lines: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the lines of a thread, each time with one record changed: one of each kind, in each way."""
    kinds = set[tuple[str, str]]()
    for index, line in enumerate(lines):
        if (part := line.get("part")) is None or (kind := (part, line["key"].partition("/")[0])) in kinds:
            continue
        kinds.add(kind)
        others = {name: value for name, value in line.items() if name not in ("value", "text", "base64")}
        number = {"key": line["key"].rpartition("/")[0] + "/zz"}
        for changed in (line | number, others | {"value": 7}, others | {"value": []}, others | {"base64": "//8="}):
            yield [*lines[:index], changed, *lines[index + 1 :]]


def seal(lines: list[dict[str, Any]]) -> bytes:
    """Return the file of some lines, with the checksum in the last one."""
    data = b"".join([json.dumps(line).encode() + b"\n" for line in lines[:-1]])
    return data + json.dumps(lines[-1] | {"sha256": hashlib.sha256(data).hexdigest()}).encode() + b"\n"


async def test_a_record_that_its_part_cannot_read_is_refused_with_its_thread(tmp_path: Path) -> None:
    copyfile(STORE, path := tmp_path / "store.sqlite")
    threads = ("room", "one"), ("chat", "story"), ("chat", "ended"), ("helper", "ada")
    async with make_app(SqliteStore(path)) as app:
        files = [b"".join([lines async for lines in app.export_thread(*thread)]) for thread in threads]
    count = taken = 0
    async with make_app(MemoryStore()) as app:
        for file in files:
            for lines in spoil([json.loads(line) for line in file.splitlines()]):
                count += 1
                with suppress(InvalidState):  # A part may also ignore the record.
                    await app.import_thread(seal(lines), name="spoilt", replace=True)
                    taken += 1
    assert 50 < count - taken < count
