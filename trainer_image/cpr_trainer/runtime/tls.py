"""Mutual TLS 1.3 between the processes of a job: their certificates, and connections that two threads may use.

Each process signs a certificate of its own with the key of the job's CA, which lies in the folder of the job's key. The
certificate names the process's role and index (`cpr_contract.roster.certificate_name`). It is valid for a day. Half a
day later the process signs the next one, for connections from then on; open connections stay.

An issuer may have signed the CA. It then ends, and a file shows the renewed one, with the same key. The CA alone is
trusted, never those above it: other jobs have certificates under the same root.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from cpr_contract import env
from cpr_contract.roster import certificate_name

LIFETIME_S = 86_400.0
#: Small buffers are joined up to this size, so that a header takes no TLS record of its own.
_JOINED_BYTES = 1 << 16
#: The most bytes of one call. A call reports none of its bytes before all are sent.
_AT_ONCE_BYTES = 1 << 18

A = TypeVar("A")


class Certificates:
    """The certificates of one process; any thread may use them. `clock` returns seconds since the epoch.

    Before `identify` they name the index 0. `issued` is the file with the CA as it was issued last, if an issuer signs
    it. Raises OSError if the files of the job's CA cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        job_uid: str,
        role: str,
        clock: Callable[[], float] = time.time,
        issued: Path | None = None,
    ) -> None:
        self._ca = (folder / env.CA_NAME).read_text(encoding="ascii")
        chain = folder / env.CA_CHAIN_NAME
        self._chain = chain.read_text(encoding="ascii") if chain.exists() else ""
        self._issued = issued
        self._ca_key = (folder / env.CA_KEY_NAME).read_bytes()
        self._operator = (folder / env.OPERATOR_NAME).read_text(encoding="ascii")
        self._job_uid = job_uid
        self._clock = clock
        self._lock = threading.Lock()
        self._name = certificate_name(job_uid, role)
        self._contexts: tuple[ssl.SSLContext, ssl.SSLContext, ssl.SSLContext] | None = None
        self._signed_at = self._sign_again_at = 0.0

    def identify(self, role: str, index: int) -> None:
        """Use this role and index in the certificates from now on."""
        with self._lock:
            self._name, self._contexts = certificate_name(self._job_uid, role, index), None

    def connect(self, connection: socket.socket, role: str, index: int) -> TlsConnection:
        """Secure an established connection to that process. The first read or write makes the handshake."""
        context, _, _ = self._contexts_in_force()
        return TlsConnection(connection, context, certificate_name(self._job_uid, role, index))

    def accept(self, connection: socket.socket) -> TlsConnection:
        """Secure an accepted connection. The caller needs a certificate of the job.

        Raises ConnectionAbortedError if the caller has gone away, another OSError if there is no certificate now.
        """
        _, context, _ = self._contexts_in_force()
        with _of_a_caller():
            return TlsConnection(connection, context)

    def accept_http(self, connection: socket.socket) -> ssl.SSLSocket:
        """Secure an accepted connection of an HTTP client, which may have no certificate, or the operator's.

        Raises as `accept` does.
        """
        _, _, context = self._contexts_in_force()
        with _of_a_caller():
            return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def _contexts_in_force(self) -> tuple[ssl.SSLContext, ssl.SSLContext, ssl.SSLContext]:
        """Return the contexts to connect, to accept members, and to accept HTTP clients."""
        with self._lock:
            now = self._clock()
            # A clock that was wrong and is set back leaves a certificate that is not valid yet.
            if self._contexts is None or not self._signed_at <= now < self._sign_again_at:
                self._contexts = self._sign(now)
            return self._contexts

    def _sign(self, now: float) -> tuple[ssl.SSLContext, ssl.SSLContext, ssl.SSLContext]:
        """Return the contexts with a new certificate. Raises ConnectionError if the CA has ended."""
        # It takes 50 ms to load, which jobs without encryption do not need.
        from cpr_trainer.runtime.certificate import renewed_ca, signed_certificate  # noqa: PLC0415

        ca, chain = self._ca, self._chain
        if self._issued is not None:
            with suppress(OSError):
                text = self._issued.read_text(encoding="ascii", errors="replace")
                ca, chain = renewed_ca(text, ca, self._ca_key, now) or (ca, chain)
        try:
            own = signed_certificate(ca.encode(), self._ca_key, self._name, now, LIFETIME_S)
        except ValueError as error:
            raise ConnectionError(str(error)) from error
        connecting = _context(ssl.PROTOCOL_TLS_CLIENT, ca, own.pem)
        members = _context(ssl.PROTOCOL_TLS_SERVER, ca, own.pem)
        members.verify_mode = ssl.CERT_REQUIRED
        # Callers from outside the job may trust the root of the issuer, and need what is below it.
        http = _context(ssl.PROTOCOL_TLS_SERVER, ca + self._operator, own.pem + (ca + chain).encode() * bool(chain))
        http.verify_mode = ssl.CERT_OPTIONAL
        self._signed_at, self._sign_again_at = now, (now + own.ends_at) / 2
        return connecting, members, http


