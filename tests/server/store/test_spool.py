"""Records in a temporary file."""

import resource
import tempfile
from pathlib import Path

import pytest
from tests.cases import each_case

from plait.errors import StoreError
from plait.store.spool import RecordSpool
from plait.store.thread_rows import Record

RECORDS = [Record("values", f"{number:03}", b"x" * 40_000) for number in range(100)]


async def read_all(spool: RecordSpool, limit: int, size: int) -> list[Record]:
    found, after = list[Record](), ("", "")
    while page := await spool.read(after, limit, size):
        assert len(page) <= limit
        found += page
        after = page[-1].part, page[-1].key
    return found


@each_case("rows", [1, 7, 100])
@each_case(("limit", "size"), [(1, 10**9), (13, 10**9), (1000, 100_000), (1000, 10**9)])
async def test_records_are_read_in_pages_of_any_size(rows: int, limit: int, size: int) -> None:
    with RecordSpool() as spool:
        for start in range(0, len(RECORDS), rows):
            spool.add(RECORDS[start : start + rows])
        assert await read_all(spool, limit, size) == RECORDS
        # The last one is that at which the values reach the size.
        assert len(await spool.read(("", ""), 100, 100_000)) == 3


async def test_a_spool_that_begins_again_has_only_what_was_added_since() -> None:
    with RecordSpool() as spool:
        spool.add(RECORDS)
        spool.clear()
        assert await read_all(spool, 10, 10**9) == []
        spool.add(RECORDS[50:])
        assert await read_all(spool, 10, 10**9) == RECORDS[50:]


async def test_without_room_for_a_file_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with RecordSpool() as spool, pytest.raises(StoreError, match="a temporary file cannot be written"):
        spool.add(RECORDS)


async def test_without_room_in_the_file_it_is_said_of_a_small_page_too() -> None:
    with RecordSpool() as spool:
        spool.add(RECORDS)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        try:
            with pytest.raises(StoreError, match="a temporary file cannot be written"):
                spool.add([Record("values", "a", b"small")])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
