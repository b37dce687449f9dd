"""Connections that would cost much and ask little: uvicorn's HTTP protocol with an end to waiting.

uvicorn waits for ever for the rest of a header, takes headers of any length, chunks of one byte and pipelines of any
depth, and gives a TLS handshake a minute. Whoever opens a thousand connections and says nothing would lock everybody
else out, because a process has so many files. Here a header has ten seconds; and of connections without a request,
the one that has been silent longest makes room for a new one.
"""

import asyncio
import contextlib
import resource
from asyncio.events import TimerHandle
from functools import partial
from typing import Any, ClassVar

from uvicorn.loops.auto import auto_loop_factory
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_TIMEOUT = 10.0  # seconds that a header, or a TLS handshake, may take
HEADER_BYTES = 64 * 1024
WRITE_TIMEOUT = 30.0  # seconds that a caller may leave its answer unread
PIECES, PIECE = 128, 512  # a body may come in so many pieces of any length; beyond them, of so many bytes on average
PIPELINED = 16  # requests that may be sent before the first is answered
OPEN_FILES = 4096  # that a service asks the system for
QUIET = 1024  # connections without a request, at most half of the files that it gets


class QuietConnections:
    """The connections of a server that have sent no whole header since their last request, the most silent first."""

    def __init__(self, most: int):
        self._most = most
        self._waiting: dict[GuardedProtocol, None] = {}

    def add(self, connection: "GuardedProtocol") -> None:
        self._waiting[connection] = None
        if len(self._waiting) > self._most:
            next(iter(self._waiting)).transport.abort()  # which removes it when it is lost
            self._waiting.pop(next(iter(self._waiting)))

    def remove(self, connection: "GuardedProtocol") -> None:
        self._waiting.pop(connection, None)


class GuardedProtocol(HttpToolsProtocol):
    """One connection. A limit that is broken ends it; whoever stays within them notices nothing."""

    quiet: ClassVar[QuietConnections]

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._timer: TimerHandle | None = None  # runs from the first byte of a header to its last
        self._unread: TimerHandle | None = None  # runs while the caller does not read
        self._header = self._pieces = self._body = 0
        self._begun = False  # a header, of which more must come

    def connection_made(self, transport: Any) -> None:  # uvloop's is no asyncio.Transport
        super().connection_made(transport)
        self.quiet.add(self)
        self._await_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self.quiet.remove(self)
        self._header_came()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await_header()
        super().data_received(data)
        if self._timer is not None:
            self._header += len(data)
            if self._header > HEADER_BYTES:
                self._header_came()
                self.send_400_response(f"The header has more than {HEADER_BYTES} bytes.")

    def on_message_begin(self) -> None:
        self._begun = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._begun = False
        self._header_came()
        self.quiet.remove(self)
        self._pieces = self._body = 0
        if len(self.pipeline) >= PIPELINED:
            raise ValueError("too many requests before the first was answered")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._pieces += 1
        self._body += len(body)
        if self._pieces > PIECES + self._body // PIECE:
            raise ValueError("a body in very many small pieces")
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self.timeout_keep_alive_task is not None:
            self.quiet.add(self)
            if self._begun and self._timer is None:  # it came while the request before it was answered
                self._await_header()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(WRITE_TIMEOUT, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()  # close() would wait for a caller that does not read

    def _await_header(self) -> None:
        self._header = 0
        self._timer = self.loop.call_later(HEADER_TIMEOUT, self.transport.abort)

    def _header_came(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def guarded_protocol() -> type[GuardedProtocol]:
    """The protocol of one server: its connections share the room for silent ones."""

    class OfThisServer(GuardedProtocol):
        quiet = QuietConnections(min(QUIET, _open_files() // 2))

    return OfThisServer


def _open_files() -> int:
    """How many files this process may open, after asking for `OPEN_FILES`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def tls_event_loop() -> asyncio.AbstractEventLoop:
    """uvicorn's event loop, whose servers give a TLS handshake as long as a header: uvicorn cannot be told."""
    loop = auto_loop_factory()()
    loop.create_server = partial(loop.create_server, ssl_handshake_timeout=HEADER_TIMEOUT)  # type: ignore[method-assign]
    return loop
