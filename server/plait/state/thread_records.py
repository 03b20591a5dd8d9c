"""The records of one thread, which its parts keep beside the state."""

from collections.abc import Callable, Sequence

from plait.instruments.protocol import Instruments, telling_store_errors
from plait.state.commit import Commit
from plait.state.pipeline import Pipeline
from plait.store.protocol import Store, ThreadKey
from plait.store.record_checks import is_key
from plait.store.thread_rows import Record, RecordRange

__all__ = ["Records"]


class Records:
    """Reads and writes the records of one thread, in order with its changes."""

    __slots__ = ("_instruments", "_key", "_pipeline", "_store")

    def __init__(self, key: ThreadKey, store: Store, pipeline: Pipeline, *, instruments: Instruments) -> None:
        self._key = key
        self._store = store
        self._pipeline = pipeline
        self._instruments = instruments

    async def wait_for_shown(self) -> None:
        """Wait as `Pipeline.wait_for_shown` does."""
        await self._pipeline.wait_for_shown()

    async def read(self, part: str, name: str) -> bytes | None:
        """Return the value of a record after all writes made so far, None if there is none. Raises StoreError."""
        if not self._pipeline.history.is_begun or not is_key(name):
            return None
        await self._pipeline.wait_until_stored()
        with telling_store_errors(self._instruments):
            return await self._store.record(self._key, part, name)

    async def list(self, wanted: RecordRange) -> list[Record]:
        """Return the records of a range after all writes made so far. Raises StoreError."""
        if not self._pipeline.history.is_begun:
            return []
        await self._pipeline.wait_until_stored()
        with telling_store_errors(self._instruments):
            return await self._store.records(self._key, wanted)

    def write(
        self,
        records: Sequence[Record],
        *,
        undo: Callable[[], None] | None = None,
        tell: Callable[[], None] | None = None,
    ) -> Commit:
        """Store records, as `Pipeline.store` does, which calls `undo`. Raises ValueError and TooLarge.

        `tell` is called when they are durable, in the order of the writes: it sends the frames that tell of them.
        """
        commit = self._pipeline.store(records, undo=undo)
        if tell is not None:
            self._pipeline.after(lambda error: tell() if error is None else None)
        return commit
