"""The files of a thread in a client: over HTTP, beside its socket."""

import asyncio
import io
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, BinaryIO, Final
from urllib.parse import quote, urlsplit, urlunsplit
from urllib.request import Request

import msgspec

from plait_client.errors import ClientError, Refused
from plait_client.requests import SCHEMES, fetch
from plait_client.target import Target

__all__ = ["FileInfo", "RoomFiles"]

# The seconds that a part of a request may take, and the bytes that are sent at once.
_TIMEOUT: Final = 30.0
_PIECE: Final = 64 * 1024


class FileInfo(msgspec.Struct, frozen=True):
    """A file of a thread. Times are in microseconds since the epoch."""

    path: str
    name: str
    size: int
    mime: str
    created_at: int
    updated_at: int
    # Changes with the content.
    etag: str
    # The size of an image, if it is known.
    width: int | None = None
    height: int | None = None
    metadata: Mapping[str, Any] = {}
    is_directory: bool = False


class RoomFiles:
    """The files of a thread. `Room.files` returns it."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def url(self, path: str) -> str:
        """Return the URL of a file. Raises ValueError for a path with `..`."""
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise ValueError(f"the path {path!r} has the part '..'")
        found = urlsplit(self._target.url)
        whole = "/".join([found.path.rstrip("/"), "files", *(quote(part, safe="") for part in parts)])
        return urlunsplit((SCHEMES[found.scheme], found.netloc, whole, found.query, ""))

    async def upload(
        self,
        path: str,
        data: bytes | str | BinaryIO,
        *,
        mime: str | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> FileInfo:
        """Store a file, in place of an earlier one; `on_progress` is called with the number of bytes sent so far.

        A cancelled upload leaves the file as it was, unless all of it was sent. Raises Refused, Disconnected and
        ClientError.
        """
        source = io.BytesIO(data.encode() if isinstance(data, str) else data) if isinstance(data, bytes | str) else data
        loop, is_cancelled = asyncio.get_running_loop(), threading.Event()

        def read() -> Iterator[bytes]:
            sent = 0
            while piece := source.read(_PIECE):
                if is_cancelled.is_set():
                    raise ConnectionAbortedError("the upload was cancelled")
                yield piece
                sent += len(piece)
                if on_progress is not None:
                    loop.call_soon_threadsafe(on_progress, sent)

        # Without a type, urllib would send the type of a form.
        headers = {"Content-type": mime or "", "Transfer-encoding": "chunked"}
        request = await self._make(path, "PUT", data=read(), headers=headers)
        try:
            answer = await self._fetch(request)
        except asyncio.CancelledError:
            is_cancelled.set()
            raise
        try:
            return msgspec.json.decode(answer, type=FileInfo)
        except msgspec.MsgspecError as error:
            raise ClientError(f"the answer is no file: {error}") from error

    async def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is none. Raises what `upload` raises."""
        try:
            return await self._fetch(await self._make(path, "GET"))
        except Refused as error:
            if error.code == "not_found":
                return None
            raise

    async def remove(self, path: str) -> bool:
        """Remove a file; return whether there was one. Raises what `upload` raises."""
        try:
            await self._fetch(await self._make(path, "DELETE"))
        except Refused as error:
            if error.code == "not_found":
                return False
            raise
        return True

    # Inside

    async def _make(
        self,
        path: str,
        method: str,
        *,
        data: Iterator[bytes] | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Request:
        shown = {**self._target.headers, **headers}
        if (token := await self._target.fetch_token(_TIMEOUT)) is not None:
            shown["Authorization"] = f"Bearer {token}"
        return Request(self.url(path), data=data, headers=shown, method=method)

    async def _fetch(self, request: Request) -> bytes:
        failure = f"no answer to the {request.method} of a file"
        return await asyncio.to_thread(partial(fetch, request, self._target.ssl, timeout=_TIMEOUT, failure=failure))
