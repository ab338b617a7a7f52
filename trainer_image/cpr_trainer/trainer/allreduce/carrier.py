"""Carries bytes between two connections, such as a tunnel's and one to the process group of this trainer."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from cpr_trainer.runtime import Stream, connect

_BUFFER_BYTES = 1 << 18
_CONNECT_TIMEOUT_S = 2.0


def carry_to(tunnel: Stream, host: str, port: int) -> None:
    """Carry a tunnel's bytes to and from a server, until either ends. Raises OSError."""
    connection = connect(host, port, _CONNECT_TIMEOUT_S)
    connection.settimeout(None)
    carry(connection, tunnel)


def carry(one: Stream, other: Stream) -> None:
    """Pass bytes between two connections in both directions, and close both when either ends."""
    back = threading.Thread(target=_pass_on, args=(other, one), name="tunnel back", daemon=True)
    back.start()
    _pass_on(one, other)
    back.join()
    for each in (one, other):
        each.close()


def _received(source: Stream, buffer: memoryview) -> int:
    """Wait for bytes however long that takes: the connection's time-out limits what is sent alone."""
    while True:
        with suppress(TimeoutError):
            return source.recv_into(buffer)


def _pass_on(source: Stream, sink: Stream) -> None:
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    with suppress(OSError):
        while size := _received(source, buffer):
            sink.sendall(buffer[:size])
    for each in (source, sink):
        with suppress(OSError):  # it may not be connected any more
            each.shutdown(socket.SHUT_RDWR)
