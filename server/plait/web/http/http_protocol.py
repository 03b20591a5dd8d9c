"""HTTP/1.1 under uvicorn, with limits on the size of heads and trailers and on the time that a peer may take.

`plait serve` passes it to uvicorn as `http=`. A request's line, headers and trailers are counted before they are kept.
"""

import asyncio
import re
from functools import partial
from typing import Any, Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from plait.web.addresses import KEPT, HalfOpen
from plait.web.http.head_writer import HeadWriter
from plait.web.lost import ABORT
from plait.web.server_context import error_body
from plait.web.sockets.handshake import Handshake
from plait_schemas.codec import encode_json

__all__ = ["HttpProtocol"]

# Bytes of a request's line, headers and trailers together.
_LARGEST_HEAD: Final = 64 * 1024
# Bytes that are parsed at once if they may contain many requests. One more request is parsed while one is answered; the
# rest stays unparsed.
_PIECE: Final = 1024
# The deadline is reset after this many bytes of a body.
_PROGRESS: Final = 4096
# Closing a connection with unread data resets it. So a peer that is still sending gets time to read the refusal: until
# it is silent for `_LINGER` seconds, or has sent more than `_MOST_DROPPED` bytes, or has sent for `_LOOKS` times as
# long. Only `_MOST_LINGERING` peers get time at once, as a flood of them would use up the file descriptors.
_LINGER: Final = 1.0
_LOOKS: Final = 5
_MOST_DROPPED: Final = 64 * 1024 * 1024
_MOST_LINGERING: Final = 100
# A peer may take this many times `request_timeout` to read a part of the answer.
_PATIENCE: Final = 6
_IDLE, _HEAD, _BODY = range(3)


class _StopParsing(Exception):
    """Stops the parser."""


class HttpProtocol(HttpToolsProtocol):
    """One connection, until it is closed or upgraded."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        half_open: HalfOpen,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.host: str | None = None
        self._half_open = half_open
        # Which part of a request the peer is sending.
        self._part = _IDLE
        # Bytes of a request's URL and headers that the parser has reported.
        self._head_size = 0
        # Whether the request opens a WebSocket; None before the check.
        self._is_opening: bool | None = None
        # Bytes received since the beginning of a request, or since the last part of its body.
        self._overhead = 0
        # Missing bytes of a body whose length is known.
        self._left = 0
        # Whether the request names several hosts.
        self._has_bad_host = False
        # Unparsed data, received after requests that wait to be answered.
        self._rest = b""
        # Bytes of the body since the deadline was set.
        self._progress = 0
        # Whether further data is dropped; the bytes dropped since the refusal; and whether the connection is closed.
        self._is_done = False
        self._dropped = 0
        self._is_lost = False
        # The request that is being answered; `cycle` is the last one received.
        self._answered: RequestResponseCycle | None = None
        self._writer: HeadWriter | None = None
        # The time of the loop until which the connection is kept without a request; 0 before the first answer.
        self._kept_until = 0.0
        # Bytes of answers that the peer had not read at the last check, and the number of checks without progress.
        self._unread = 0
        self._looks = 0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        host = self.client[0] if self.client else ""
        self.host = None if host in self._half_open.addresses.proxies else host
        if not self._half_open.admit(self):
            self._refuse(429, "rate_limited", "too many connections from this address without a request")

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._half_open.leave(self)
        self._half_open.lingering.discard(self)
        super().connection_lost(exc)
        if self._answered is not None and not self._answered.response_complete:
            # uvicorn tells only the last of several requests about the disconnect.
            self._answered.disconnected = True
            self._answered.message_event.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        if not self._half_open.is_waiting(self):
            self._wait()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._part == _IDLE and self._is_answering:
            self._half_open.leave(self)

    def data_received(self, data: bytes) -> None:
        if self._is_done:
            self._dropped += len(data)
            if self._dropped > _MOST_DROPPED:
                self.transport.close()
            return
        part = self._part
        data, self._rest = self._rest + data if self._rest else data, b""
        at = 0
        while at < len(data) and not self._is_done:
            if self.pipeline:
                self._rest = data[at:]
                self.flow.pause_reading()
                break
            # Parse at most as many bytes at once as the head may still have.
            piece = data[at : at + min(max(self._left, _PIECE), _LARGEST_HEAD - self._overhead)]
            at += len(piece)
            self._overhead += len(piece)
            self._feed(piece)
        if not self._is_done:
            self._watch(has_advanced=self._part != part)

    # Called by the parser

    def on_message_begin(self) -> None:
        self._part = _HEAD
        self._head_size = 0
        self._left = 0
        self._is_opening = None
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._head_size += len(url)
        if self._head_size > _LARGEST_HEAD:
            raise _StopParsing
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value) + 4
        if self._head_size > _LARGEST_HEAD:
            raise _StopParsing
        if self._part != _HEAD:
            return  # ASGI does not support trailers.
        name = name.lower()
        if name == b"content-length" and len(value) < 20:
            self._left = int(value)
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        hosts = [value for name, value in self.headers if name == b"host"]
        self._has_bad_host = len(hosts) > 1 or (bool(hosts) and not _names_host(self.url, hosts[0]))
        if self._has_bad_host:
            raise _StopParsing
        self._part = _BODY
        self._overhead = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        self._progress += len(body)
        self._left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._part = _IDLE
        self._overhead = 0
        super().on_message_complete()

    # Called by uvicorn

    def on_response_complete(self) -> None:
        if self._writer is not None:
            self._writer.flush()
        super().on_response_complete()
        # `HalfOpen` closes idle connections. uvloop runs timers before it reads: after a stall, uvicorn's timer would
        # reset connections although their requests have arrived; and it keeps a connection that a peer has reset.
        self._unset_keepalive_if_required()
        self._kept_until = self.loop.time() + KEPT
        if self.transport.is_closing() or (self._part == _IDLE and not self._is_answering):
            self._wait()
        if self._rest:
            self.loop.call_soon(self._go_on)

    def handle_websocket_upgrade(self) -> None:
        """Pass on the parsed request; uvicorn would serialize it again."""
        self._is_done = True
        self._half_open.leave(self)
        self.connections.discard(self)
        handshake = Handshake(self.config, self.server_state, self.app_state)
        handshake.connection_made(self.transport)
        self.transport.set_protocol(handshake)
        handshake.open(
            self.scope["method"],
            self.url.decode("latin-1"),
            self.headers,
            is_secure=self.scheme == "https",
            server=self.server,
            client=self.client,
        )

    def _should_upgrade(self) -> bool:
        """Return whether the request opens a WebSocket; uvicorn calls this several times after the headers."""
        if self._is_opening is None:
            self._is_opening = super()._should_upgrade()
        return self._is_opening

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        self._writer = HeadWriter(self.transport, self.loop, self._close)
        cycle.transport = cast(asyncio.Transport, self._writer)
        cycle.scope[ABORT] = partial(_abort, cycle)  # type: ignore[typeddict-unknown-key]
        super()._start_asgi_task(cycle, app)

    # Called by HalfOpen

    def give_up(self) -> None:
        """Close the connection, unless the app is slow to read, or the peer still reads an answer."""
        unread = self.transport.get_write_buffer_size()
        self._looks = self._looks + 1 if 0 < self._unread <= unread else 0
        self._unread = unread
        is_over = self.transport.is_closing() or self._is_done
        if self._looks >= _PATIENCE or (is_over and not unread):
            self.transport.abort()
            return
        waits_for_app = (
            self.flow.read_paused or self._rest or (self._is_answering and self.cycle.waiting_for_100_continue)
        )
        if is_over or waits_for_app or (self._part == _IDLE and (unread or self._is_answering)):
            return
        if self._part == _IDLE:
            if self.loop.time() >= self._kept_until:
                self.transport.close()
        else:
            self._refuse(408, "request_timeout", "the rest of the request was not received in time")

    # Inside

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _go_on(self) -> None:
        """Parse the data after a request, as the request is answered."""
        if not self._is_lost and not self.transport.is_closing():
            self.data_received(b"")

    def _feed(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            assert self.parser is not None
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if not self._should_upgrade():
                if self._half_open.may_log():
                    self._unsupported_upgrade_warning()
            elif self._is_answering:
                # The earlier answer would be written into the WebSocket, and would not notice a disconnect.
                self._refuse(400, "bad_request", "a WebSocket cannot be opened before earlier requests are answered")
            else:
                self.handle_websocket_upgrade()
        except httptools.HttpParserError:
            if self._has_bad_host:
                self._refuse(400, "bad_request", "a request must have one Host, the same as in an absolute URL")
                return
            if self._head_size <= _LARGEST_HEAD:
                if self._half_open.may_log():
                    self.logger.warning("Invalid HTTP request received.")
                self._refuse(400, "bad_request", "invalid HTTP request")
                return
        if self._head_size > _LARGEST_HEAD or self._overhead >= _LARGEST_HEAD:
            is_url = self._part == _HEAD and 2 * len(self.url) > _LARGEST_HEAD
            what = f"the URL, headers and trailers of a request may have at most {_LARGEST_HEAD} bytes"
            self._refuse(414 if is_url else 431, "too_large", what)

    def _watch(self, *, has_advanced: bool) -> None:
        """Set a deadline for the peer if the server waits for it."""
        if self._part == _IDLE and self._is_answering:
            if not self.flow.write_paused:
                self._half_open.leave(self)
        elif has_advanced or self._progress >= _PROGRESS or not self._half_open.is_waiting(self):
            self._progress = 0
            self._wait()

    def _wait(self) -> None:
        if not self._is_lost:
            self._half_open.wait(self)

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answer an incomplete request with an error, and close the connection."""
        self._is_done = True
        has_begun = self._is_answering and self.cycle.response_started
        # An answer may end before its request; a second one would count as the answer to the next request.
        has_begun |= self._part == _BODY and self.cycle is not None and self.cycle.response_complete
        if self._is_answering:
            self.cycle.disconnected = True
            self.cycle.waiting_for_100_continue = False
            self.cycle.message_event.set()
        self._unset_keepalive_if_required()
        if not has_begun:
            body = encode_json(error_body(code, message))
            self.transport.write(_ANSWER % (status, _PHRASES[status], len(body), body))
        self._close()

    def _close(self) -> None:
        """Close the connection after all is written; a peer that is still sending gets time to read it."""
        is_sending = self._is_done or self._part != _IDLE or self._rest
        self._is_done = True
        lingering = self._half_open.lingering
        if not is_sending or self.transport.is_closing() or len(lingering) >= _MOST_LINGERING:
            self.transport.close()
            return
        lingering.add(self)
        self._rest = b""
        self.pipeline.clear()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(_LINGER, self._look, 1, 0)

    def _look(self, looks: int, dropped: int) -> None:
        """Close the connection if its peer has stopped sending, or sends for too long."""
        if looks < _LOOKS and dropped < self._dropped:
            self.loop.call_later(_LINGER, self._look, looks + 1, self._dropped)
        else:
            self.transport.close()
            self._wait()  # The peer may not have read all of the answer.


def _abort(cycle: RequestResponseCycle) -> None:
    """Close the connection before an answer is complete; uvicorn logs nothing, as it thinks that the peer has gone."""
    if not cycle.response_complete:
        cycle.disconnected = True
        cycle.transport.close()


def _names_host(url: bytes, host: bytes) -> bool:
    """Return whether the target of a request names no host, or the same one as the header."""
    scheme, colon, rest = url.partition(b"://")
    if url.startswith(b"/") or not colon:
        return True
    port = b":443" if scheme.lower() == b"https" else b":80"
    return re.split(b"[/?#]", rest, maxsplit=1)[0].lower().removesuffix(port) == host.lower().removesuffix(port)


_PHRASES: Final = {
    400: b"Bad Request",
    408: b"Request Timeout",
    414: b"URI Too Long",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
}
_ANSWER: Final = (
    b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\ncache-control: no-store\r\n"
    b"connection: close\r\n\r\n%b"
)
