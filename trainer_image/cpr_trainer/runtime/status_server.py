"""The HTTP port of a process, and how many callers it serves before they have proved who they are."""

from __future__ import annotations

import logging
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Self

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from cpr_contract.codec import to_json, within_limits
from cpr_contract.reports import RECORDED_HEADER
from cpr_contract.roster import MAX_ROSTER_BYTES, ROSTER_PAGE, ROSTER_SIGNATURE
from cpr_trainer.runtime.sockets import family_of

# How many callers a process serves before they have proved who they are, and how long each of them may take.


#: After this long a caller has to make room where others wait. An honest one needs milliseconds.
_FAIR_S = 0.5


class Gate:
    """At most `limit` callers are inside. One more waits until somebody leaves; the oldest is asked to after a while.

    A caller is anything hashable. `cut_off` ends its connection, and may be called more than once. The caller's place
    is free when the thread that serves it calls `leave`, not before: otherwise threads of callers that were cut off
    would add up. Any thread may call the methods.
    """

    def __init__(self, limit: int, cut_off: Callable[..., None]) -> None:
        self._limit = limit
        self._cut_off = cut_off
        self._inside: dict[object, float] = {}  # since when, oldest first
        self._changed = threading.Condition()

    def enter(self, caller: object) -> None:
        """Let a caller in as soon as there is room."""
        with self._changed:
            while len(self._inside) >= self._limit:
                oldest = next(iter(self._inside))
                left_s = self._inside[oldest] + _FAIR_S - monotonic()
                if left_s <= 0:
                    # It is the last to be cut off again, should its thread not end in the meantime.
                    del self._inside[oldest]
                    self._inside[oldest] = monotonic()
                    self._cut_off(oldest)
                    left_s = _FAIR_S
                self._changed.wait(left_s)
            self._inside[caller] = monotonic()

    def leave(self, caller: object) -> None:
        """Make room; does nothing for one that is not inside."""
        with self._changed:
            self._inside.pop(caller, None)
            self._changed.notify()

    def expel(self, patience_s: float) -> None:
        """Cut off all that have been inside for longer than `patience_s`."""
        with self._changed:
            late = [caller for caller, since in self._inside.items() if monotonic() - since > patience_s]
            for caller in late:
                self._cut_off(caller)


_LOG = logging.getLogger(__name__)

_CLIENTS = 32  # answered at the same time, each by a thread
_DEADLINE_S = 5.0  # of a client from its connection to its whole answer
_REST_S = 0.1  # after a client could not be accepted: descriptors are used up
_POLL_S = 0.1  # how long `close` may wait


class StatusServer:
    """Serves from threads of its own between `start` and `close`; also a context manager.

    `status` returns the report (a contract dataclass), `healthy` whether the main loop makes progress, `ready` whether
    the process serves. All three are called from other threads, and must not block. So is `receive`: it gets what was
    posted to the page of rosters with its signature, and tells whether that is right; without it there is no such page.
    `hear` gets what a request for the status says that the operator has recorded, before it is answered. `port` 0 takes
    a free one: `port` tells which.
    """

    def __init__(  # noqa: PLR0913 -- one argument per page
        self,
        address: str,
        port: int,
        *,
        status: Callable[[], Any],
        healthy: Callable[[], bool],
        ready: Callable[[], bool],
        registry: CollectorRegistry,
        receive: Callable[[bytes, str], bool] | None = None,
        hear: Callable[[str], None] = lambda _: None,
    ) -> None:
        pages: dict[str, Callable[[], _Page]] = {
            "/healthz": lambda: _verdict(healthy()),
            "/readyz": lambda: _verdict(ready()),
            "/metrics": lambda: (HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(registry)),
            "/status": lambda: (HTTPStatus.OK, "application/json", to_json(within_limits(status())).encode()),
        }
        self._server = _Server(address, port, pages, receive, hear)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), name="status", daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> Self:
        """Begin to answer."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop answering and free the port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


_Page = tuple[HTTPStatus, str, bytes]


def _verdict(good: bool) -> _Page:  # noqa: FBT001 -- the verdict itself
    status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
    return status, "text/plain; charset=utf-8", b"ok\n" if good else b"no\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # connections that wait to be accepted; the base class keeps 5

    def __init__(
        self,
        address: str,
        port: int,
        pages: dict[str, Callable[[], _Page]],
        receive: Callable[[bytes, str], bool] | None,
        hear: Callable[[str], None],
    ) -> None:
        self.address_family = family_of(address)
        self.pages = pages
        self.receive = receive
        self.hear = hear
        self._clients = Gate(_CLIENTS, _hang_up)
        super().__init__((address, port), _Handler)

    def server_bind(self) -> None:
        """Bind, without the base class's search for a host name: name servers may be slow, and nobody asks for it."""
        socketserver.TCPServer.server_bind(self)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a client. The base class asks again at once for one that could not be accepted."""
        try:
            return super().get_request()
        except OSError:
            sleep(_REST_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, once there is room."""
        self._clients.enter(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        self._clients.leave(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Hang up on clients that take too long; the base class calls this many times a second."""
        self._clients.expel(_DEADLINE_S)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 -- the base class's signature
        """Pass over clients that went away; log anything else."""
        if not isinstance(sys.exception(), OSError):
            _LOG.exception("a page of the status server failed")


def _hang_up(request: socket.socket) -> None:
    """End what a thread waits for on this connection; the thread closes it."""
    with suppress(OSError):  # The client may be gone.
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _DEADLINE_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        page, recorded = self.server.pages.get(path), self.headers.get(RECORDED_HEADER)
        if path == "/status" and recorded is not None:
            self.server.hear(recorded)
        status, kind, body = page() if page else (HTTPStatus.NOT_FOUND, "text/plain", b"no such page\n")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        receive, length = self.server.receive, self.headers.get("Content-Length", "")
        if receive is None or self.path != ROSTER_PAGE:
            status = HTTPStatus.NOT_FOUND
        elif not length.isdecimal() or int(length) > MAX_ROSTER_BYTES:
            status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        else:
            right = receive(self.rfile.read(int(length)), self.headers.get(ROSTER_SIGNATURE, ""))
            status = HTTPStatus.NO_CONTENT if right else HTTPStatus.FORBIDDEN
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the name in the base class
        """Stay quiet: probes come every few seconds."""
