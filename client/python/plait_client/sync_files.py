"""The files of a thread without asyncio."""

from collections.abc import Callable
from typing import BinaryIO

from plait_client.loop import LoopThread
from plait_client.room_files import FileInfo, RoomFiles

__all__ = ["SyncFiles"]


class SyncFiles:
    """The files of a thread; each method returns when it is done, without a time limit. `SyncRoom.files` returns it."""

    def __init__(self, files: RoomFiles, loop: LoopThread) -> None:
        self._files = files
        self._loop = loop

    def url(self, path: str) -> str:
        """See RoomFiles."""
        return self._files.url(path)

    def upload(
        self,
        path: str,
        data: bytes | str | BinaryIO,
        *,
        mime: str | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> FileInfo:
        """See RoomFiles; `on_progress` is called in another OS thread."""
        return self._loop.wait(lambda: self._files.upload(path, data, mime=mime, on_progress=on_progress), None)

    def read(self, path: str) -> bytes | None:
        """See RoomFiles."""
        return self._loop.wait(lambda: self._files.read(path), None)

    def remove(self, path: str) -> bool:
        """See RoomFiles."""
        return self._loop.wait(lambda: self._files.remove(path), None)
