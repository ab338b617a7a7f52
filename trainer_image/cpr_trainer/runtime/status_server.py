"""The HTTP server of a process: its report, its health and its metrics."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any, Self

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from cpr_contract.codec import to_json, within_limits
from cpr_contract.reports import RECORDED_HEADER
from cpr_contract.roster import MAX_ROSTER_BYTES, ROSTER_PAGE, ROSTER_SIGNATURE
from cpr_trainer.runtime.acceptor import Acceptor
from cpr_trainer.runtime.sockets import listen
from cpr_trainer.runtime.tls import Certificates

_LOG = logging.getLogger(__name__)

_CLIENTS = 32  # served at a time, each by a thread
_DEADLINE_S = 5.0  # for a client, from its connection to its whole answer
_POLL_S = 0.1  # interval of the check for clients that take too long


class StatusServer:
    """Serves from threads of its own between `start` and `close`; also a context manager.

    `status` returns the report (a contract dataclass), `healthy` whether the main loop makes progress, `ready` whether
    the process serves. `receive` gets a posted roster with its signature and returns whether the signature is right;
    without it there is no such page. `on_recorded` gets the header of a status request that holds what the operator has
    recorded, before the answer. All are called from other threads and must not block. With `certificates` the pages are
    encrypted. The report and the roster's page then need a client with a certificate of the job, or the operator's.
    With `port` 0 the system chooses one, and the attribute `port` has it.
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
        on_recorded: Callable[[str], None] = lambda _: None,
        certificates: Certificates | None = None,
    ) -> None:
        self.pages: dict[str, Callable[[], _Page]] = {
            "/healthz": lambda: _probe_answer(healthy()),
            "/readyz": lambda: _probe_answer(ready()),
            "/metrics": lambda: (HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(registry)),
            "/status": lambda: (HTTPStatus.OK, "application/json", to_json(within_limits(status())).encode()),
        }
        self.receive = receive
        self.on_recorded = on_recorded
        self._certificates = certificates
        self._ending = threading.Event()
        self._acceptor = Acceptor(listen(address, port), self._serve, _CLIENTS, _DEADLINE_S)
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self.port = self._acceptor.port

    def start(self) -> Self:
        """Begin to answer."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop answering and free the port."""
        self._ending.set()
        if self._thread.is_alive():
            self._acceptor.wake()
            self._thread.join()
        self._acceptor.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(self) -> None:
        while not self._ending.is_set():
            self._acceptor.tick(_POLL_S)

    def _serve(self, client: socket.socket, address: Any) -> Callable[[], None]:
        # It may be encrypted, which is another socket. Its thread makes the handshake, at the first read.
        secured = client if self._certificates is None else self._certificates.accept_http(client)
        arguments = (client, secured, address)
        try:
            threading.Thread(target=self._answer, args=arguments, name="status-client", daemon=True).start()
        except RuntimeError as error:
            secured.close()
            raise OSError(f"no thread for a client: {error}") from error
        return lambda: _shut_down(secured)

    def _answer(self, client: socket.socket, secured: socket.socket, address: Any) -> None:
        try:
            with secured, suppress(OSError):  # the client may have gone away
                _Handler(secured, address, self)  # type: ignore[arg-type]  # it uses only our attributes of a server
                secured.shutdown(socket.SHUT_WR)
        except Exception:  # noqa: BLE001 -- of a page; the server continues
            _LOG.exception("a page of the status server failed")
        finally:
            self._acceptor.leave(client)


_Page = tuple[HTTPStatus, str, bytes]


def _probe_answer(good: bool) -> _Page:  # noqa: FBT001 -- the answer itself
    status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
    return status, "text/plain; charset=utf-8", b"ok\n" if good else b"no\n"


def _forbidden() -> _Page:
    return HTTPStatus.FORBIDDEN, "text/plain; charset=utf-8", b"this page needs a certificate of the job\n"


def _shut_down(request: socket.socket) -> None:
    with suppress(OSError):  # The client may be gone. Its thread, which waits, closes the connection.
        socket.socket.shutdown(request, socket.SHUT_RDWR)  # that of SSLSocket would drop what its thread uses


class _Handler(BaseHTTPRequestHandler):
    server: StatusServer  # type: ignore[assignment]
    timeout = _DEADLINE_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        page, recorded = self.server.pages.get(path), self.headers.get(RECORDED_HEADER)
        if path == "/status" and not self._is_certified():
            page, recorded = _forbidden, None
        if path == "/status" and recorded is not None:
            self.server.on_recorded(recorded)
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
        elif not self._is_certified():
            status = HTTPStatus.FORBIDDEN
        elif not length.isdecimal() or int(length) > MAX_ROSTER_BYTES:
            status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        else:
            right = receive(self.rfile.read(int(length)), self.headers.get(ROSTER_SIGNATURE, ""))
            status = HTTPStatus.NO_CONTENT if right else HTTPStatus.FORBIDDEN
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _is_certified(self) -> bool:
        """Return whether the client may see more than probes may: on an encrypted port it needs a certificate."""
        return not isinstance(self.connection, ssl.SSLSocket) or bool(self.connection.getpeercert())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the name in the base class
        """Log nothing: probes come every few seconds."""
