"""One record of a part as it is known in memory."""

import asyncio

from plait.errors import StoreError
from plait.state.commit import Commit
from plait.state.records import Records
from plait.store.protocol import Record

__all__ = ["Cell"]


class Cell:
    """A record that only its part writes, so that it is read once at most while the thread is awake."""

    __slots__ = ("_loading", "_records", "data", "is_known", "name", "part")

    def __init__(self, records: Records, part: str, name: str) -> None:
        self._records = records
        self.part = part
        self.name = name
        self.is_known = False
        # The record's value, None if there is none; also while it is not known.
        self.data: bytes | None = None
        # Done when the read that runs has ended; None also once a write has made that read out of date.
        self._loading: asyncio.Future[None] | None = None

    async def load(self) -> None:
        """Read the record if it is not known; those that wait at the same time share one read. Raises StoreError."""
        while not self.is_known:
            if (loading := self._loading) is None:
                await self._read()
            else:
                await asyncio.wait([loading])
                loading.result()
        await self._records.wait_for_shown()

    async def _read(self) -> None:
        loading = self._loading = asyncio.get_running_loop().create_future()
        try:
            data = await self._records.read(self.part, self.name)
        except StoreError as error:
            loading.set_exception(error)
            loading.exception()  # It is nobody's if nobody else waits.
            raise
        else:
            if self._loading is loading:
                self.is_known, self.data = True, data
        finally:
            if self._loading is loading:
                self._loading = None
            if not loading.done():
                loading.set_result(None)  # After a cancellation the others try again.

    def record(self, data: bytes | None) -> Record:
        """Return the record with a value, to be written."""
        return Record(self.part, self.name, data)

    def submitted(self, data: bytes | None, commit: Commit) -> None:
        """Take a value that is being stored for the present one; when that fails, nothing is known any more."""
        self.is_known, self.data = True, data
        self._loading = None
        commit.then(self._finish)

    def _finish(self, error: Exception | None) -> None:
        if error is not None:
            self.is_known, self.data = False, None
