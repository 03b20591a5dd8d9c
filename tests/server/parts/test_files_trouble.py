"""Files when the store refuses writes, content is replaced while it is used, and calls are cancelled."""

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.server.parts.files_lab import CHUNK, FilesLab, make_store, open_lab, until

from plait import Limits, StoreError
from plait.store.protocol import Write


@pytest.fixture
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FilesLab]:
    async with open_lab(make_store(request, "memory", tmp_path), limits=Limits(files=3 * CHUNK)) as lab:
        yield lab


@pytest.mark.parametrize("puts", ["write", "put"])
async def test_an_upload_whose_write_fails_later_is_removed(puts: str, lab: FilesLab) -> None:
    files, submit = (await lab.thread()).files, lab.store.submit
    refused = list["asyncio.Future[int]"]()

    def refuse_paths(write: Write) -> "asyncio.Future[int]":
        if not any(record.key.startswith("f/") for record in write.records):
            return submit(write)
        refused.append(asyncio.get_running_loop().create_future())
        return refused[-1]

    async def write() -> None:
        if puts == "write":
            await files.write("b", bytes(CHUNK))
        else:
            await files.put("b", await files.receive(bytes(CHUNK)))

    for _ in range(4):  # All of them together are more than a thread may have.
        lab.store.submit = refuse_paths  # type: ignore[method-assign]
        writing = asyncio.create_task(write())

        async def is_submitted() -> bool:
            return len(refused) == 1

        await until(is_submitted)
        refused.pop().set_exception(StoreError("the disk is full"))
        with pytest.raises(StoreError):
            await writing
        lab.store.submit = submit  # type: ignore[method-assign]
        del writing
        gc.collect()  # Errors and their frames refer to each other.
        await until(lab.is_clean)
    assert await files.read("b") is None
