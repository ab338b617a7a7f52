"""A blocking connection to another shard, for requests that are answered in order."""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from typing import Any

import numpy as np

from cpr_contract.env import DATA_PORT, ROLE_SHARD
from cpr_contract.roster import Peer
from cpr_trainer.exchange.encoding import Encoding
from cpr_trainer.exchange.frames import Frame, FrameError, FrameReader, FrameWriter, Header, Operation
from cpr_trainer.exchange.handshake import LIMIT_BYTES, NONCE_BYTES, HandshakeError, Identity, Initiator
from cpr_trainer.runtime import Certificates, connect

_HANDSHAKE_TIMEOUT_S = 3.0


class NotReadyError(Exception):
    """The other shard is of another generation, or has no rows yet."""


class BufferPool:
    """Memory for payloads, which is reused once nothing refers to the payload. For one thread.

    A rebuild reads gigabytes in pieces that live for milliseconds. The page faults of new memory for each piece would
    take longer than receiving it.
    """

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def take(self, size_bytes: int) -> memoryview:
        """Return a writable buffer for a payload. Arrays over it keep it in use."""
        memory = self._free.pop() if self._free else bytearray()
        if len(memory) < size_bytes:
            memory = bytearray(size_bytes)
        buffer = np.frombuffer(memory, np.uint8, size_bytes)
        weakref.finalize(buffer, self._free.append, memory).atexit = False
        return buffer.data


class PeerConnection:
    """An authenticated connection to a shard. `answer_s` is the timeout of each wait for the network.

    An answer of ROWS has memory of its own; any other is valid until the next one. Its methods raise OSError
    (TimeoutError among it), FrameError or HandshakeError, after which it is unusable.
    """

    def __init__(  # noqa: PLR0913, PLR0917 -- the two identities, and the key
        self,
        peer: Peer,
        key: bytes,
        me: Identity,
        callee: Identity,
        encoding: Encoding,
        answer_s: float,
        certificates: Certificates | None = None,
    ) -> None:
        connection = connect(peer.host, peer.port_base + DATA_PORT, min(_HANDSHAKE_TIMEOUT_S, answer_s))
        self._connection = (
            connection if certificates is None else certificates.connect(connection, ROLE_SHARD, peer.index)
        )
        self._memory = BufferPool()
        self._reader, self._writer = FrameReader(LIMIT_BYTES, self._place), FrameWriter()
        try:
            initiator = Initiator(key, me, callee, os.urandom(NONCE_BYTES), encoding)
            challenge = self._exchange(Operation.HELLO, initiator.hello, Operation.CHALLENGE)
            proof, _ = initiator.prove(bytes(challenge.payload))
            self._exchange(Operation.PROOF, proof, Operation.WELCOME)
        except BaseException:
            self._connection.close()
            raise
        self._reader.limit_bytes = 2**32
        self._connection.settimeout(answer_s)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def request(self, header: Header, payload: list[Any], expected: Operation) -> Frame:
        """Send a frame and return the answer. Raises NotReadyError."""
        self.send(header, payload)
        return self.receive(expected)

    def send(self, header: Header, payload: list[Any]) -> None:
        """Send a frame. Several may be sent before their answers, which keep their order."""
        self._writer.add(header, *payload)
        self._writer.flush(self._connection)

    def receive(self, expected: Operation) -> Frame:
        """Return the next answer. Raises NotReadyError."""
        frame = self._reader.read(self._connection)
        if frame is None:  # a blocking socket raised BlockingIOError at its timeout
            raise TimeoutError("no answer")
        if frame.header.operation is Operation.ERROR:
            raise HandshakeError(bytes(frame.payload).decode(errors="replace"))
        if frame.header.operation is Operation.NOT_READY:
            raise NotReadyError
        if frame.header.operation is not expected:
            raise FrameError(f"{frame.header.operation.name} in the place of {expected.name}")
        return frame

    def shut_down(self) -> None:
        """Shut the connection down: a waiting `request` fails at once. Any thread may call this."""
        with contextlib.suppress(OSError):  # the other side has closed it
            self._connection.shutdown(socket.SHUT_RDWR)

    def _exchange(self, operation: Operation, payload: bytes, expected: Operation) -> Frame:
        return self.request(Header(operation, payload_bytes=len(payload)), [payload], expected)

    def _place(self, header: Header) -> memoryview | None:
        return self._memory.take(header.payload_bytes) if header.operation is Operation.ROWS else None
