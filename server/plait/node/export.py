"""Exports a whole thread, as lines of JSON."""

from collections.abc import AsyncGenerator

from plait.errors import NotFound
from plait.node.export_file import FORMAT, ExportWriter, Header
from plait.state.state_history import replay_json
from plait.store.protocol import INCOMPLETE, Store, ThreadKey

__all__ = ["export_thread"]


async def export_thread(store: Store, key: ThreadKey) -> AsyncGenerator[bytes, None]:
    """Yield the file of a thread, some lines at once, as the thread is stored when the first of them is read.

    Raises NotFound, CorruptThread and StoreError.
    """
    async with store.view(key) as view:
        if view is None or view.thread.due == INCOMPLETE:
            raise NotFound(f"there is no thread {key}")
        thread, writer = view.thread, ExportWriter()
        header = Header(
            format=FORMAT,
            kind=key.kind,
            name=key.name,
            state_version=thread.state_version,
            epoch=thread.epoch,
            version=thread.version,
            created_at=thread.created_at,
            user=thread.user,
        )
        yield writer.begin(header, replay_json(key, thread) if thread.has_state else None)
        after = ("", "")
        while page := await view.records(after=after):
            yield writer.encode(page)
            after = page[-1].part, page[-1].key
        yield writer.end()