class TlsConnection:
    """A connection with the methods of a socket that the project uses. Raises OSError as a socket does.

    One thread may read while another one writes. OpenSSL does not allow that: a lock is held for each call, which never
    waits for the network, and the waits are outside of it. `name` is the expected name of the server; None: this side
    is the server, and its caller needs a certificate.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, name: str | None = None) -> None:
        self._timeout_s = connection.gettimeout()
        connection.settimeout(0.0)
        self._tls = context.wrap_socket(
            connection, server_side=name is None, server_hostname=name, do_handshake_on_connect=False
        )
        self._lock = threading.Lock()
        #: The handshake is not over: what is sent waits for the other side.
        self.handshaking = True
        #: The names in the other side's certificate; none before the handshake is over.
        self.peer_names: frozenset[str] = frozenset()

    def pending(self) -> int:
        """Return the bytes that are received and decrypted, and can be read although the socket is not readable."""
        with self._lock:
            return self._tls.pending()

    def recv_into(self, buffer: Any) -> int:
        """Read what is there, up to the size of a buffer; 0 at the end of the connection."""
        return self._retried(self._fill, memoryview(buffer).cast("B"))

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        """Send the first bytes of these buffers; return how many.

        If no byte can be sent, the next call has to begin with the same bytes, and no fewer, which OpenSSL has
        encrypted.
        """
        if buffers[0].nbytes >= _JOINED_BYTES:
            return self._retried(self._tls.send, buffers[0].cast("B")[:_AT_ONCE_BYTES])
        joined, left = [], _JOINED_BYTES
        for each in buffers:
            joined.append(each.cast("B")[:left])
            left -= joined[-1].nbytes
            if not left:
                break
        return self._retried(self._tls.send, b"".join(joined))

    def sendall(self, data: Any) -> None:
        """Send all bytes."""
        view = memoryview(data).cast("B")
        while view:
            view = view[self._retried(self._tls.send, view[:_AT_ONCE_BYTES]) :]

    def settimeout(self, timeout_s: float | None) -> None:
        """Limit each wait for the network; 0: raise BlockingIOError, None: without a limit."""
        self._timeout_s = timeout_s

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Set an option of the socket."""
        self._tls.setsockopt(level, option, value)

    def getsockopt(self, level: int, option: int) -> int:
        """Return an option of the socket."""
        return self._tls.getsockopt(level, option)

    def fileno(self) -> int:
        """Return the descriptor, -1 after `close`."""
        return self._tls.fileno()

    def shutdown(self, how: int) -> None:
        """Shut the socket down; a waiting thread returns. Any thread may call this."""
        socket.socket.shutdown(self._tls, how)  # SSLSocket's own method would drop the state that a reader uses

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._tls.close()

    def _retried(self, call: Callable[[A], int], argument: A) -> int:
        """Make the handshake if it is due, and call; wait for the network where OpenSSL demands it."""
        timeout_s = self._timeout_s
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while True:
            with self._lock:
                try:
                    if self.handshaking:
                        self._tls.do_handshake()
                        certificate: Any = self._tls.getpeercert()
                        self.peer_names = frozenset(name for _, name in certificate.get("subjectAltName", ()))
                        self.handshaking = False
                    return call(argument)
                except ssl.SSLWantReadError:
                    events = select.POLLIN
                except ssl.SSLWantWriteError:
                    events = select.POLLOUT
            if timeout_s == 0:
                raise BlockingIOError
            self._wait(events, deadline)

    def _fill(self, view: memoryview) -> int:
        """Read records until there are none: one call of OpenSSL reads one of them, of 16 KiB at most."""
        size = self._tls.recv_into(view)
        while 0 < size < view.nbytes:
            try:
                more = self._tls.recv_into(view[size:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            if not more:
                break
            size += more
        return size

    def _wait(self, events: int, deadline: float | None) -> None:
        left_s = None if deadline is None else deadline - monotonic()
        descriptor = self.fileno()
        if descriptor < 0:
            raise ConnectionAbortedError("the connection was closed")
        poller = select.poll()
        poller.register(descriptor, events)
        if left_s is not None and (left_s <= 0 or not poller.poll(left_s * 1000)):
            raise TimeoutError("timed out")
        if left_s is None:
            poller.poll()


#: A connection between two processes of a job, encrypted or not.
Stream = socket.socket | TlsConnection


def _context(protocol: int, trusted: str, own: bytes) -> ssl.SSLContext:
    """Return a context that trusts these certificates (PEM), and presents its `own`. A client checks names."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=trusted)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # another may have signed the CA
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # no session is resumed, and a ticket would be sent at a handshake's end
    # OpenSSL reads certificates with their keys from files alone. This one is in memory.
    with os.fdopen(os.memfd_create("certificate"), "wb") as file:
        file.write(own)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context


@contextmanager
def _of_a_caller() -> Iterator[None]:
    """Raise ConnectionAbortedError for a connection that has ended before its handshake."""
    try:
        yield
    except OSError as error:
        raise ConnectionAbortedError(f"the caller has gone away: {error}") from error
