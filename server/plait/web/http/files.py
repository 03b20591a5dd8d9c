"""The URLs of files, below `/threads/{kind}/{name}/files/`: upload, download, remove."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, nullcontext
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import Final
from urllib.parse import quote, unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.actor.outcome import wait_for_durable
from plait.errors import Conflict, InvalidArguments, NotFound, PlaitError, Readonly
from plait.parts.files.file import File
from plait.parts.files.paths import clean_path
from plait.parts.files.thread_files import ThreadFiles, check_mime
from plait.web.http.endpoint import BodyLimit
from plait.web.http.exchange import Exchange, read_conditions
from plait.web.http.streamed import ResponseAborted, StreamedResponse
from plait.web.server_context import error_body
from plait_schemas.codec import encode_json

__all__ = ["answer_file", "parse_range"]

# A download is never a page, a script or a stylesheet of the app's origin: browsers save it, and do not guess its type.
_SAFE: Final = {
    "content-disposition": "attachment",
    "content-security-policy": "default-src 'none'; sandbox",
    "x-content-type-options": "nosniff",
}
# Types that pages may show, as they run no code. All other files are sent as bytes.
_SHOWN: Final = re.compile(
    r"(?:(?:image|audio|video|font)/[\w.+-]+|application/pdf|text/plain)(?:; ?charset=[\w-]+)?(?= ?(?:;|$))",
    re.IGNORECASE,
)
_FORM: Final = re.compile("multipart/|application/x-www-form-urlencoded", re.IGNORECASE)
# Bytes of a body that are kept in memory, or read at once.
_IN_MEMORY: Final = 1024 * 1024
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def answer_file(exchange: Exchange, path: str) -> Awaitable[Response]:
    """Begin to answer a request to the URL of a file, with its path as in the URL. Raises InvalidArguments."""
    with _refusing():
        path = clean_path(unquote(path, errors="strict"))
    match exchange.request.method:
        case "PUT":
            return _put(exchange, path)
        case "DELETE":
            return _delete(exchange, path)
        case _:
            return _get(exchange, path)


# Uploads


async def _put(exchange: Exchange, path: str) -> Response:
    request, context = exchange.request, exchange.context
    if "content-range" in request.headers:
        return JSONResponse(error_body("bad_request", "a part of a file cannot be written: send the whole file"), 400)
    mime = _read_mime(request)
    actor, connection, files = await _enter(exchange)
    BodyLimit(context.limits.file, "file").check(_read_length(request))
    wanted, unwanted = read_conditions(request)
    _check_conditions(wanted, unwanted, files.find_now(path))
    with context.requests.upload(exchange.party):
        # A new thread is created for the user of the request, but not for a body that breaks off.
        body, begin = request.stream(), partial(actor.state.store_thread, connection)
        upload = await files.receive(body if actor.state.is_stored else _read_whole(body, begin))
    exchange.lease.check()
    before = files.find_now(path)
    _check_conditions(wanted, unwanted, before)
    with _refusing():
        file = await files.put(path, upload, mime=mime)
    status, headers = 201 if before is None else 200, {"etag": _tag(file)}
    return Response(encode_json(file.show()), status, headers, media_type="application/json")


def _read_mime(request: Request) -> str | None:
    """Return the type of the file in a request. Raises HTTPException for a body that is not the file itself."""
    mime = request.headers.get("content-type") or None
    if request.headers.get("content-encoding", "identity") != "identity" or (mime and _FORM.match(mime)):
        raise HTTPException(415, "send the bytes of the file as the body: without Content-Encoding, and not as a form")
    if mime is None:
        return None
    with _refusing():
        return check_mime(mime)


async def _read_whole(body: AsyncIterator[bytes], begin: Callable[[], Awaitable[None]]) -> AsyncGenerator[bytes]:
    """Yield a body after all of it has arrived and `begin` has returned. A large one waits in a temporary file."""
    with SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
        async for data in body:
            await asyncio.to_thread(file.write, data)
        await begin()
        file.seek(0)
        while data := await asyncio.to_thread(file.read, _IN_MEMORY):
            yield data


async def _delete(exchange: Exchange, path: str) -> Response:
    *_, files = await _enter(exchange, creates=False)
    _check_conditions(*read_conditions(exchange.request), files.find_now(path))
    with _refusing():
        is_removed = await files.unlink(path)
    if not is_removed:
        raise NotFound(f"there is no file {path}")
    return Response(status_code=204)


async def _enter(exchange: Exchange, *, creates: bool = True) -> tuple[Actor, Connection, ThreadFiles]:
    """Return the thread, a connection for the request, and the files, which the client may change."""
    await exchange.check("upload")
    if not creates:
        await exchange.context.node.stored_actor(exchange.key)
    actor, connection = await exchange.enter(0)
    if connection.readonly:
        raise Readonly("Connection is readonly")
    return actor, connection, _find_files(exchange, actor)


def _check_conditions(wanted: set[str], unwanted: set[str], file: File | None) -> None:
    """Raise Conflict unless the file is one of the wanted ones, and none of the unwanted ones."""
    tags = set() if file is None or file.is_directory else {"*", _tag(file)}
    if wanted and not wanted & tags:
        raise Conflict("the file is not the one in If-Match")
    if unwanted & tags:
        raise Conflict("the file is one in If-None-Match")


# Downloads


async def _get(exchange: Exchange, path: str) -> Response:
    await exchange.check("files")
    actor = await exchange.context.node.stored_actor(exchange.key)
    files = _find_files(exchange, actor)
    file = files.find_now(path)
    with nullcontext() if file is None else files.keep(file):
        await wait_for_durable(None, actor.state.after)
        exchange.lease.check()
        if file is None or file.is_directory:
            raise NotFound(f"there is no file {path}")
        return _answer(exchange.request, files, file)


def _answer(request: Request, files: ThreadFiles, file: File) -> Response:
    headers, tag = request.headers, _tag(file)
    answered = {"etag": tag}
    wanted, unwanted = read_conditions(request)
    if wanted and not wanted & {"*", tag}:
        raise Conflict("the file is not the one in If-Match")
    if unwanted & {"*", tag}:
        return Response(status_code=304, headers=answered)
    answered |= _SAFE | {"accept-ranges": "bytes"}
    answered["content-disposition"] += f"; filename*=UTF-8''{quote(file.name, safe='')}"
    part = None
    if request.method == "GET" and headers.get("if-range") in (None, tag):
        try:
            part = parse_range(headers.get("range"), file.size)
        except ValueError:
            return Response(status_code=416, headers={**answered, "content-range": f"bytes */{file.size}"})
    start, end = part or (0, file.size)
    shown = _SHOWN.match(file.mime)
    answered["content-type"] = "application/octet-stream" if shown is None else shown[0]
    answered["content-length"] = str(end - start)
    if part is not None:
        answered["content-range"] = f"bytes {start}-{end - 1}/{file.size}"
    status = 200 if part is None else 206
    if request.method == "HEAD":
        return Response(status_code=status, headers=answered)
    return _FileResponse(files, file, start, end, status_code=status, headers=answered)


class _FileResponse(StreamedResponse):
    """A file, or a part of it, which stays the same until it is sent."""

    def __init__(
        self, files: ThreadFiles, file: File, start: int, end: int, *, status_code: int, headers: dict[str, str]
    ) -> None:
        self._files = files
        self._file = file
        # Whether the client has disconnected, or has received everything.
        self._is_over = False
        super().__init__(
            self._read(start, end),
            media_type=headers["content-type"],
            ended=self._stop,
            status_code=status_code,
            headers=headers,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._files.keep(self._file):
            await super().__call__(scope, receive, send)

    async def _read(self, start: int, end: int) -> AsyncIterator[bytes]:
        async with aclosing(self._files.read_part(self._file, start, end)) as content:
            try:
                async for data in content:
                    if self._is_over:
                        return
                    yield data
            except PlaitError as error:
                raise ResponseAborted from error

    def _stop(self) -> None:
        self._is_over = True


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the start and the end of the one range that a header asks for; None for all bytes.

    Raises ValueError for a range without bytes.
    """
    if header is None or (match := _RANGE.fullmatch(header.strip())) is None:
        return None  # Send the whole file, as for several ranges: a server may ignore the header.
    first, last = match.groups()
    if not first and not last:
        return None
    if first and last and int(last) < int(first):
        return None
    start, end = (int(first), min(size, int(last) + 1) if last else size) if first else (max(0, size - int(last)), size)
    if start >= end:
        raise ValueError(f"a file of {size} bytes has no bytes {header}")
    return start, end


# Both


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise InvalidArguments for a ValueError of a block."""
    try:
        yield
    except ValueError as error:
        is_text = not isinstance(error, UnicodeDecodeError)
        raise InvalidArguments(str(error) if is_text else "the path of the file is not UTF-8") from None


def _find_files(exchange: Exchange, actor: Actor) -> ThreadFiles:
    return exchange.context.files[exchange.key.kind].of(actor)


def _tag(file: File) -> str:
    return f'"{file.etag}"'


def _read_length(request: Request) -> int:
    length = request.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 19 else 0
