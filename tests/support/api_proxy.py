"""A proxy before an API server that answers with errors on demand, as a load balancer does in an outage."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx

#: Headers of one connection alone, which are not passed on.
_OWN = {"connection", "content-length", "host", "transfer-encoding"}


class ApiProxy:
    """Passes on every request to `upstream`, or answers it with `fault`, an HTTP status, if that is not None.

    Connections are unencrypted, one for each request; watches survive an outage that begins after them.
    """

    def __init__(self, upstream: httpx.Client) -> None:
        self.fault: int | None = None
        self.refused = 0
        self._upstream = upstream
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @contextlib.contextmanager
    def running(self) -> Iterator[ApiProxy]:
        """Serve until the end of the context."""
        thread = Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if proxy.fault is not None:
                    proxy.refused += 1
                    self.send_response(proxy.fault)
                    self.end_headers()
                    return
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
                with (
                    contextlib.suppress(OSError, httpx.HTTPError, httpx.StreamError),  # either end may go
                    proxy._upstream.stream(
                        self.command, self.path, content=body, headers=headers, timeout=None
                    ) as response,
                ):
                    self.send_response(response.status_code)
                    for name, value in response.headers.items():
                        if name.lower() not in _OWN:
                            self.send_header(name, value)
                    self.end_headers()
                    for chunk in response.iter_raw():
                        self.wfile.write(chunk)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815 -- the names that the base class calls

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler
